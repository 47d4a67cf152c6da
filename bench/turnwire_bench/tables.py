"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from turnwire_bench.bar import Bar

__all__ = [
    "bars_table",
    "chain_table",
    "micro_table",
    "opens_line",
    "peers_table",
    "ratios_table",
    "scale_table",
    "transports_table",
]

_NONE: Final = "-"


def transports_table(
    rows: Sequence[dict[str, Any]], beside: Sequence[dict[str, Any]], title: str
) -> Table:
    """Return the rows of one scenario, profile and rate; what runs beside them is dim."""
    table = _table(
        title,
        "transport",
        *("end to end\ns", "first token\nms", "overhead\nms p50", "p99", "delivered\ntok/s"),
        *("server CPU\nms/turn", "client CPU\nms/turn", "kB up", "kB down", "kB per\nsession"),
    )
    for each in (*rows, *beside):
        table.add_row(
            each["transport"],
            _spread(each, "e2e_s"),
            _spread(each, "ttft_ms_p50"),
            _spread(each, "overhead_ms_p50"),
            _number(each["overhead_ms_p99"]),
            _number(each["delivered_tps"], 0),
            _number(each["server_cpu_ms_per_turn"]),
            _number(each["client_cpu_ms_per_turn"]),
            _number(_thousandth(each["bytes_up"]), 0),
            _number(_thousandth(each["bytes_down"]), 0),
            _number(each["memory_kb_per_session"], 0),
            style="dim" if each in beside else None,
        )
    return table


def peers_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows of all servers; what a server refused is said."""
    table = _table(
        "Servers",
        "server",
        *("transport", "end to end\ns", "first token\nms", "overhead\nms p50", "p99"),
        *("server CPU\nms/turn", "kB up", "kB down"),
    )
    for each in rows:
        if "failure" in each:
            table.add_row(each["server"], each["transport"], "[red]failed[/red]")
            continue
        table.add_row(
            each["server"],
            each["transport"],
            _spread(each, "e2e_s"),
            _spread(each, "ttft_ms_p50"),
            _spread(each, "overhead_ms_p50"),
            _number(each["overhead_ms_p99"]),
            _number(each["server_cpu_ms_per_turn"]),
            _number(_thousandth(each["bytes_up"]), 0),
            _number(_thousandth(each["bytes_down"]), 0),
        )
    return table


def ratios_table(ratios: Sequence[dict[str, Any]]) -> Table:
    """Return how many more sessions more workers carry."""
    table = _table(
        "Sessions of more workers against fewer",
        "transport",
        *("tok/s each", "workers", "ratio", "lowest", "highest", "with the load\non these cores"),
    )
    for row in ratios:
        low, high = row["spread"] or (None, None)
        table.add_row(
            row["transport"],
            _number(row["rate"], 0),
            " : ".join(str(count) for count in reversed(row["workers"])),
            *(_number(value, 2) for value in (row["ratio"], low, high, row["ratio_measured"])),
        )
    return table


def scale_table(rows: Sequence[dict[str, Any]], idle: Sequence[dict[str, Any]]) -> list[Table]:
    """Return sessions per core, and what idle ones hold."""
    carried = _table(
        "Sessions until the p99 token delay passes 50 ms",
        "transport",
        *("tok/s each", "sessions\nper core", "sessions", "server\ncores", "load's\ncores"),
        *("delay ms\np50", "p99"),
    )
    for row in rows:
        carried.add_row(
            row["transport"] + (f" × {row['workers']}" if "workers" in row else ""),
            _number(row["rate"], 0),
            _number(row["sessions_per_core"], 0),
            _number(row["sessions"], 0),
            _number(row.get("server_cores")),
            _number(row.get("client_cores")),
            _number(row.get("delay_ms_p50"), 1),
            _number(row.get("delay_ms_p99"), 1),
        )
    held = _table(
        "Idle sessions",
        "transport",
        *("sessions", "alive", "kB each", "kB each\nat rest", "kB kept\nafter close", "connects/s"),
    )
    for row in idle:
        held.add_row(
            row["transport"],
            str(row["count"]),
            str(row["alive"]),
            _number(row["kb_per_session"], 0),
            _number(row["kb_at_rest"], 0),
            _number(row["kb_kept_after_close"], 0),
            _number(row["connects_per_second"], 0),
        )
    return [carried, held]


def opens_line(opens: dict[str, Any]) -> str:
    """Return what became of simultaneous opens."""
    return (
        f"{opens['transport']}: {opens['count']:,} simultaneous opens, each with a turn, in "
        f"{opens['seconds']:.1f} s; {opens['refused']} refused"
    )


def chain_table(rows: Sequence[dict[str, Any]], growth: Sequence[dict[str, Any]]) -> Table:
    """Return the overhead at a few turns, and how it grew."""
    last = max(row["turn"] for row in rows)
    shown = sorted({1, 2, *(max(1, last * part // 4) for part in (1, 2, 3, 4))})
    table = _table(
        "Overhead in ms, as fast as it is read",
        "transport",
        *(f"turn {turn}" for turn in shown),
        "last / first",
    )
    by_place = {(row["transport"], row["turn"]): row for row in rows}
    for each in growth:
        low, high = each["ratio_spread"]
        table.add_row(
            each["transport"],
            *(_number(by_place[each["transport"], turn]["overhead_ms"]) for turn in shown),
            f"{each['ratio']:.2f} ({low:.2f}–{high:.2f})",
        )
    return table


def micro_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return all pieces."""
    table = _table("Pieces of code, µs", "group", "piece", "median", "lowest", "highest")
    table.columns[1].justify = "left"
    for row in rows:
        low, high = row["us_spread"]
        table.add_row(row["group"], row["name"], _number(row["us"]), _number(low), _number(high))
    return table


def bars_table(bars: Sequence[Bar]) -> Table:
    """Return all bars."""
    table = _table("Bars", "bar", "what", "bar is", "measured", "")
    table.columns[1].justify = "left"
    table.columns[1].no_wrap = False
    for bar in bars:
        sign = "≥" if bar.at_least else "≤"
        verdict = "[green]met[/green]" if bar.is_met else "[red]not met[/red]"
        limit = f"{sign} {bar.limit:g} {bar.unit}".rstrip()
        table.add_row(bar.name, bar.what, limit, str(bar.measured), verdict)
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _spread(row: dict[str, Any], key: str) -> str:
    value = row[key]
    if value is None:
        return _NONE
    low, high = row["spread"][key]
    largest = max(abs(value), abs(high))
    digits = 2 if largest < 10 else 1 if largest < 100 else 0
    return f"{value:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


def _number(value: float | None, digits: int = 2) -> str:
    return _NONE if value is None else f"{value:,.{digits}f}"


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000
