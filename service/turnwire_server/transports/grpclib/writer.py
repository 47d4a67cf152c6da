"""One write per connection and iteration of the loop."""

from __future__ import annotations

import asyncio
from typing import Any, Final

__all__ = ["TickWriter"]

_FLUSH_BYTES: Final = 262_144
"""From here on the transport is told at once, so that it can say that it is full."""


class TickWriter:
    """Stands before a transport and collects what is written to it until the loop's next turn.

    A write costs about the same for one frame as for a hundred, so what all calls of a connection
    have to say in one iteration leaves together, in order.
    """

    __slots__ = (
        "_call_soon",
        "_chunks",
        "_is_ended",
        "_size",
        "_transport",
        "calls",
        "frames_sent",
        "is_writable",
    )

    def __init__(self, transport: asyncio.Transport) -> None:
        """Collect for `transport`; call it inside the running loop."""
        self._transport = transport
        self._call_soon = asyncio.get_running_loop().call_soon
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_ended = False
        self.frames_sent = 0
        """Frames of calls, not answers to the peer's own."""
        self.is_writable = True
        """Whether the transport's own buffer has room."""
        self.calls = 0
        """Calls that write here now."""

    def write(self, data: bytes) -> None:
        """Write `data` after what was written before, in the loop's next turn."""
        chunks = self._chunks
        if not chunks:
            self._call_soon(self.flush)
        chunks.append(data)
        self._size += len(data)
        if self._size >= _FLUSH_BYTES:
            self.flush()

    def write_now(self, data: bytes) -> None:
        """Write `data` after what was written before, at once: nobody else has anything to say."""
        if self._size:
            self._chunks.append(data)
            self.flush()
        elif not self._is_ended and not self._transport.is_closing():
            self._transport.write(data)

    def flush(self) -> None:
        """Hand everything to the transport."""
        chunks = self._chunks
        if not chunks:
            return
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._size = 0
        if not self._is_ended and not self._transport.is_closing():
            self._transport.write(data)

    def backlog_bytes(self) -> int:
        """Return how much the peer has not taken yet."""
        return self._size + self._transport.get_write_buffer_size()

    def write_eof(self) -> None:
        """Write no more; close at once where the transport cannot say so (TLS)."""
        self.flush()
        if self._is_ended or self._transport.is_closing():
            return
        self._is_ended = True
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
                return
        except OSError:
            pass  # The peer was faster.
        self._transport.close()

    def close(self) -> None:
        """Close when everything is written."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._chunks.clear()
        self._size = 0
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether it is closed or about to be."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the transport knows."""
        return self._transport.get_extra_info(name, default)
