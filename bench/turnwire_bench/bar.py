"""A bar: a figure, and what it has to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwire_bench.figures import Figure

__all__ = ["Bar", "ratios_of", "savings_of"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the design, as it was measured."""

    name: str
    what: str
    limit: float
    values: Sequence[float]
    """One of each repetition; what counts is their median."""
    unit: str = "×"
    at_least: bool = False
    """Whether the figure must not be below the limit, instead of not above it."""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> Figure:
        """The median of the repetitions, and the lowest and highest of them."""
        return Figure.of_values(self.values)

    @property
    def is_met(self) -> bool:
        """Whether the median is on the right side of the limit."""
        if self.at_least:
            return self.measured.median >= self.limit
        return self.measured.median <= self.limit

    def to_json(self) -> dict[str, Any]:
        """Return it for a results file."""
        measured = self.measured
        return {
            "bar": self.name,
            "what": self.what,
            "limit": self.limit,
            "direction": "at least" if self.at_least else "at most",
            "unit": self.unit,
            "measured": measured.median,
            "spread": [measured.low, measured.high],
            "met": self.is_met,
            "repetitions": len(self.values),
            "by_repetition": list(self.values),
            "details": dict(self.details),
        }


def ratios_of(over: Sequence[float | None], under: Sequence[float | None]) -> list[float]:
    """Return one figure divided by another, for each repetition that has both.

    Within a repetition the two are measured soon after each other, so that a machine that changes
    its speed from one repetition to the next changes the ratio little.
    """
    return [
        above / _positive(below)
        for above, below in zip(over, under, strict=True)
        if above is not None and below is not None
    ]


def savings_of(less: Sequence[float | None], more: Sequence[float | None]) -> list[float]:
    """Return how much less one figure is than another, in percent, for each repetition."""
    return [(1 - ratio) * 100 for ratio in ratios_of(less, more)]


def _positive(value: float) -> float:
    # Jitter of the simulated pace can make a tiny overhead look like none or less.
    return max(value, 0.01)
