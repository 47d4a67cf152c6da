"""Repetitions: how many, and in which order what is compared runs in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

__all__ = ["SHORT_FACTOR", "SHORT_GROUPS", "order_of", "repeats_of"]

SHORT_GROUPS: Final = ("overhead", "burst", "history", "chain")
"""Groups of bars of which a repetition takes seconds."""
SHORT_FACTOR: Final = 5
"""How many times as often these are repeated as the groups that take minutes."""
_STEP: Final = 3

Thing = TypeVar("Thing")


def repeats_of(group: str, repeats: int, *, quick: bool = False) -> int:
    """Return how often a group of bars is repeated where `repeats` were asked for."""
    return repeats * SHORT_FACTOR if group in SHORT_GROUPS and not quick else repeats


def order_of(things: Sequence[Thing], repetition: int) -> list[Thing]:
    """Return the order in which a repetition runs `things`.

    Every other repetition runs them backwards, so that no one always comes behind the same other,
    or always later than what it is compared with; each two begin with another one. Neighbours
    stay neighbours, but for those at the ends.
    """
    # A step that has no divisor in common with the number reaches each as the first one.
    step = _STEP if len(things) % _STEP else 1
    first = repetition // 2 * step % len(things)
    order = [*things[first:], *things[:first]]
    return order[::-1] if repetition % 2 else order
