"""Opening a session explicitly: answers to `turnwire.session.start` and `.resume`."""

from __future__ import annotations

from turnwire.v1 import client_event_pb2, error_pb2
from turnwire_server.session.errors import Rejection

__all__ = ["NOT_RESUMED", "check_start"]

NOT_RESUMED = Rejection(
    error_pb2.ERROR_REASON_SESSION_NOT_FOUND,
    "No session can be resumed with this id and token.",
    param="session_id",
)
"""The answer to a `turnwire.session.resume`."""


def check_start(
    start: client_event_pb2.TurnwireSessionStart, *, is_first: bool
) -> Rejection | None:
    """Check a `turnwire.session.start`, which may only be the first event of a connection."""
    if not is_first:
        return Rejection(
            error_pb2.ERROR_REASON_INVALID_VALUE,
            "turnwire.session.start must be the first event of a connection.",
            param="type",
        )
    if start.resume:
        return Rejection(
            error_pb2.ERROR_REASON_UNSUPPORTED_VALUE,
            "This server does not resume sessions yet.",
            param="resume",
        )
    return None
