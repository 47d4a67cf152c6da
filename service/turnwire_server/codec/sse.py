"""Frames of server-sent events."""

from __future__ import annotations

__all__ = ["SSE_DONE", "sse_comment", "sse_event"]

SSE_DONE = b"data: [DONE]\n\n"
"""What ends a stream."""


def sse_event(type: str, data: bytes) -> bytes:
    """Return one event, to be written at once: some parsers lose an event cut before its end.

    Args:
        type: The event's public `type`.
        data: Its public JSON, in one line.
    """
    return b"event: %b\ndata: %b\n\n" % (type.encode(), data)


def sse_comment(text: str = "") -> bytes:
    """Return a comment: it shows that the server lives and is no event.

    Args:
        text: One line.
    """
    return b": %b\n\n" % text.encode()
