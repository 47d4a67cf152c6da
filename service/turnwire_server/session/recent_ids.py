"""A bounded memory of ids."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["RecentIds"]


class RecentIds:
    """The ids that were added last, at most so many."""

    __slots__ = ("_ids", "_most")

    def __init__(self, most: int) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._most = most

    def __contains__(self, one: object) -> bool:
        return one in self._ids

    def add(self, one: str) -> None:
        """Remember an id."""
        self._ids[one] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)
