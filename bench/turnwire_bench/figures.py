"""Figures out of samples: medians with their spread, and percentiles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Figure", "percentile"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A median, and the lowest and highest median of a single repetition."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, repetitions: Iterable[Sequence[float]]) -> Figure:
        """Make a figure of the values of each repetition; those without values are left out.

        Raises:
            ValueError: There are none at all.
        """
        groups = [list(values) for values in repetitions if values]
        if not groups:
            raise ValueError("a figure needs a value")
        medians = [statistics.median(values) for values in groups]
        whole = statistics.median(value for values in groups for value in values)
        return cls(whole, min(medians), max(medians))

    @classmethod
    def of_values(cls, values: Iterable[float]) -> Figure:
        """Make a figure of one value for each repetition."""
        return cls.of([value] for value in values)

    def __str__(self) -> str:
        largest = max(abs(self.high), abs(self.median))
        digits = 2 if largest < 10 else 1 if largest < 100 else 0
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}–{self.high:,.{digits}f})"


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value that `part` (0 to 1) of the values do not exceed, by nearest rank.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("a percentile needs a value")
    ranked = sorted(values)
    return ranked[max(0, math.ceil(part * len(ranked)) - 1)]
