"""The event log: what a client was sent and may not have seen, bounded in bytes.

Events are kept in the neutral form in which they leave the session, so that they can be sent
again over any wire: deltas as they are, messages serialized, because nobody can change them then.
A client says by `(lane, response_id, sequence_number)` what it saw last. Events that have no
number (`error` events, late answers to steers) have their place behind the numbered one before
them: whoever saw only that one is sent them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.session.events import Delta, Outgoing

__all__ = ["EventLog", "Gap", "Seen"]

_OVERHEAD = 200
"""Bytes of memory that an entry takes beside its text or message, about."""
_MOST_LOST_LANES = 64
"""Names of lanes of which nothing is kept; a session runs turns on half as many."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The last event that a client has seen on a lane."""

    lane: str | None
    response_id: str
    number: int
    """`sequence_number` of the event."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that a client has not seen are no longer kept."""

    lane: str | None


class _Entry(NamedTuple):
    position: int
    """Order over all lanes."""
    response_id: str | None
    number: int | None
    event: Delta | bytes
    size: int


class EventLog:
    """Newest events of a session, or of one response."""

    __slots__ = (
        "_added",
        "_continued",
        "_has_lost_more",
        "_lanes",
        "_lost_lanes",
        "_most_bytes",
        "bytes",
    )

    def __init__(self, most_bytes: int) -> None:
        """Make an empty log.

        Args:
            most_bytes: Bound on the memory that its entries take; the oldest are dropped first.
        """
        self._most_bytes = most_bytes
        self._lanes: dict[str | None, _Lane] = {}
        # Errors name lanes on which nothing ever ran, as many as a client likes.
        self._lost_lanes: dict[str | None, None] = {}
        """Those that had but errors and lost them all."""
        self._has_lost_more = False
        """Whether there were more of them."""
        self._continued: list[str] = []
        """Responses that the client named and before which nothing was forgotten yet."""
        self._added = 0
        self.bytes = 0
        """What the entries take, about."""

    def __len__(self) -> int:
        return sum(len(lane.entries) for lane in self._lanes.values())

    def add(self, event: Outgoing, response_id: str | None = None) -> None:
        """Keep an event.

        Args:
            event: The event; a message is copied.
            response_id: The response in whose sequence it has its number; None when the event has
                no place in a sequence, whatever its number says.
        """
        kept: Delta | bytes
        if isinstance(event, Delta):
            lane_name, kept = event.part.stream_id, event
            size = event.text.__sizeof__() + _OVERHEAD
        else:
            lane_name = event.stream_id if event.HasField("stream_id") else None
            kept = event.SerializeToString()
            size = len(kept) + _OVERHEAD
        number = None if response_id is None else event.sequence_number
        lane = self._lanes.get(lane_name)
        if lane is None:
            lane = self._lanes[lane_name] = _Lane(has_lost=lane_name in self._lost_lanes)
            self._lost_lanes.pop(lane_name, None)
        lane.add(_Entry(self._added, response_id, number, kept, size))
        self._added += 1
        self.bytes += size
        if self.bytes > self._most_bytes:
            self.tidy()
        while self.bytes > self._most_bytes:
            name, oldest = self._oldest()
            self.bytes -= oldest.drop()
            if oldest.is_blank:
                self._forget(name)

    def after(self, last_seen: Iterable[Seen]) -> list[Outgoing] | Gap:
        """Return what a client has missed, in the order in which it was added.

        Args:
            last_seen: Where the client stands on each lane. On a lane that is not named it has
                seen nothing, but for what it proved to know. A number that was never given
                counts as the response's newest.

        Returns:
            The events, or a gap when one of them is no longer kept. They stay in the log.
        """
        self.tidy()
        if self._has_lost_more:
            return Gap(None)
        for name in self._lost_lanes:
            return Gap(name)
        missed: list[_Entry] = []
        by_lane = {seen.lane: seen for seen in last_seen}
        for name, lane in self._lanes.items():
            seen = by_lane.pop(name, None)
            start = lane.start(seen)
            if start is None:
                return Gap(name)
            missed += list(lane.entries)[start:]
        if by_lane:  # lanes on which nothing was ever sent: no state of this log
            return Gap(next(iter(by_lane)))
        missed.sort(key=attrgetter("position"))
        return [_event_of(entry) for entry in missed]

    def continued(self, response_id: str) -> None:
        """Note that the client named this response: it has seen all that came before on its lane.

        Its own events stay, because a client may continue a response that it has not read to the
        end. The others go with the next `tidy`: to drop a long answer takes its time.
        """
        self._continued.append(response_id)

    def tidy(self) -> None:
        """Drop what the client has proved to have seen; nothing is lost before that is gone."""
        continued, self._continued = self._continued, []
        for response_id in continued:
            for lane in self._lanes.values():
                self.bytes -= lane.trim(response_id)

    def answered(self, lane_name: str | None) -> None:
        """Note that the client answered a pause of this lane: it has seen all but the newest."""
        lane = self._lanes.get(lane_name)
        if lane is not None:
            self.bytes -= lane.trim_to_newest()

    def _oldest(self) -> tuple[str | None, _Lane]:
        """Return the lane with the oldest entry; there is an entry."""
        if len(self._lanes) == 1:
            return next(iter(self._lanes.items()))
        return min(
            (named for named in self._lanes.items() if named[1].entries),
            key=lambda named: named[1].entries[0].position,
        )

    def _forget(self, name: str | None) -> None:
        """Keep of a lane only that it lost something."""
        del self._lanes[name]
        if len(self._lost_lanes) < _MOST_LOST_LANES:
            self._lost_lanes[name] = None
        else:
            self._has_lost_more = True


class _Lane:
    """The entries of one lane, oldest first."""

    __slots__ = ("_begins", "_has_lost", "_has_lost_unnumbered", "_removed", "entries")

    def __init__(self, *, has_lost: bool) -> None:
        self.entries: deque[_Entry] = deque()
        self._begins: deque[tuple[str, int]] = deque()
        """Responses that may have entries, with the position of the first."""
        self._removed: tuple[str, int] | None = None
        """Response and number of the last numbered entry that was removed."""
        self._has_lost = has_lost
        """Whether entries were removed that the client did not prove to know."""
        self._has_lost_unnumbered = False
        """Whether one of them had its place behind the last numbered one."""

    @property
    def is_blank(self) -> bool:
        """Whether it has nothing, and never had anything with a number."""
        return not self.entries and not self._begins

    def add(self, entry: _Entry) -> None:
        self.entries.append(entry)
        response_id = entry.response_id
        if response_id is not None:
            if not self._begins or self._begins[-1][0] != response_id:
                self._begins.append((response_id, entry.position))

    def drop(self) -> int:
        """Remove the oldest entry for lack of room; return its bytes."""
        entry = self._remove()
        self._has_lost = True
        if entry.number is None:
            self._has_lost_unnumbered = True
        return entry.size

    def trim(self, response_id: str) -> int:
        """Remove what is older than the response, if it is one of this lane; return the bytes."""
        begins = [position for known, position in self._begins if known == response_id]
        if not begins:
            return 0
        freed = 0
        while self.entries and self.entries[0].position < begins[0]:
            freed += self._remove().size
        if self.entries and self.entries[0].position == begins[0]:
            self._has_lost = False
        return freed

    def trim_to_newest(self) -> int:
        """Remove all entries but the newest; return the bytes."""
        freed = 0
        while len(self.entries) > 1:
            freed += self._remove().size
        self._has_lost = False
        return freed

    def _remove(self) -> _Entry:
        entry = self.entries.popleft()
        if entry.response_id is not None and entry.number is not None:
            self._removed = (entry.response_id, entry.number)
            self._has_lost_unnumbered = False
        if len(self._begins) > 1 and self._begins[1][1] <= entry.position:
            self._begins.popleft()
        return entry

    def start(self, seen: Seen | None) -> int | None:
        """Return the index of the first entry behind `seen`, None when one is missing."""
        if seen is None:
            return None if self._has_lost else 0
        for index in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[index]
            if entry.response_id == seen.response_id and entry.number is not None:
                if entry.number <= seen.number:
                    return index + 1
        if self._removed is None or self._has_lost_unnumbered:
            return None
        response_id, number = self._removed
        return 0 if response_id == seen.response_id and seen.number >= number else None


def _event_of(entry: _Entry) -> Outgoing:
    if isinstance(entry.event, Delta):
        return entry.event
    return ServerEvent.FromString(entry.event)
