"""The connection cache: each lane's newest response, in memory only.

Rules of `previous_response_id` (public guide, "connection-scoped caching"): a lane keeps its own
newest response; continuing another lane's newest is a fork and leaves it alone; a same-lane
continuation that fails evicts its parent. Warm-ups stay usable for a later turn too: the most
recently used of them are kept beside the lanes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from turnwire_server.session.conversation import Conversation
from turnwire_server.session.prompt import Prompt

__all__ = ["CachedResponse", "ResponseCache"]


@dataclass(slots=True, eq=False)  # not frozen: made per turn
class CachedResponse:
    """What it takes to continue a response."""

    response_id: str
    conversation: Conversation
    """Everything up to and with the response's output."""
    prompt: Prompt | None = None
    """The ids that the engine has seen, None when they were not kept."""
    lane: str | None = None
    """The lane it was made on."""
    warm_up: bool = False


class ResponseCache:
    """Newest response per lane, and the warm-ups used last."""

    __slots__ = ("_by_lane", "_max_warm_ups", "_warm_ups")

    def __init__(self, max_warm_ups: int) -> None:
        self._by_lane: dict[str | None, CachedResponse] = {}
        self._warm_ups: OrderedDict[str, CachedResponse] = OrderedDict()
        self._max_warm_ups = max_warm_ups

    def __len__(self) -> int:
        return len({entry.response_id for entry in self.entries()})

    def entries(self) -> list[CachedResponse]:
        """Return all cached responses; one may occur twice."""
        return [*self._by_lane.values(), *self._warm_ups.values()]

    def find(self, response_id: str, lane: str | None) -> CachedResponse | None:
        """Return the response if it is cached, looking at `lane` first."""
        if response_id in self._warm_ups:
            self._warm_ups.move_to_end(response_id)
        newest = self._by_lane.get(lane)
        if newest is not None and newest.response_id == response_id:
            return newest
        for entry in self._by_lane.values():
            if entry.response_id == response_id:
                return entry
        return self._warm_ups.get(response_id)

    def put(self, entry: CachedResponse) -> None:
        """Make `entry` its lane's newest response."""
        self._by_lane[entry.lane] = entry
        if entry.warm_up:
            self._warm_ups[entry.response_id] = entry
            while len(self._warm_ups) > self._max_warm_ups:
                self._warm_ups.popitem(last=False)

    def evict(self, response_id: str, lane: str | None) -> None:
        """Forget a response whose continuation on `lane` failed, unless another lane owns it."""
        newest = self._by_lane.get(lane)
        if newest is not None and newest.response_id == response_id:
            del self._by_lane[lane]
        warm_up = self._warm_ups.get(response_id)
        if warm_up is not None and warm_up.lane == lane:
            del self._warm_ups[response_id]

    def clear(self) -> None:
        """Forget everything: the connection is gone."""
        self._by_lane.clear()
        self._warm_ups.clear()
