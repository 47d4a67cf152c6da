"""Running the conversations and timing their turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import turnwire
from turnwire_bench.scenario import Row, Scenario
from turnwire_server.cli.child import ChildServer

__all__ = ["Conversation", "TurnSample", "run_all"]

_TURN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class TurnSample:
    """One turn as it was measured."""

    overhead_ms: float
    """What the client saw minus what the engine takes by its settings."""
    ttft_ms: float
    total_ms: float
    tokens_sent: int
    tokens_rendered: int
    tokens_input: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """All turns of one row's repetition."""

    turns: tuple[TurnSample, ...]
    server_cpu_ms: float | None
    """CPU of the server process per turn, None where it cannot be read."""


def run_all(
    server: ChildServer,
    rows: tuple[Row, ...],
    scenario: Scenario,
    *,
    progress: Callable[[str], None],
) -> dict[str, list[Conversation]]:
    """Run every row `scenario.repeats` times, interleaved, so that a drift hits all alike.

    Args:
        server: Where.
        rows: What.
        scenario: How much.
        progress: Told what runs now.
    """
    results: dict[str, list[Conversation]] = {row.name: [] for row in rows}
    for row in rows:  # Imports, caches and connections of both sides are paid for here.
        progress(f"warm-up: {row.name}")
        asyncio.run(_converse(server, row, scenario, f"warm-up {row.name}"))
    for repeat in range(scenario.repeats):
        shift = repeat % len(rows)
        for row in (*rows[shift:], *rows[:shift]):
            progress(f"{repeat + 1} of {scenario.repeats}: {row.name}")
            conversation = asyncio.run(_converse(server, row, scenario, f"{repeat} {row.name}"))
            results[row.name].append(conversation)
    return results


async def _converse(server: ChildServer, row: Row, scenario: Scenario, tag: str) -> Conversation:
    options = scenario.options(tag)
    if row.history == "full" or row.wire != "http":
        options["store"] = False
    items: list[turnwire.InputItem] = []
    turns: list[TurnSample] = []
    parent: str | None = None
    async with turnwire.connect(row.url(server), model=server.model) as session:
        cpu = _cpu_s(server.pid)
        for number in range(scenario.turns):
            message = scenario.message(number)
            items.append(message)
            async with asyncio.timeout(_TURN_TIMEOUT_S):
                turn = session.create(
                    items if row.history == "full" else [message],
                    previous_response_id=parent if row.history == "session" else None,
                    **options,
                )
                response = await turn.response()
            items.extend(response.message.output)
            parent = response.id
            assert turn.stats is not None  # the response is the end of the turn
            turns.append(_sample(turn.stats, scenario))
        spent = _cpu_s(server.pid)
    per_turn = None if cpu is None or spent is None else (spent - cpu) * 1e3 / scenario.turns
    return Conversation(tuple(turns), per_turn)


def _sample(stats: turnwire.TurnStats, scenario: Scenario) -> TurnSample:
    return TurnSample(
        overhead_ms=(stats.total_s - scenario.engine_s(stats)) * 1e3,
        ttft_ms=(stats.ttft_s or stats.total_s) * 1e3,
        total_ms=stats.total_s * 1e3,
        tokens_sent=stats.tokens_sent or 0,
        tokens_rendered=stats.tokens_rendered or 0,
        tokens_input=stats.tokens_input or 0,
        bytes_up=stats.bytes_up,
        bytes_down=stats.bytes_down,
    )


def _cpu_s(pid: int) -> float | None:
    """Return the CPU seconds of a process's threads, None where the kernel does not say.

    A thread that ended meanwhile is missing from it; servers keep theirs.
    """
    try:
        threads = [
            int(path.read_text(encoding="ascii").split()[0])
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
        ]
    except (OSError, ValueError, IndexError):
        return None
    return sum(threads) / 1e9 if threads else None
