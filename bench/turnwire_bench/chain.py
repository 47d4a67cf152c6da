"""`turnwire bench chain`: what a turn costs as its conversation grows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from turnwire_bench.drivers import STAGES
from turnwire_bench.meta import meta_of
from turnwire_bench.network import PROFILES
from turnwire_bench.progress import Progress
from turnwire_bench.repetitions import order_of
from turnwire_bench.rows import Way, overheads_ms
from turnwire_bench.samples import Conversation
from turnwire_bench.scenario import Scenario
from turnwire_bench.stand import Stand

__all__ = ["CHAIN_TRANSPORTS", "ChainSettings", "growth", "run_chain"]

CHAIN_TRANSPORTS: Final = ("http_full", "http_chain", "ws", "grpc")
_SAID: Final = 100
"""Tokens that the engine says in each turn."""
_WINDOW_PART: Final = 10
"""One part in so many of the turns, at each end, is what the ratio is made of."""
_LEAST_WINDOW: Final = 5
_TIMEOUT_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """What to run."""

    turns: int = 200
    tokens: int = 100_000
    """Length of the conversation at its end."""
    repeats: int = 5
    transports: tuple[str, ...] = CHAIN_TRANSPORTS

    @property
    def scenario(self) -> Scenario:
        """The conversation: turns of one length, so that what grows is the history alone."""
        each = max(1, self.tokens // self.turns - _SAID)
        return Scenario(
            "chain",
            about=f"{self.turns} messages of {each} tokens, {_SAID} tokens said to each.",
            messages=self.turns,
            message_tokens=each,
            answer_tokens=_SAID,
        )


def run_chain(settings: ChainSettings, progress: Progress) -> dict[str, Any]:
    """Hold whole conversations, interleaved; the engine is as fast as it is read.

    Returns:
        `{"meta", "rows", "growth"}`; docs/bench.md has the schema.
    """
    scenario = settings.scenario
    found: dict[str, list[Conversation]] = {name: [] for name in settings.transports}
    with Stand() as stand:
        server, worker = stand.server(), stand.worker()
        for repeat in range(-1, settings.repeats):  # the first warms up, and is dropped
            for name in order_of(settings.transports, repeat):
                progress(f"{repeat + 1} of {settings.repeats}: {name}")
                job = {
                    "do": "conversation",
                    "transport": name,
                    "place": stand.place(server, name, PROFILES["loopback"]),
                    "scenario": scenario.to_json(),
                    "rate": 0.0,
                    "tag": f"{repeat} {name}",
                }
                answer = Conversation.from_json(worker.ask(job, timeout_s=_TIMEOUT_S))
                if repeat >= 0:
                    found[name].append(answer)
    rows, growths = [], []
    for name, conversations in found.items():
        way = Way(PROFILES["loopback"])
        overheads = [overheads_ms(each, scenario, 0.0, way) for each in conversations]
        growths.append({"transport": name, **growth(overheads)})
        for number in range(scenario.turns):
            turns = [each.turns[number] for each in conversations]
            told = [turn.stages_ms for turn in turns if turn.stages_ms]
            rows.append(
                {
                    "transport": name,
                    "turn": number + 1,
                    "overhead_ms": statistics.median(values[number] for values in overheads),
                    "input_tokens": turns[0].input_tokens,
                    "rendered_tokens": turns[0].rendered_tokens,
                    "stages_ms": {
                        stage: statistics.median(each[stage] for each in told)
                        for stage in (STAGES if told else ())
                    },
                }
            )
    return {
        "meta": meta_of(
            "chain",
            notes=[
                "The engine is as fast as it is read, so all of a turn's time is overhead; what "
                "the simulated engine itself takes (about 0.1 ms) is in it."
            ],
            scenario=scenario.to_json(),
            repeats=settings.repeats,
        ),
        "rows": rows,
        "growth": growths,
    }


def growth(overheads: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return how much dearer the last turns are than the first ones that continue.

    Args:
        overheads: Of each conversation, the overhead of each turn.
    """
    turns = len(overheads[0])
    window = max(_LEAST_WINDOW, turns // _WINDOW_PART)
    window = min(window, max(1, (turns - 1) // 2))
    first = [values[1 : window + 1] for values in overheads]
    last = [values[-window:] for values in overheads]
    # By conversation: a machine that changes its speed between two changes both their ends.
    first_ms, last_ms = (
        statistics.median(v for values in end for v in values) for end in (first, last)
    )
    ratios = [
        statistics.median(end) / statistics.median(begin)
        for begin, end in zip(first, last, strict=True)
    ]
    return {
        "first_ms": first_ms,
        "last_ms": last_ms,
        "ratio": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "ratio_by_repetition": ratios,
        "turns_compared": window,
    }
