"""What the rules found on one transport."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from turnwire_server.conformance.checks import Check, Result, Transport, bounded
from turnwire_server.conformance.rules import RULES

__all__ = ["Findings"]

_KEPT: Final = 3
"""Violations of a rule that are kept; the others are only counted."""
_RULES: Final = {rule.id: rule for rule in RULES}


@dataclass(frozen=True, slots=True)
class _Violation:
    reason: str
    event: str | None


class Findings:
    """Counts how often each rule was put to the test, and keeps what broke it."""

    def __init__(self, transport: Transport) -> None:
        self.transport: Transport = transport
        self._seen: Counter[str] = Counter()
        self._broken: Counter[str] = Counter()
        self._kept: dict[str, list[_Violation]] = {}

    @property
    def violations(self) -> int:
        """How many violations there were so far."""
        return self._broken.total()

    def require(self, rule: str, holds: object, reason: str, event: object = None) -> bool:
        """Put a rule to the test.

        Args:
            rule: Its id.
            holds: Whether it holds; anything with a truth value.
            reason: What is wrong when it does not.
            event: What shows it.

        Returns:
            Whether it holds.
        """
        assert rule in _RULES, rule
        self._seen[rule] += 1
        if holds:
            return True
        self._broken[rule] += 1
        kept = self._kept.setdefault(rule, [])
        if len(kept) < _KEPT:
            kept.append(_Violation(reason, None if event is None else bounded(event)))
        return False

    def has_broken(self, rule: str) -> bool:
        """Return whether a rule was broken."""
        return self._broken[rule] > 0

    def results(self, rules: Sequence[Check]) -> list[Result]:
        """Return a result for each of `rules`; one that nothing tested is skipped."""
        return [self._result(rule) for rule in rules]

    def _result(self, rule: Check) -> Result:
        count = self._broken[rule.id]
        if count:
            first = self._kept[rule.id][0]
            more = f" (and {count - 1} more like it)" if count > 1 else ""
            return Result(rule, self.transport, "fail", first.reason + more, first.event)
        if not self._seen[rule.id]:
            return Result(rule, self.transport, "skipped", "nothing of the kind was seen")
        return Result(rule, self.transport, "pass")
