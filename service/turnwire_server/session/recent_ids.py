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

    def add(self, one: str | None) -> None:
        """Remember an id; None is none."""
        if one is None:
            return
        self._ids[one] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)

    def discard(self, one: str | None) -> None:
        """Forget an id, if it is there."""
        if one is not None:
            self._ids.pop(one, None)
