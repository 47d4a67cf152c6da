"""Bars that are ratios between rows of the transports' benchmark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from turnwire_bench.bar import Bar, ratios_of, savings_of
from turnwire_bench.chain import ChainSettings, run_chain
from turnwire_bench.converse import TRANSPORTS
from turnwire_bench.network import PROFILES
from turnwire_bench.progress import Progress
from turnwire_bench.scenario import Scenario, load_scenario
from turnwire_bench.transports import TransportsSettings, run_transports

__all__ = ["chain_bars", "delivery_bars", "history_bars", "internet_bars", "overhead_bars"]

_WIRES: Final = ("ws", "grpc")
_NAMES: Final = {"ws": "WebSocket", "grpc": "gRPC"}


def overhead_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """Overhead per turn at 1,000 tokens/s: against the bare echo, a resend, and a slow sink."""
    scenario = _cut(load_scenario("answers"), quick=quick)
    rows = _rows(
        TransportsSettings(
            (scenario,),
            transports=("http_stateless", "http_full", *_WIRES),
            repeats=repeats,
            held_sessions=0,
            beside=("echo_grpc", "ws_bare", "grpc_bare", "ws_slow_sink", "grpc_slow_sink"),
        ),
        progress,
    )
    found = {name: _values(row, "overhead_ms_p50") for name, row in rows.items()}
    details = {name: row["overhead_ms_p50"] for name, row in rows.items()}
    history = f"{scenario.history_tokens:,} tokens of history"
    bars = []
    for wire, limit in (("grpc", 1.25), ("ws", 1.0)):
        bars.append(
            Bar(
                f"overhead_{wire}",
                f"overhead per turn at 1,000 tokens/s, {_NAMES[wire]} against the bare grpc.aio "
                "echo",
                limit,
                ratios_of(found[wire], found["echo_grpc"]),
                details=details,
            )
        )
    for resend, name in (("http_full", "kept alive"), ("http_stateless", "fresh TLS")):
        for wire in _WIRES:
            bars.append(
                Bar(
                    f"resend_{resend.removeprefix('http_')}_{wire}",
                    f"overhead of a stateless resend ({name}) of {history} against a "
                    f"{_NAMES[wire]} turn",
                    15.0,
                    ratios_of(found[resend], found[wire]),
                    at_least=True,
                    details=details,
                )
            )
    for wire in _WIRES:
        bars.append(
            Bar(
                f"slow_sink_{wire}",
                f"overhead per {_NAMES[wire]} turn while after work takes 0.5 s, against none",
                1.1,
                ratios_of(found[f"{wire}_slow_sink"], found[wire]),
                details=details,
            )
        )
    return bars


def internet_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """An agent run over the internet at 1,000 tokens/s against the stateless baseline."""
    scenario = _cut(load_scenario("agent_rollout"), quick=quick)
    rows = _rows(
        TransportsSettings(
            (scenario,),
            profiles=(PROFILES["internet"],),
            transports=("http_stateless", "ws", "grpc", "ws_rollout", "grpc_rollout"),
            repeats=repeats,
            held_sessions=0,
            beside=(),
        ),
        progress,
    )
    bars = []
    for transport in ("ws", "grpc", "ws_rollout", "grpc_rollout"):
        for name, key, what, limit in (
            ("e2e", "e2e_s", "wall time end to end", 40.0),
            ("ttft", "ttft_ms_p50", "time to first token", 45.0),
        ):
            this, baseline = rows[transport], rows["http_stateless"]
            bars.append(
                Bar(
                    f"internet_{name}_{transport}",
                    f"less {what} over the internet, {scenario.tool_calls} tool calls, "
                    f"{transport} against http_stateless",
                    limit,
                    savings_of(_values(this, key), _values(baseline, key)),
                    unit="%",
                    at_least=True,
                    details={"this": this[key], "baseline": baseline[key]},
                )
            )
    return bars


def delivery_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """Whether one session at 4,000 tokens/s gets its tokens as fast as they are made."""
    scenario = load_scenario("long_answer")
    if quick:
        scenario = replace(scenario, messages=2, answer_tokens=800)
    rate = 4000.0
    settings = TransportsSettings(
        (scenario,), rates=(rate,), repeats=repeats, held_sessions=0, beside=()
    )
    rows = _rows(settings, progress)
    return [
        Bar(
            f"delivery_{transport}",
            f"part of 4,000 tokens/s that one session gets, {transport}",
            98.0,
            [value / rate * 100 for value in _values(rows[transport], "delivered_tps") if value],
            unit="%",
            at_least=True,
            details={"delivered_tps": rows[transport]["delivered_tps"]},
        )
        for transport in TRANSPORTS
    ]


def history_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """Session overhead on a long history against a short one."""
    sizes = (1_000, 20_000) if quick else (1_000, 100_000)
    scenarios = tuple(
        replace(
            load_scenario("answers"),
            name=f"history_{size}",
            history_tokens=size,
            messages=6 if quick else 20,
            answer_tokens=100,
        )
        for size in sizes
    )
    settings = TransportsSettings(
        scenarios,
        rates=(0.0,),
        transports=_WIRES,
        repeats=repeats,
        held_sessions=0,
        beside=(),
        side_by_side=True,
    )
    result = run_transports(settings, progress)["rows"]
    rows = {(row["scenario"], row["transport"]): row for row in result}
    bars = []
    for wire in _WIRES:
        key = "overhead_ms_p50"
        short, long = (rows[scenario.name, wire] for scenario in scenarios)
        bars.append(
            Bar(
                f"history_{wire}",
                f"overhead of a {_NAMES[wire]} turn at {sizes[1]:,} tokens of history against "
                f"{sizes[0]:,}",
                1.1,
                ratios_of(_values(long, key), _values(short, key)),
                details={"short_ms": short[key], "long_ms": long[key]},
            )
        )
    return bars


def chain_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """Turn 100 against turn 2."""
    turns = 20 if quick else 100
    settings = ChainSettings(
        turns=turns, tokens=turns * 300, repeats=repeats, transports=("http_chain", *_WIRES)
    )
    return [
        Bar(
            f"chain_{row['transport']}",
            f"overhead of turns {turns - row['turns_compared'] + 1} to {turns} against turns 2 to "
            f"{row['turns_compared'] + 1}, {row['transport']}",
            1.1,
            row["ratio_by_repetition"],
            details={"first_ms": row["first_ms"], "last_ms": row["last_ms"]},
        )
        for row in run_chain(settings, progress)["growth"]
    ]


def _rows(settings: TransportsSettings, progress: Progress) -> dict[str, dict[str, Any]]:
    result = run_transports(settings, progress)
    return {row["transport"]: row for row in (*result["rows"], *result["beside"])}


def _values(row: dict[str, Any], key: str) -> list[float | None]:
    values: list[float | None] = row["by_repetition"][key]
    return values


def _cut(scenario: Scenario, *, quick: bool) -> Scenario:
    """Return a scenario with fewer turns and less history, where it is to be quick."""
    if not quick:
        return scenario
    return replace(
        scenario,
        history_tokens=scenario.history_tokens // 5,
        messages=min(scenario.messages, 4),
        tool_calls=min(scenario.tool_calls, 4),
        answer_tokens=min(scenario.answer_tokens, 60),
    )
