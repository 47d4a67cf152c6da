"""How the number of sessions that a server carries is searched: which numbers, and how often each.

A try costs seconds, and a number that fails costs up to three of them. So a search goes up by what
the server has left, gives up at once on what is far too much, and ends when what is carried and
what is not are within a tenth.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Generator
from typing import Any, Final

__all__ = [
    "MOST_DELAY_MS",
    "NOTE",
    "Search",
    "Trial",
    "best_of",
    "is_carried",
    "is_far_too_much",
    "searching",
]

Trial = dict[str, Any]
"""What came of a number of sessions, as the job `paced` tells it."""

Search = Generator[int, Trial, dict[str, Any]]
"""Yields numbers of sessions, takes what came of each, and returns what is carried."""

MOST_DELAY_MS: Final = 50.0
"""Of 99 of 100 tokens, behind the engine's schedule: where a core is full."""
_LEAST_DELIVERED: Final = 0.95
_FAR_DELAY_MS: Final = 2 * MOST_DELAY_MS
"""Of 95 of 100 tokens: no hiccup of a machine, which makes a few tokens late, explains it."""
_FAR_DELIVERED: Final = 0.8
_CHANCES: Final = 3
_FINE: Final = 1.1
"""The search ends when what is carried and what is not are this close."""
_STEPS: Final = (_FINE, _FINE, _FINE**2, _FINE**4, 2.0)
"""Steps where the CPU does not tell how far to go, each longer since none was far enough."""
_LARGEST_STEP: Final = _STEPS[-1]
_FULL: Final = 0.9
"""Of the cores: what a step aims at. Beyond, tokens are late sooner or later."""
_FIRST_TOKENS: Final = 10_000
"""Tokens per second, in all sessions together, that a search begins with when it knows nothing:
about half of what a core was seen to carry. On a slower machine it begins with a step down."""
_FIRST_SESSIONS: Final = 20
"""But so many at least: the faster tokens come, the more of them the server joins."""

NOTE: Final = (
    "How the number is searched: from the first one up by what the server's CPU has left (1.1 to "
    "2 ×), down by 1.1 × (by half from far too much), then between what is carried and what is "
    "not, until they are within 1.1 ×. A number is carried when the p99 of the token delay is at "
    "most 50 ms, at least 95 % of the tokens came, and no session ended. One that is not is tried "
    "up to three times, and carried if it is once: other work on the machine only ever makes "
    "tokens late. It gets no second chance when 5 % of the tokens are later than 100 ms, less "
    "than 80 % came, or half of them are later than 50 ms after a third of the try, which then "
    "ends. All sessions are opened anew for each try. tries has every number and how often it was "
    "tried."
)


def is_carried(trial: Trial) -> bool:
    """Return whether the tokens came in time, and all of them."""
    late = trial["delay_ms"]["p99"]
    return (
        late is not None
        and late <= MOST_DELAY_MS
        and _delivered(trial) >= _LEAST_DELIVERED
        and not trial["ended"]
    )


def is_far_too_much(trial: Trial) -> bool:
    """Return whether it was so late, or so little, that trying again is in vain."""
    late = trial["delay_ms"]["p95"]
    return bool(
        trial.get("gave_up")
        or (late is not None and late > _FAR_DELAY_MS)
        or _delivered(trial) < _FAR_DELIVERED
    )


def best_of(once: Callable[[int], Trial]) -> Trial:
    """Try a number of sessions until it is carried, as often as it may be.

    Args:
        once: Tries it; told how often it was tried before.

    Returns:
        The last try, with `times`: how often it was tried.
    """
    for before in range(_CHANCES):
        trial = once(before)
        if is_carried(trial) or is_far_too_much(trial):
            break
    return {**trial, "times": before + 1}


def searching(rate: float, most_sessions: int, *, workers: int = 1, near: int = 0) -> Search:
    """Search the number of sessions that is carried.

    Args:
        rate: Tokens per second of a session.
        most_sessions: How many may be tried.
        workers: Cores that the server may use.
        near: What an earlier search found: where this one begins, in the smallest steps. 0 when
            nothing is known.
    """
    good: Trial | None = None
    lowest, bad = 0, most_sessions + 1
    count = max(1, min(most_sessions, near or max(_FIRST_SESSIONS, round(_FIRST_TOKENS / rate))))
    steps = itertools.chain(_STEPS, itertools.repeat(_LARGEST_STEP))
    tries = []
    while True:
        trial = yield count
        tries.append(
            {
                "sessions": count,
                "delay_ms_p99": trial["delay_ms"]["p99"],
                "times": trial.get("times", 1),
            }
        )
        if is_carried(trial):
            good, lowest = trial, count
        else:
            bad = count
        is_bracketed = lowest > 0 and bad <= most_sessions
        if bad - lowest <= 1 or (is_bracketed and bad <= lowest * _FINE):
            break
        if good is None:
            step = _LARGEST_STEP if is_far_too_much(trial) else next(steps)
            count = max(1, min(count - 1, math.ceil(count / step)))
        elif bad > most_sessions:
            room = 0.0 if near else min(_LARGEST_STEP, _room(trial, workers))
            step = room if room > _FINE else next(steps)
            count = min(most_sessions, max(count + 1, math.floor(count * step)))
        else:
            count = max(lowest + 1, min(bad - 1, round(math.sqrt(lowest * bad))))
    return _found(good, lowest, tries)


def _room(trial: Trial, workers: int) -> float:
    """Return how many times the sessions would fill the server's cores, or all that there are."""
    if trial["server_cpu_s"] is None:
        return _LARGEST_STEP
    server = trial["server_cpu_s"] / trial["wall_s"]
    both = server + trial["client_cpu_s"] / trial["wall_s"]
    cpus = os.cpu_count() or 1
    room: float = _FULL * min(workers / max(server, 0.01), cpus / max(both, 0.01))
    return room


def _found(good: Trial | None, sessions: int, tries: list[dict[str, Any]]) -> dict[str, Any]:
    if good is None:
        return {"sessions_per_core": 0.0, "sessions": 0, "tries": tries}
    server_cores = None
    if good["server_cpu_s"] is not None:
        server_cores = good["server_cpu_s"] / good["wall_s"]
    return {
        "sessions_per_core": sessions / max(1.0, server_cores or 1.0),
        "sessions": sessions,
        "server_cores": server_cores,
        "client_cores": good["client_cpu_s"] / good["wall_s"],
        "delay_ms_p99": good["delay_ms"]["p99"],
        "delay_ms_p50": good["delay_ms"]["p50"],
        "events_per_second": good["events"] / good["wall_s"],
        "tries": tries,
    }


def _delivered(trial: Trial) -> float:
    return float(trial["tokens"] / trial["wanted_tokens"])
