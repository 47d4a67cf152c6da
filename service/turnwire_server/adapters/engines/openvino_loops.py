"""Finding out that a model goes in circles: small ones do, and would until the context is full.

A circle is the same run of tokens again and again at the end of the output, exactly. What a
person may have asked for (a row of dashes, a table of zeros, a song) is shorter than what ends a
generation here, or not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["LoopDetector"]

_EVERY: Final = 16
"""Tokens between two looks."""
_LONGEST_PERIOD: Final = 256
_LEAST_TOKENS: Final = 128
"""Least tokens of a circle, beside the first round."""
_LEAST_ROUNDS: Final = 3
"""Least rounds of a circle, beside the first."""
_WINDOW: Final = _LONGEST_PERIOD * (_LEAST_ROUNDS + 1)


class LoopDetector:
    """Watches the output of one generation."""

    __slots__ = ("_fed", "_tail")

    def __init__(self) -> None:
        """Begin before the first token."""
        self._tail: list[int] = []
        self._fed = 0

    def feed(self, ids: Sequence[int]) -> bool:
        """Take the next ids; return whether the output goes in circles by now.

        A look costs a few comparisons per possible period, whatever the length of the output.
        """
        self._tail += ids
        self._fed += len(ids)
        if self._fed < _EVERY:
            return False
        self._fed = 0
        del self._tail[:-_WINDOW]
        return _is_loop(self._tail)


def _is_loop(tail: list[int]) -> bool:
    newest = tail[-1]
    for period in range(1, _LONGEST_PERIOD + 1):
        length = max(_LEAST_TOKENS, _LEAST_ROUNDS * period)
        if len(tail) < length + period:
            return False  # longer periods need more
        if tail[-1 - period] == newest and tail[-length:] == tail[-length - period : -period]:
            return True
    return False
