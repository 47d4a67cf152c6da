"""A bar: a figure, and what it has to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwire_bench.figures import Figure

__all__ = ["Bar", "each_of", "ratio_of", "saving_of"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the design, as it was measured."""

    name: str
    what: str
    limit: float
    measured: Figure
    unit: str = "×"
    at_least: bool = False
    """Whether the figure must not be below the limit, instead of not above it."""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_met(self) -> bool:
        """Whether the median is on the right side of the limit."""
        if self.at_least:
            return self.measured.median >= self.limit
        return self.measured.median <= self.limit

    def to_json(self) -> dict[str, Any]:
        """Return it for a results file."""
        return {
            "bar": self.name,
            "what": self.what,
            "limit": self.limit,
            "direction": "at least" if self.at_least else "at most",
            "unit": self.unit,
            "measured": self.measured.median,
            "spread": [self.measured.low, self.measured.high],
            "met": self.is_met,
            "details": dict(self.details),
        }


def ratio_of(over: Figure, under: Figure) -> Figure:
    """Return one figure divided by another; the spread is the widest that their spreads allow."""
    return Figure(
        over.median / _positive(under.median),
        over.low / _positive(under.high),
        over.high / _positive(under.low),
    )


def saving_of(less: Figure, more: Figure) -> Figure:
    """Return how much less one figure is than another, in percent."""
    ratio = ratio_of(less, more)
    return Figure((1 - ratio.median) * 100, (1 - ratio.high) * 100, (1 - ratio.low) * 100)


def _positive(value: float) -> float:
    # Jitter of the simulated pace can make a tiny overhead look like none or less.
    return max(value, 0.01)


def each_of(values: Iterable[float], scale: float = 1.0) -> Figure:
    """Return the figure of one value for each repetition, multiplied by `scale`."""
    return Figure.of_values(value * scale for value in values)
