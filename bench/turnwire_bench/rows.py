"""Rows out of conversations: what a transport costs, in figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnwire_bench.drivers import STAGES
from turnwire_bench.echo_drivers import Plan
from turnwire_bench.figures import Figure, percentile
from turnwire_bench.network import Profile
from turnwire_bench.samples import Conversation, TurnSample
from turnwire_bench.scenario import Scenario

__all__ = ["Way", "overheads_ms", "row_of"]


@dataclass(frozen=True, slots=True)
class Way:
    """The network of a row, and how often a turn has to cross it."""

    profile: Profile
    round_trips: int = 1


def overheads_ms(
    conversation: Conversation,
    scenario: Scenario,
    rate: float,
    way: Way,
    plans: Sequence[Plan] | None = None,
) -> list[float]:
    """Return the overhead of each turn, in milliseconds.

    Overhead is the time the client saw, without what the engine takes by its settings and without
    what the modelled network takes at least.
    """
    found = []
    for number, turn in enumerate(conversation.turns):
        if plans is None:
            engine, sent = scenario.engine_s(number, turn.output_tokens, rate), turn.bytes_up
        else:
            engine, sent = plans[number].messages[-1][0], plans[number].request_size
        network = way.profile.turn_s(round_trips=way.round_trips, bytes_up=sent)
        found.append((turn.total_s - engine - network) * 1e3)
    return found


def row_of(
    conversations: Sequence[Conversation],
    scenario: Scenario,
    rate: float,
    way: Way,
    plans: Sequence[Plan] | None = None,
) -> dict[str, Any]:
    """Return the figures of a row; docs/bench.md has what each is.

    Args:
        conversations: One for each repetition.
        scenario: What they held.
        rate: Tokens per second of the engine.
        way: What was between client and server.
        plans: Of the yardstick: what it sent.
    """
    overheads = [overheads_ms(each, scenario, rate, way, plans) for each in conversations]
    # The first turn brings the history, and over a fresh connection what both sides set up.
    later = [values[1:] or values for values in overheads]
    flat = [value for values in later for value in values]
    turns = len(conversations[0].turns)
    first_tokens = [
        [turn.ttft_s * 1e3 for turn in each.turns[1:] or each.turns if turn.ttft_s is not None]
        for each in conversations
    ]
    samples: dict[str, Sequence[Sequence[float]]] = {
        "e2e_s": [[each.e2e_s] for each in conversations],
        "ttft_ms_p50": first_tokens,
        "overhead_ms_p50": later,
        "delivered_tps": [_delivered(each.turns, scenario) for each in conversations],
        "server_cpu_ms_per_turn": [
            [] if each.server_cpu_s is None else [each.server_cpu_s * 1e3 / turns]
            for each in conversations
        ],
        "client_cpu_ms_per_turn": [[each.client_cpu_s * 1e3 / turns] for each in conversations],
    }
    figures = {name: _figure(repetitions) for name, repetitions in samples.items()}
    stages = _stages(conversations)
    row: dict[str, Any] = {"turns": turns}
    for name, figure in figures.items():
        row[name] = None if figure is None else figure.median
        if name == "overhead_ms_p50":
            row["overhead_ms_p99"] = percentile(flat, 0.99)
    row["bytes_up"] = _median([each.bytes_up for each in conversations])
    row["bytes_down"] = _median([each.bytes_down for each in conversations])
    row["memory_kb_per_session"] = None
    row["first_overhead_ms"] = statistics.median(values[0] for values in overheads)
    row["stages_ms"] = stages
    row["overhead_ms_by_turn"] = [
        statistics.median(values[number] for values in overheads) for number in range(turns)
    ]
    row["spread"] = {
        name: None if figure is None else [figure.low, figure.high]
        for name, figure in figures.items()
    }
    row["repetitions"] = len(conversations)
    row["by_repetition"] = {
        name: [statistics.median(values) if values else None for values in repetitions]
        for name, repetitions in samples.items()
    }
    return row


def _figure(repetitions: Sequence[Sequence[float]]) -> Figure | None:
    return Figure.of(repetitions) if any(repetitions) else None


def _median(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known)) if known else None


def _delivered(turns: Sequence[TurnSample], scenario: Scenario) -> list[float]:
    """Return the tokens per second of each answer, from its first delta to its end."""
    return [
        (turn.output_tokens - 1) / (turn.total_s - turn.ttft_s)
        for number, turn in enumerate(turns)
        if scenario.is_answer(number) and turn.ttft_s is not None and turn.total_s > turn.ttft_s
        # Fewer tokens come in too short a time to divide by.
        if turn.output_tokens > 16
    ]


def _stages(conversations: Sequence[Conversation]) -> dict[str, float]:
    """Return the server's own times of a turn by stage, medians; of rollouts the mean round."""
    told = [turn.stages_ms for each in conversations for turn in each.turns[1:] if turn.stages_ms]
    if told:
        return {stage: statistics.median(each.get(stage, 0.0) for each in told) for stage in STAGES}
    runs = [each for each in conversations if each.run_stages_ms]
    return {
        stage: statistics.median(
            each.run_stages_ms.get(stage, 0.0) / len(each.turns) for each in runs
        )
        for stage in (STAGES if runs else ())
    }
