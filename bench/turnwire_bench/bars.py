"""`turnwire bench bars`: the bars of the design, each measured by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from turnwire_bench import bars_of_load, bars_of_rows, bars_of_sessions, bars_of_workers
from turnwire_bench.bar import Bar
from turnwire_bench.failure import BenchFailure
from turnwire_bench.meta import meta_of
from turnwire_bench.progress import Progress
from turnwire_bench.repetitions import SHORT_FACTOR, SHORT_GROUPS, repeats_of

__all__ = ["BARS", "BarsSettings", "run_bars"]


class Measure(Protocol):
    """Measures the bars of a group."""

    def __call__(self, repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
        """Return them."""


BARS: Final[dict[str, Measure]] = {
    "overhead": bars_of_rows.overhead_bars,
    "burst": bars_of_load.burst_bars,
    "history": bars_of_rows.history_bars,
    "chain": bars_of_rows.chain_bars,
    "internet": bars_of_rows.internet_bars,
    "cpu": bars_of_load.cpu_bars,
    "delivery": bars_of_rows.delivery_bars,
    "opens": bars_of_sessions.opens_bars,
    "stalled": bars_of_sessions.stalled_bars,
    "idle": bars_of_sessions.idle_bars,
    "cached": bars_of_sessions.cached_bars,
    "stop": bars_of_load.stop_bars,
    "workers": bars_of_workers.workers_bars,
}
"""Groups of bars, by the name that `--only` takes: what one measurement tells."""


@dataclass(frozen=True, slots=True)
class BarsSettings:
    """What to run."""

    only: tuple[str, ...] = ()
    """Groups; all when empty."""
    repeats: int = 5
    """Of the groups that take minutes; those that take seconds are repeated more often."""
    quick: bool = False
    """Smaller sizes, to see that it works; such figures say little."""


def run_bars(
    settings: BarsSettings, progress: Progress, *, on_bar: Callable[[Bar], None] | None = None
) -> dict[str, Any]:
    """Measure the bars.

    Args:
        settings: Which, and how often.
        progress: Told what runs now.
        on_bar: Called with each bar once it is measured.

    Returns:
        `{"meta", "bars"}`; docs/bench.md has the schema.
    """
    unknown = [name for name in settings.only if name not in BARS]
    if unknown:
        raise BenchFailure(f"There is no bar {unknown[0]!r}; known are {', '.join(BARS)}.")
    bars = []
    for name in settings.only or BARS:
        repeats = repeats_of(name, settings.repeats, quick=settings.quick)
        for bar in BARS[name](repeats, progress, quick=settings.quick):
            bars.append(bar)
            if on_bar is not None:
                on_bar(bar)
    notes = [
        "Each bar is a figure within one run of its own; compare no others.",
        "Measured is the median of the repetitions. A ratio is one of two figures of the same "
        "repetition.",
    ]
    if settings.quick:
        notes.append("Quick: smaller sizes than the bars are for.")
    else:
        notes.append(
            f"What takes seconds ({', '.join(SHORT_GROUPS)}) was repeated {SHORT_FACTOR} times as "
            "often as the rest."
        )
    return {
        "meta": meta_of("bars", notes=notes, repeats=settings.repeats, quick=settings.quick),
        "bars": [bar.to_json() for bar in bars],
    }
