"""What a turn costs the server as its conversation grows: turn 2 against turn 100.

Run `python -m turnwire_bench.long_chain`. The server is a process of its own on the simulated
engine, over gRPC; the times are the server's own, of `turnwire.timing`. Messages are all of one
length, so that a turn's new tokens are too and what grows is the history alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import turnwire
from turnwire_bench.scenario import Scenario
from turnwire_server.cli.child import ChildServer, child_server
from turnwire_server.cli.failure import CommandFailure

__all__ = ["Sample", "main", "measure", "summarize"]

STAGES: Final = ("resolve", "validate", "render", "commit")
_TURN_TIMEOUT_S: Final = 60.0
_WINDOW: Final = 5
"""Turns at each end that the steadier ratio is made of."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn of one conversation."""

    turn: int
    """From 1."""
    stages_us: dict[str, float]
    """Stage -> microseconds."""
    tokens_input: int
    tokens_rendered: int


async def measure(server: ChildServer, *, turns: int, words: int, said: int) -> list[Sample]:
    """Return the samples of one conversation.

    Args:
        server: Where it is held.
        turns: How many turns it has.
        words: Length of each message; a word is about one token.
        said: Tokens that the engine says in each turn.
    """
    scenario = Scenario(history_words=words, message_words=words)
    script = json.dumps({"tokens": said, "tool_rounds": 0})
    samples = []
    parent: str | None = None
    async with turnwire.connect(server.grpc_url, model="sim") as session:
        for turn in range(turns):
            async with asyncio.timeout(_TURN_TIMEOUT_S):
                response = await session.create(
                    [scenario.message(turn)],
                    previous_response_id=parent,
                    store=False,
                    metadata={"turnwire.sim": script},
                    include=["turnwire.timing"],
                ).response()
            parent = response.id
            timing = response.message.turnwire.timing
            samples.append(
                Sample(
                    turn + 1,
                    {stage: getattr(timing, f"{stage}_ms") * 1e3 for stage in STAGES},
                    timing.tokens.input,
                    timing.tokens.rendered,
                )
            )
    return samples


def summarize(conversations: Sequence[Sequence[Sample]], turns: Sequence[int]) -> list[str]:
    """Return the lines of a table: medians over the conversations, and what became of them."""
    last = len(conversations[0])

    def median(stage: str, first: int, until: int) -> float:
        return statistics.median(
            sample.stages_us[stage]
            for conversation in conversations
            for sample in conversation[first - 1 : until]
        )

    head = "".join(f"{f'turn {turn}':>10}" for turn in turns)
    ends = f"{last - _WINDOW + 1}-{last} / 2-{_WINDOW + 1}"
    lines = [f"{'stage, µs':<12}{head}{f'{last} / 2':>10}{ends:>16}"]
    for stage in STAGES:
        row = "".join(f"{median(stage, turn, turn):>10.1f}" for turn in turns)
        ratio = median(stage, last, last) / median(stage, 2, 2)
        steady = median(stage, last - _WINDOW + 1, last) / median(stage, 2, _WINDOW + 1)
        lines.append(f"{stage:<12}{row}{ratio:>10.2f}{steady:>16.2f}")
    spread = sorted(
        statistics.median(s.stages_us["render"] for s in conversation[-_WINDOW:])
        / statistics.median(s.stages_us["render"] for s in conversation[1 : _WINDOW + 1])
        for conversation in conversations
    )
    lines.append(
        f"render, {ends}, of single conversations: {spread[0]:.2f} to {spread[-1]:.2f}, "
        f"median {statistics.median(spread):.2f}"
    )
    final = conversations[0][-1]
    rendered = {sample.tokens_rendered for each in conversations for sample in each[1:]}
    lines.append(
        f"tokens: {final.tokens_input} in the last prompt, {min(rendered)} to {max(rendered)} "
        "rendered by each turn but the first"
    )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; return the exit code."""
    parser = argparse.ArgumentParser(prog="turnwire_bench.long_chain", description=__doc__)
    parser.add_argument("--turns", type=int, default=100, help="turns of a conversation")
    parser.add_argument("--words", type=int, default=200, help="words of each message")
    parser.add_argument("--said", type=int, default=100, help="tokens said in each turn")
    parser.add_argument("--repeats", type=int, default=20, help="conversations")
    options = parser.parse_args(arguments)
    if options.turns < 2 * _WINDOW + 1 or min(options.words, options.said, options.repeats) < 1:
        parser.error(f"at least {2 * _WINDOW + 1} turns and 1 of everything else are needed")

    async def run(server: ChildServer) -> list[list[Sample]]:
        sizes = {"turns": options.turns, "words": options.words, "said": options.said}
        await measure(server, **sizes)  # caches and code that every process warms up once
        return [await measure(server, **sizes) for _ in range(options.repeats)]

    try:
        with child_server(["--engine", "sim", "--rate", "0"]) as server:
            conversations = asyncio.run(run(server))
    except (CommandFailure, turnwire.TurnwireError) as failure:
        sys.stderr.write(f"turnwire_bench: {failure}\n")
        return 1
    quarters = [options.turns * part // 4 for part in (1, 2, 3, 4)]
    print(f"{options.repeats} conversations of {options.turns} turns, medians")
    print("\n".join(summarize(conversations, [2, *quarters])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
