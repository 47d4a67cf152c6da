"""Figures out of samples: medians with their spread."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from turnwire_bench.measure import Conversation
from turnwire_bench.scenario import Scenario

__all__ = ["Figure", "Summary", "results_of", "summarize", "table_of"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A median, and the lowest and highest median of a single conversation."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, conversations: Iterable[Sequence[float]]) -> Figure:
        """Make a figure of the values of each conversation."""
        groups = [list(values) for values in conversations]
        medians = [statistics.median(values) for values in groups]
        whole = statistics.median(value for values in groups for value in values)
        return cls(whole, min(medians), max(medians))

    def __str__(self) -> str:
        digits = 2 if self.high < 10 else 1 if self.high < 100 else 0
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


@dataclass(frozen=True, slots=True)
class Summary:
    """One row of the report. Later turns are all but the first of each conversation."""

    row: str
    overhead_ms: Figure
    first_overhead_ms: Figure
    ttft_ms: Figure
    tokens_sent: float
    tokens_rendered: float
    bytes_up: float
    bytes_down: float
    server_cpu_ms: float | None


def summarize(results: Mapping[str, Sequence[Conversation]]) -> list[Summary]:
    """Return the figures of each row."""
    summaries = []
    for row, conversations in results.items():
        later = [conversation.turns[1:] for conversation in conversations]
        turns = [turn for group in later for turn in group]
        cpu = [c.server_cpu_ms for c in conversations if c.server_cpu_ms is not None]
        summaries.append(
            Summary(
                row=row,
                overhead_ms=Figure.of([turn.overhead_ms for turn in group] for group in later),
                first_overhead_ms=Figure.of([c.turns[0].overhead_ms] for c in conversations),
                ttft_ms=Figure.of([turn.ttft_ms for turn in group] for group in later),
                tokens_sent=statistics.median(turn.tokens_sent for turn in turns),
                tokens_rendered=statistics.median(turn.tokens_rendered for turn in turns),
                bytes_up=statistics.median(turn.bytes_up for turn in turns),
                bytes_down=statistics.median(turn.bytes_down for turn in turns),
                server_cpu_ms=statistics.median(cpu) if cpu else None,
            )
        )
    return summaries


def table_of(summaries: Sequence[Summary]) -> Table:
    """Return the table for the terminal."""
    table = Table(
        title="Overhead per turn", title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False
    )
    table.add_column("row", no_wrap=True)
    for name in (
        "overhead ms\nlater turns",
        "overhead ms\nfirst turn",
        "first token\nms",
        "tokens\nsent",
        "tokens\nrendered",
        "bytes\nup",
        "bytes\ndown",
        "server CPU\nms/turn",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for summary in summaries:
        cpu = summary.server_cpu_ms
        table.add_row(
            summary.row,
            str(summary.overhead_ms),
            str(summary.first_overhead_ms),
            str(summary.ttft_ms),
            f"{summary.tokens_sent:,.0f}",
            f"{summary.tokens_rendered:,.0f}",
            f"{summary.bytes_up:,.0f}",
            f"{summary.bytes_down:,.0f}",
            "-" if cpu is None else f"{cpu:.1f}",
        )
    return table


def results_of(
    scenario: Scenario,
    results: Mapping[str, Sequence[Conversation]],
    summaries: Sequence[Summary],
) -> dict[str, Any]:
    """Return everything for a results file: where, with what, the figures and the samples."""
    return {
        "machine": {
            "cpus": os.cpu_count(),
            "architecture": platform.machine(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
        "versions": {
            name: metadata.version(name)
            for name in ("turnwire", "grpcio", "aiohttp", "protobuf", "orjson")
        },
        "scenario": scenario.as_dict(),
        "engine": "sim",
        "summary": [asdict(summary) for summary in summaries],
        "conversations": {
            row: [asdict(conversation) for conversation in conversations]
            for row, conversations in results.items()
        },
    }
