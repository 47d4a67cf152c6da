"""A whole agent run as turns, and as one rollout: what a tool call costs beside the engine.

Run `python -m turnwire_bench.agent_run`. The server is a process of its own on the simulated
engine, paced; the tool answers at once. Shapes are interleaved. Overhead is the run's wall time
minus what its sampled tokens take at the engine's pace; the jitter of the pace is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Final

import turnwire
from turnwire_server.cli.child import ChildServer, child_server
from turnwire_server.cli.failure import CommandFailure

__all__ = ["main", "overhead_ms"]

SHAPES: Final = (
    ("gRPC turns", "grpc", False),
    ("gRPC rollout", "grpc", True),
    ("WebSocket turns", "websocket", False),
    ("WebSocket rollout", "websocket", True),
)
_RUN_TIMEOUT_S: Final = 120.0


def lookup(name: str) -> str:
    """Return a short text for `name`."""
    return f"{name}: nothing new"


async def overhead_ms(
    server: ChildServer, *, wire: str, is_rollout: bool, calls: int, rate: float
) -> float:
    """Return the milliseconds per tool call of one run that the engine did not need.

    Args:
        server: Where it runs.
        wire: `grpc` or `websocket`.
        is_rollout: Whether the run is one response.
        calls: How many tool calls it has.
        rate: The engine's tokens per second.
    """
    url = server.grpc_url if wire == "grpc" else server.websocket_url
    script = json.dumps({"tool_rounds": calls, "call_tokens": 60, "tokens": 100})
    async with turnwire.connect(url, model="sim") as session:
        await session.create("Say hello.", store=False).response()  # the connection is paid for
        async with asyncio.timeout(_RUN_TIMEOUT_S):
            began = time.perf_counter()
            result = await session.run(
                "Look it up, step by step.",
                tools={"lookup": lookup},
                rollout=is_rollout,
                max_turns=calls + 1,
                metadata={"turnwire.sim": script},
                include=["turnwire.timing"],
            )
            seconds = time.perf_counter() - began
    sampled = sum(turn.tokens_output or 0 for turn in result.turns)
    return (seconds - sampled / rate) / calls * 1e3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code for the shell."""
    parser = argparse.ArgumentParser(prog="turnwire_bench.agent_run", description=__doc__)
    parser.add_argument("--calls", type=int, default=25, help="default %(default)s")
    parser.add_argument("--rate", type=float, default=1000.0, help="default %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="default %(default)s")
    options = parser.parse_args(arguments)
    figures: dict[str, list[float]] = {name: [] for name, _, _ in SHAPES}
    pace = ["--engine", "sim", "--rate", str(options.rate)]
    try:
        with child_server(pace) as server:
            for _ in range(options.repeats):
                for name, wire, is_rollout in SHAPES:
                    figures[name].append(
                        asyncio.run(
                            overhead_ms(
                                server,
                                wire=wire,
                                is_rollout=is_rollout,
                                calls=options.calls,
                                rate=options.rate,
                            )
                        )
                    )
    except CommandFailure as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    print(f"{options.calls} tool calls, {options.rate:g} tokens/s, {options.repeats} runs each")
    print(f"{'ms per tool call beside the engine':<36}{'median':>8}{'min':>8}{'max':>8}")
    for name, values in figures.items():
        median = statistics.median(values)
        print(f"{name:<36}{median:>8.2f}{min(values):>8.2f}{max(values):>8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
