"""Opening a session explicitly: what may be said to `turnwire.session.start` and `.resume`."""

from __future__ import annotations

from turnwire.v1 import client_event_pb2, error_pb2
from turnwire_server.session.errors import Rejection, quoted

__all__ = ["NOT_FIRST", "NOT_RESUMED", "TAKEN_OVER", "check_start", "gap"]

NOT_RESUMED = Rejection(
    error_pb2.ERROR_REASON_SESSION_NOT_FOUND,
    "No session can be resumed with this id and token.",
    param="session_id",
)
"""The answer to a resume of a session that is not known, is over, or is another's."""

NOT_FIRST = Rejection(
    error_pb2.ERROR_REASON_INVALID_VALUE,
    "A session is started or resumed by the first event of a connection only.",
    param="type",
)
"""The answer to a start or a resume that comes late."""

TAKEN_OVER = Rejection(
    error_pb2.ERROR_REASON_SESSION_TAKEN_OVER,
    "The session goes on on a newer connection.",
)
"""What the older connection of a session is told."""

_NO_RESUME = Rejection(
    error_pb2.ERROR_REASON_UNSUPPORTED_VALUE,
    "This server does not resume sessions.",
    param="resume",
)


def gap(stream_id: str | None) -> Rejection:
    """Return the answer to a resume that comes too late for the events of a lane."""
    lane = "the default lane" if stream_id is None else f"lane {quoted(stream_id)}"
    return Rejection(
        error_pb2.ERROR_REASON_RESUME_GAP,
        f"Events of {lane} after those that were seen are no longer kept. The session is over.",
        param="last_seen",
    )


def check_start(
    start: client_event_pb2.TurnwireSessionStart, *, is_first: bool, can_resume: bool
) -> Rejection | None:
    """Check a `turnwire.session.start`.

    Args:
        start: The event.
        is_first: Whether nothing came before it.
        can_resume: Whether sessions may outlive their connections here.
    """
    if not is_first:
        return NOT_FIRST
    if start.resume and not can_resume:
        return _NO_RESUME
    return None
