"""Client events with an `event_id` that were accepted: the same id again is the same request.

A create that is over is answered once more by the terminal event that it ended with. Those events
are kept serialized and bounded in bytes; of an older one only the id is remembered.
"""

from __future__ import annotations

from collections import OrderedDict

from turnwire.v1 import error_pb2
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.session.errors import Rejection

__all__ = ["Repeats"]

_TURNED_AWAY = frozenset(
    {
        error_pb2.ERROR_REASON_INVALID_API_KEY,
        error_pb2.ERROR_REASON_RATE_LIMIT_EXCEEDED,
        error_pb2.ERROR_REASON_SERVER_IS_OVERLOADED,
        error_pb2.ERROR_REASON_WEBSOCKET_CONNECTION_LIMIT_REACHED,
    }
)
"""Refusals of the moment: the same create may be sent again, and runs then."""

_NOT_KEPT = Rejection(
    error_pb2.ERROR_REASON_RESPONSE_ALREADY_COMPLETED,
    "The create with this event_id is over and what ended it is no longer kept. It was not run "
    "again.",
    param="event_id",
)


class Repeats:
    """Newest ids of a session, and what ended their creates."""

    __slots__ = ("_bytes", "_ids", "_most_bytes", "_most_ids")

    def __init__(self, most_ids: int, most_bytes: int) -> None:
        """Make an empty memory with these bounds."""
        self._most_ids = most_ids
        self._most_bytes = most_bytes
        self._ids: OrderedDict[str, bytes | None] = OrderedDict()
        """Id -> terminal event; None while under way, `b""` when it is no longer kept."""
        self._bytes = 0

    def __contains__(self, event_id: object) -> bool:
        return event_id in self._ids

    def add(self, event_id: str | None) -> None:
        """Remember the id of an accepted event; None is none."""
        if event_id is None:
            return
        self._ids[event_id] = None
        if len(self._ids) > self._most_ids:
            _, answer = self._ids.popitem(last=False)
            self._bytes -= len(answer or b"")

    def discard(self, event_id: str | None) -> None:
        """Forget an id, if it is there: the event may be sent again and counts."""
        if event_id is not None:
            self._bytes -= len(self._ids.pop(event_id, None) or b"")

    def end(self, event_id: str | None, answer: ServerEvent | None) -> None:
        """Note what ended a create, None when nothing did that could be sent again."""
        if event_id is None or event_id not in self._ids:
            return
        if (
            answer is not None
            and answer.HasField("error")
            and answer.error.error.reason in _TURNED_AWAY
        ):
            del self._ids[event_id]
            return
        kept = b"" if answer is None else answer.SerializeToString()
        self._ids[event_id] = kept
        self._bytes += len(kept)
        for one, older in self._ids.items():
            if self._bytes <= self._most_bytes:
                return
            if older:
                self._bytes -= len(older)
                self._ids[one] = b""

    def answer(self, event_id: str, stream_id: str | None) -> ServerEvent | None:
        """Return what to send to a create that came again, None while it is under way.

        Args:
            event_id: Its id, which is known.
            stream_id: The lane that it names.
        """
        kept = self._ids[event_id]
        if kept is None:
            return None
        return ServerEvent.FromString(kept) if kept else _NOT_KEPT.event(stream_id, event_id)
