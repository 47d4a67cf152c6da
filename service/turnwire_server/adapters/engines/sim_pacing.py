"""When the tokens of a simulated generation are due."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["ROUNDING", "Pace"]

ROUNDING = 1e-6
"""Tokens: a sum of seconds that is short of a whole token by rounding is a whole token."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A schedule. Times are seconds after prefill; the first token is due at 0."""

    tokens_per_second: float = 0.0
    """0: whenever they are asked for."""
    silent_s: float = 0.0
    """Added to every token from index `silent_after` on."""
    silent_after: int = 0
    times: tuple[float, ...] = ()
    """When each token is due, never decreasing; replaces the rate."""

    @property
    def pulled(self) -> bool:
        """Whether the reader alone sets the pace."""
        return not self.times and self.tokens_per_second == 0

    @property
    def even_rate(self) -> float:
        """Tokens per second if they come evenly from the first to the last, else 0."""
        return 0.0 if self.times or self.silent_s else self.tokens_per_second

    def when(self, index: int) -> float:
        """Return when the token at `index` is due."""
        silence = self.silent_s if index >= self.silent_after else 0.0
        if self.times:
            return self.times[min(index, len(self.times) - 1)] + silence
        if self.tokens_per_second == 0:
            return silence
        return index / self.tokens_per_second + silence

    def due(self, elapsed: float, total: int) -> int:
        """Return how many of `total` tokens are due by `elapsed`."""
        before = self._due(elapsed, total)
        if not self.silent_s or before <= self.silent_after:
            return before
        return max(self.silent_after, self._due(elapsed - self.silent_s, total))

    def _due(self, elapsed: float, total: int) -> int:
        if elapsed < 0:
            return 0
        if self.times:
            return min(bisect_right(self.times, elapsed), total)
        if self.tokens_per_second == 0:
            return total
        return min(int(elapsed * self.tokens_per_second + ROUNDING) + 1, total)
