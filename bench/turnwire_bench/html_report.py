"""The report of a transports' run as one HTML file, with plots and nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final

from turnwire_bench.drivers import STAGES
from turnwire_bench.plots import bar_plot, line_plot, stacked_plot

__all__ = ["html_report"]

_ENGINE: Final = "decode"
"""The stage that the engine's settings account for; prefill is what the simulation itself takes."""
_REST: Final = "wire and client"
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d5d9de; --dim: #626b75 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e8eb; --paper: #15181c; --line: #353b42; --dim: #98a1ab }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2.5rem } h3 { font-size: 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem }
.wide { overflow-x: auto }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap }
th:first-child, td:first-child { text-align: left }
tr.beside { color: var(--dim) }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif }
svg text { fill: currentColor } svg .grid { stroke: var(--line) }
p.dim, li { color: var(--dim) }
"""
_COLUMNS: Final = (
    ("end to end, s", "e2e_s", 2),
    ("first token, ms", "ttft_ms_p50", 2),
    ("overhead p50, ms", "overhead_ms_p50", 2),
    ("p99", "overhead_ms_p99", 2),
    ("tok/s", "delivered_tps", 0),
    ("server CPU, ms/turn", "server_cpu_ms_per_turn", 2),
    ("client CPU, ms/turn", "client_cpu_ms_per_turn", 2),
    ("bytes up", "bytes_up", 0),
    ("bytes down", "bytes_down", 0),
    ("kB per session", "memory_kb_per_session", 0),
)


def html_report(result: Mapping[str, Any]) -> str:
    """Return the page of what `run_transports` returned."""
    meta = result["meta"]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>turnwire bench transports</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        "<h1>The same agent run over every transport</h1>",
        _facts(meta),
    ]
    rows, beside = result["rows"], result["beside"]
    for key, group in groupby(rows, key=_place):
        around = [row for row in beside if _place(row) == key]
        parts.append(_section(key, list(group), around))
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _place(row: Mapping[str, Any]) -> tuple[str, str, float]:
    return row["scenario"], row["profile"], row["rate"]


def _facts(meta: Mapping[str, Any]) -> str:
    machine, versions = meta["machine"], meta["versions"]
    about = {each["name"]: each["about"] for each in meta["settings"]["scenarios"]}
    facts = (
        f"{machine['cpus']} × {machine['model'] or machine['architecture']}, {machine['system']}, "
        f"load {', '.join(map(str, machine['load']))}; commit {meta['commit'] or 'unknown'}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
    )
    notes = [*(f"{name}: {text}" for name, text in about.items() if text), *meta["notes"]]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<p class="dim">{escape(facts)}</p><ul>{items}</ul>'


def _section(
    place: tuple[str, str, float], rows: Sequence[Mapping[str, Any]], beside: Sequence[Any]
) -> str:
    scenario, profile, rate = place
    pace = f"{rate:g} tokens/s" if rate else "as fast as it is read"
    everything = [*rows, *beside]
    by_turn = {row["transport"]: row["overhead_ms_by_turn"] for row in everything}
    cpu = {
        row["transport"]: {
            "server": row["server_cpu_ms_per_turn"] or 0.0,
            "client": row["client_cpu_ms_per_turn"],
        }
        for row in everything
    }
    sizes = {
        row["transport"]: {"up": row["bytes_up"] / 1000, "down": row["bytes_down"] / 1000}
        for row in everything
        if row["bytes_up"] is not None and row["bytes_down"] is not None
    }
    return "\n".join(
        [
            f"<h2>{escape(scenario)}, {escape(profile)}, {escape(pace)}</h2>",
            _table(rows, beside),
            "<h3>Overhead by turn</h3>",
            line_plot(by_turn, x_name="turn", y_name="ms"),
            "<h3>Where the overhead of a turn is</h3>",
            stacked_plot({row["transport"]: _parts(row) for row in rows}, unit="ms"),
            "<h3>CPU per turn</h3>",
            bar_plot(cpu, unit="ms"),
            "<h3>On the wire, whole run</h3>",
            bar_plot(sizes, unit="kB", log=True),
        ]
    )


def _parts(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the overhead of a turn: the server's stages beside the engine's, and the rest."""
    told = row["stages_ms"]
    parts = {stage: told.get(stage, 0.0) for stage in STAGES if stage != _ENGINE}
    return {**parts, _REST: max(0.0, row["overhead_ms_p50"] - sum(parts.values()))}


def _table(rows: Sequence[Mapping[str, Any]], beside: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name, _, _ in _COLUMNS)
    lines = []
    for row in (*rows, *beside):
        cells = "".join(f"<td>{_cell(row[key], digits)}</td>" for _, key, digits in _COLUMNS)
        kind = ' class="beside"' if row in beside else ""
        lines.append(f"<tr{kind}><td>{escape(row['transport'])}</td>{cells}</tr>")
    return (
        f'<div class="wide"><table><thead><tr><th>transport</th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
