"""The official SDK as it is, and with the drop-in: the same code, full history with each turn.

Run `python -m turnwire_bench.sdk_dropin`; it needs the extra `openai`. The server is a process of
its own on the simulated engine, as fast as it is read, so that what is measured is not inference:
client, wire and server. Shapes are interleaved; the first turn, which brings the history, is left
out.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Final

from turnwire_bench.scenario import Scenario
from turnwire_server.cli.child import ChildServer, child_server
from turnwire_server.cli.failure import CommandFailure

__all__ = ["main", "turn_ms"]

SHAPES: Final = ("plain HTTP", "drop-in over gRPC", "drop-in over WebSocket")


async def turn_ms(server: ChildServer, shape: str, *, turns: int, words: int) -> list[float]:
    """Return the milliseconds of each follow-up turn of one conversation.

    Args:
        server: Where it is held.
        shape: One of `SHAPES`.
        turns: Follow-up turns.
        words: Words of history that the first turn brings.
    """
    import httpx2 as httpx
    import openai

    import turnwire.openai

    scenario = Scenario(history_words=words, message_words=60)
    transport = None
    if shape != SHAPES[0]:
        url = server.grpc_url if shape == SHAPES[1] else server.websocket_url
        transport = turnwire.openai.Transport(url)
    history: list[dict[str, object]] = []
    samples = []
    async with openai.AsyncOpenAI(
        base_url=server.http_url,
        api_key="x",
        http_client=httpx.AsyncClient(transport=transport) if transport else None,
    ) as client:
        for turn in range(turns + 1):
            history.append(dict(scenario.message(turn)))
            began = time.perf_counter()
            response = await client.responses.create(
                model="sim",
                input=history,  # type: ignore[arg-type]  # plain items, as an application has them
                store=False,
                metadata={"turnwire.sim": '{"tokens":100}'},
            )
            samples.append((time.perf_counter() - began) * 1e3)
            history += [item.model_dump(exclude_none=True) for item in response.output]
    return samples[1:]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code for the shell."""
    parser = argparse.ArgumentParser(prog="turnwire_bench.sdk_dropin", description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="default %(default)s")
    parser.add_argument("--words", type=int, default=20_000, help="default %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="default %(default)s")
    options = parser.parse_args(arguments)
    figures: dict[str, list[float]] = {shape: [] for shape in SHAPES}
    try:
        with child_server(["--engine", "sim", "--rate", "0"]) as server:
            for _ in range(options.repeats):
                for shape in SHAPES:
                    samples = asyncio.run(
                        turn_ms(server, shape, turns=options.turns, words=options.words)
                    )
                    figures[shape].append(statistics.median(samples))
    except (CommandFailure, ImportError) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    print(f"{options.words} words of history, {options.turns} turns, {options.repeats} runs each")
    print(f"{'ms per turn, nothing inferred':<36}{'median':>8}{'min':>8}{'max':>8}")
    for shape, medians in figures.items():
        middle = statistics.median(medians)
        print(f"{shape:<36}{middle:>8.2f}{min(medians):>8.2f}{max(medians):>8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
