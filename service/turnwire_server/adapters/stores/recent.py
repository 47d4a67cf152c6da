"""Recent responses in memory, in front of a database, bounded in bytes.

Conversations share structure, and so does what they take: a segment counts once, however many
entries continue it, and counts until the last of them is gone, whether or not it is an entry of
its own any more.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from turnwire_server.adapters.stores.segments import Segment
from turnwire_server.ports.store import StoredResponse

__all__ = ["Recent", "RecentResponses"]

_ENTRY_BYTES: Final = 1024


@dataclass(slots=True)
class Recent:
    """One response."""

    record: StoredResponse
    segment: Segment
    verified_at: float
    """Seconds on a monotonic clock when it was known to be in the database."""
    size: int
    """Bytes beside those of the segment."""


class RecentResponses:
    """The responses used last."""

    def __init__(self, max_bytes: int) -> None:
        """Make an empty cache of at most `max_bytes`."""
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, Recent] = OrderedDict()
        self._bytes = 0

    @property
    def byte_count(self) -> int:
        """About how many bytes are held."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, response_id: str) -> Recent | None:
        """Return the response if it is here."""
        entry = self._entries.get(response_id)
        if entry is not None:
            self._entries.move_to_end(response_id)
        return entry

    def put(self, record: StoredResponse, segment: Segment, *, verified_at: float) -> None:
        """Hold a response; those used least recently go when there is no room."""
        self.drop(record.response_id)
        size = _ENTRY_BYTES + len(record.response) + sum(map(len, record.input_items))
        self._entries[record.response_id] = Recent(record, segment, verified_at, size)
        self._bytes += size
        self._hold(segment)
        while self._bytes > self._max_bytes and self._entries:
            self.drop(next(iter(self._entries)))

    def drop(self, response_id: str) -> None:
        """Forget a response."""
        entry = self._entries.pop(response_id, None)
        if entry is not None:
            self._bytes -= entry.size
            self._let_go(entry.segment)

    def clear(self) -> None:
        """Forget everything."""
        while self._entries:
            self.drop(next(iter(self._entries)))

    def _hold(self, segment: Segment) -> None:
        held: Segment | None = segment
        while held is not None:
            held.holders += 1
            if held.holders > 1:
                return
            self._bytes += held.size
            held = held.parent

    def _let_go(self, segment: Segment) -> None:
        held: Segment | None = segment
        while held is not None:
            held.holders -= 1
            if held.holders:
                return
            self._bytes -= held.size
            held = held.parent
