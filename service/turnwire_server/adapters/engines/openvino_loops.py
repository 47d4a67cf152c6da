"""Finding out that a model goes in circles: small ones do, and would until the context is full.

A circle is the same run of tokens again and again at the end of the output: exactly, or but for a
number that is counted up. What a person may have asked for (a row of dashes, a table, a list, a
song) is shorter than what ends a generation here, or differs by more.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import eq
from typing import Final

__all__ = ["LoopDetector"]

_EVERY: Final = 16
"""Tokens between two looks."""
_LONGEST_PERIOD: Final = 256
_LEAST_TOKENS: Final = 256
"""Least tokens of a circle, beside the first round."""
_LEAST_ROUNDS: Final = 3
"""Least rounds of a circle, beside the first."""

_NEARLY_EVERY: Final = 64
_NEARLY_LONGEST_PERIOD: Final = 128
_NEARLY_LEAST_TOKENS: Final = 320
_NEARLY_LEAST_ROUNDS: Final = 10
_NEARLY: Final = 0.95
"""Part of the tokens that are those of the round before, where not all are."""
_GLANCE: Final = 64
"""Tokens that are compared before all are."""

_WINDOW: Final = max(
    _LONGEST_PERIOD * (_LEAST_ROUNDS + 1),
    _NEARLY_LONGEST_PERIOD * (_NEARLY_LEAST_ROUNDS + 1),
)


class LoopDetector:
    """Watches the output of one generation."""

    __slots__ = ("_fed", "_looks", "_tail")

    def __init__(self) -> None:
        """Begin before the first token."""
        self._tail: list[int] = []
        self._fed = 0
        self._looks = 0

    def feed(self, ids: Sequence[int]) -> bool:
        """Take the next ids; return whether the output goes in circles by now.

        A look costs a few comparisons per possible period, whatever the length of the output.
        """
        self._tail += ids
        self._fed += len(ids)
        if self._fed < _EVERY:
            return False
        self._looks += self._fed
        self._fed = 0
        del self._tail[:-_WINDOW]
        if _is_loop(self._tail):
            return True
        if self._looks < _NEARLY_EVERY:
            return False
        self._looks = 0
        return _is_nearly_loop(self._tail)


def _is_loop(tail: list[int]) -> bool:
    newest = tail[-1]
    for period in range(1, _LONGEST_PERIOD + 1):
        length = max(_LEAST_TOKENS, _LEAST_ROUNDS * period)
        if len(tail) < length + period:
            return False  # longer periods need more
        if tail[-1 - period] == newest and tail[-length:] == tail[-length - period : -period]:
            return True
    return False


def _is_nearly_loop(tail: list[int]) -> bool:
    for period in range(1, _NEARLY_LONGEST_PERIOD + 1):
        length = max(_NEARLY_LEAST_TOKENS, _NEARLY_LEAST_ROUNDS * period)
        if len(tail) < length + period:
            return False
        if _alike(tail, period, _GLANCE) and _alike(tail, period, length):
            return True
    return False


def _alike(tail: list[int], period: int, length: int) -> bool:
    """Return whether the last `length` tokens are nearly those of a period before."""
    same: int = sum(map(eq, tail[-length:], tail[-length - period : -period]))
    # A short piece may have the number that changes more often than a long one.
    return same >= length * _NEARLY - (2 if length == _GLANCE else 0)
