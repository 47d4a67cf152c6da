"""The bar of more workers: how many more sessions two carry than one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from turnwire_bench.bar import Bar
from turnwire_bench.failure import BenchFailure
from turnwire_bench.progress import Progress
from turnwire_bench.scale import ScaleSettings
from turnwire_bench.scale_workers import run_scale_workers

__all__ = ["workers_bars"]

_WORKERS: Final = (1, 2)
_MOST_REPEATS: Final = 3
"""More would take longer than all other bars together."""
_SHOWN: Final = ("sessions", "sessions_accounted", "server_cores", "client_cores", "cores_left")
_FULL: Final = 0.7
"""Of the cores that a server could use: with less of them used, something else held it up."""


def workers_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """The sessions of two workers against those of one, the load accounted for."""
    if (os.cpu_count() or 1) < max(_WORKERS):
        progress("workers: left out, since there is one core")
        return []
    settings = ScaleSettings(
        rates=(65.0,),
        wires=("grpc",),
        seconds=0.5 if quick else 4.0,
        most_sessions=16 if quick else 2000,
    )
    result = run_scale_workers(
        settings,
        _WORKERS,
        repeats=1 if quick else min(repeats, _MOST_REPEATS),
        progress=progress,
    )
    (ratio,) = result["ratios"]
    if ratio["ratio"] is None:
        raise BenchFailure("One worker carried no session at all.")
    details = {
        f"{row['workers']} workers": {name: row[name] for name in _SHOWN} for row in result["rows"]
    }
    what = "sessions of two workers against one, 65 tokens/s over gRPC, the load accounted for"
    if not all(_is_full(row) for row in result["rows"]):
        what += " (the cores were not full, as on a busy machine: the ratio says little)"
    return [
        Bar(
            "workers",
            what,
            1.7,
            ratio["by_repetition"],
            at_least=True,
            details={**details, "ratio_measured": ratio["ratio_measured"]},
        )
    ]


def _is_full(row: Mapping[str, Any]) -> bool:
    return row["server_cores"] is not None and row["server_cores"] >= _FULL * row["cores_left"]
