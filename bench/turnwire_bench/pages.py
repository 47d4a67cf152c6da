"""The figures of the pages, out of results files: `python -m turnwire_bench.pages` writes them.

A block begins with `<!-- bench: bench/results/FILE -->` and ends with `<!-- /bench -->`. A test
holds each to what the file says.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import orjson

__all__ = ["PAGES", "filled_in", "main", "markdown_of"]

PAGES: Final = ("README.md", "docs/performance.md")
"""Pages with blocks, from the root of the repository."""
_ROOT: Final = Path(__file__).parents[2]
_BLOCK: Final = re.compile(r"(<!-- bench: (\S+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
_NAMES: Final = {
    "http_stateless": "HTTP, fresh TLS connection, whole history",
    "http_full": "HTTP, kept alive, whole history",
    "http_chain": "HTTP, `previous_response_id`",
    "ws": "WebSocket session",
    "grpc": "gRPC session",
    "ws_rollout": "WebSocket rollout",
    "grpc_rollout": "gRPC rollout",
    "sdk_dropin": "official SDK over `turnwire.openai`",
}
_ABOUT_BARS: Final = (
    "Measured is the median of the repetitions, lowest and highest are single ones. A ratio is one "
    "of two figures of the same repetition, which were measured soon after each other."
)

Row = Mapping[str, Any]


def filled_in(text: str, root: Path) -> str:
    """Return a page with every block as its results file has it; `root` has the files."""

    def block(found: re.Match[str]) -> str:
        result = orjson.loads((root / found[2]).read_bytes())
        return f"{found[1]}{markdown_of(result)}{found[3]}"

    return _BLOCK.sub(block, text)


def markdown_of(result: Mapping[str, Any]) -> str:
    """Return the tables of a run."""
    tables: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "transports": _transports,
        "bars": _bars,
        "scale": _workers if "ratios" in result else _scale,
        "peers": _peers,
    }
    return tables[result["meta"]["command"]](result)


def main() -> int:
    """Rewrite the blocks of the pages; return the exit code."""
    for page in PAGES:
        path = _ROOT / page
        path.write_text(filled_in(path.read_text(encoding="utf-8"), _ROOT), encoding="utf-8")
    return 0


def _transports(result: Mapping[str, Any]) -> str:
    """A table for each scenario, profile and rate."""
    about = {each["name"]: each["about"] for each in result["meta"]["settings"]["scenarios"]}
    parts = []
    for (scenario, profile, rate), rows in groupby(result["rows"], key=_place):
        parts.append(f"{about[scenario]} Network: {profile}, {rate:,.0f} tokens/s.\n")
        parts.append(
            _table(
                ("", "end to end, s", "first token, ms", "overhead per turn, ms", "sent, kB"),
                ((_name(row), *_figures(row), _kb(row["bytes_up"])) for row in rows),
            )
        )
    return "\n".join(parts)


def _peers(result: Mapping[str, Any]) -> str:
    settings = result["meta"]["settings"]
    rows = [row for row in result["rows"] if "failure" not in row]
    return f"{settings['scenario']['about']} {settings['repeats']} repetitions.\n\n" + _table(
        ("", "server", "end to end, s", "first token, ms", "overhead per turn, ms", "p99"),
        (
            (_name(row), row["server"], *_figures(row), f"{row['overhead_ms_p99']:.1f}")
            for row in rows
        ),
    )


def _bars(result: Mapping[str, Any]) -> str:
    signs = {"at most": "≤", "at least": "≥"}
    # Older files have no ratio of each repetition: there the spread is what both sides' allow.
    is_paired = all("by_repetition" in bar for bar in result["bars"])
    counted = ("repetitions",) if is_paired else ()
    return (f"{_ABOUT_BARS}\n\n" if is_paired else "") + _table(
        ("bar", "limit", "measured (lowest to highest)", *counted, "met"),
        (
            (
                bar["what"],
                f"{signs[bar['direction']]} {bar['limit']:g} {bar['unit']}".strip(),
                f"{bar['measured']:.3g} ({' to '.join(f'{value:.3g}' for value in bar['spread'])}) "
                f"{bar['unit']}".strip(),
                *(str(bar[key]) for key in counted),
                "yes" if bar["met"] else "no",
            )
            for bar in result["bars"]
        ),
    )


def _scale(result: Mapping[str, Any]) -> str:
    carried = _table(
        (
            *("", "tokens/s", "sessions per core", "delay p50, ms", "p99"),
            *("cores: server", "load", "kB per idle session"),
        ),
        (
            (
                _name(row),
                f"{row['rate']:,.0f}",
                f"{row['sessions_per_core']:,.0f}",
                f"{row['delay_ms_p50']:.1f}",
                f"{row['delay_ms_p99']:.1f}",
                f"{row['server_cores']:.2f}",
                f"{row['client_cores']:.2f}",
                f"{row['idle_kb_per_session']:.0f}",
            )
            for row in result["rows"]
            if row["sessions"]
        ),
    )
    idle = _table(
        ("", "idle sessions", "connects per second", "kB after a turn", "at rest", "after close"),
        (
            (
                _name(row),
                f"{row['count']:,}",
                f"{row['connects_per_second']:,.0f}",
                *(
                    "" if row[name] is None else f"{row[name]:.0f}"
                    for name in ("kb_per_session", "kb_at_rest", "kb_kept_after_close")
                ),
            )
            for row in result["idle"]
        ),
    )
    return f"{carried}\n{idle}"


def _workers(result: Mapping[str, Any]) -> str:
    rows = _table(
        ("", "tokens/s", "workers", "sessions", "load accounted for", "cores: server", "load"),
        (
            (
                _name(row),
                f"{row['rate']:,.0f}",
                str(row["workers"]),
                f"{row['sessions']:,.0f}",
                f"{row['sessions_accounted']:,.0f}",
                f"{row['server_cores']:.2f}",
                f"{row['client_cores']:.2f}",
            )
            for row in result["rows"]
            if row["sessions"]
        ),
    )
    ratios = _table(
        ("", "tokens/s", "workers", "ratio (lowest to highest)", "without accounting"),
        (
            (
                _name(row),
                f"{row['rate']:,.0f}",
                " to ".join(map(str, row["workers"])),
                f"{row['ratio']:.2f} ({' to '.join(f'{value:.2f}' for value in row['spread'])})",
                f"{row['ratio_measured']:.2f}",
            )
            for row in result["ratios"]
            if row["ratio"] is not None
        ),
    )
    return f"{rows}\n{ratios}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first, *others = (f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in (head, *rows))
    return "".join([first, f"|{'---|' * len(head)}\n", *others])


def _name(row: Row) -> str:
    transport: str = row["transport"]
    return _NAMES.get(transport, transport)


def _figures(row: Row) -> tuple[str, str, str]:
    return f"{row['e2e_s']:.2f}", f"{row['ttft_ms_p50']:.1f}", f"{row['overhead_ms_p50']:.1f}"


def _place(row: Row) -> tuple[str, str, float]:
    return row["scenario"], row["profile"], row["rate"]


def _kb(size: int | None) -> str:
    return "" if size is None else f"{size / 1000:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
