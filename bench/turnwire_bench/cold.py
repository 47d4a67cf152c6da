"""How long memory takes that was touched a moment ago, against right away.

On a machine whose caches belong to it alone the two are nearly the same. Where neighbours share
them, as on most virtual machines, they push out what was not touched for some milliseconds; a turn
in every 60 ms then finds nearly all of its memory cold, however idle the machine looks.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from functools import reduce
from itertools import pairwise, repeat
from typing import Any, Final

__all__ = ["cold_memory"]

_OBJECTS: Final = 4096
"""A line of 64 bytes each, 256 kB in all, which a core's own cache holds."""
_ONE_IN: Final = 8
"""So many are made, and one of them is used: a line's neighbours may be fetched along with it."""
_PAUSE_S: Final = 0.01
_REPEATS: Final = 20


class _Link:
    """Points at the next one; fills a line with its header."""

    __slots__ = ("_first", "_second", "next")

    next: _Link


def cold_memory(
    *,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Follow links through memory, right after it was done before and after a pause.

    The address of each object is only known when the one before it was read, so nothing is
    fetched ahead. Of each step Python's own part is the same in both (about 25 ns on a machine of
    today), so the difference is the memory's.

    Returns:
        Nanoseconds of a step, medians: `hot_ns`, and `cold_ns` after a pause of `pause_ms`.
    """
    made = [_Link() for _ in range(_OBJECTS * _ONE_IN)]
    chain = random.Random(1).sample(made, _OBJECTS)  # no secret
    for link, following in pairwise(chain):
        link.next = following

    def step_ns() -> float:
        began = clock()
        reduce(getattr, repeat("next", _OBJECTS - 1), chain[0])
        return (clock() - began) / (_OBJECTS - 1) * 1e9

    hot, cold = [], []
    for _ in range(_REPEATS):
        step_ns()
        hot.append(step_ns())
        pause(_PAUSE_S)
        cold.append(step_ns())
    return {
        "hot_ns": statistics.median(hot),
        "cold_ns": statistics.median(cold),
        "pause_ms": _PAUSE_S * 1e3,
    }
