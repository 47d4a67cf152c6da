"""A socket that carries frames, seen from an event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

from turnwire_server.adapters.engines.child_frames import FrameReader, pack_frame

__all__ = ["FrameChannel"]

_RECEIVE_BYTES: Final = 256 * 1024


class FrameChannel:
    """One socket. Sending never blocks; receiving calls back."""

    def __init__(
        self,
        *,
        on_message: Callable[[tuple[Any, ...]], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Prepare; `open` begins.

        Args:
            on_message: Called with each message, in order.
            on_lost: Called once when the other end was closed, unless `close` came first.
        """
        self._on_message = on_message
        self._on_lost = on_lost
        self._frames = FrameReader()
        self._unsent = bytearray()
        self._socket: socket.socket | None = None
        self._loop = asyncio.get_running_loop()

    def open(self, ours: socket.socket) -> None:
        """Take a connected socket, which is closed with this."""
        ours.setblocking(False)
        self._socket = ours
        self._loop.add_reader(ours.fileno(), self._receive)

    @property
    def is_closed(self) -> bool:
        """Whether there is no socket, or none any more."""
        return self._socket is None

    def send(self, *message: object) -> None:
        """Send `message`; kept and sent later when the other end does not read fast enough.

        One that is gone gets nothing; `on_lost` says so.
        """
        ours = self._socket
        if ours is None:
            return
        data = pack_frame(*message)
        sent = 0
        if not self._unsent:
            try:
                sent = ours.send(data)
            except BlockingIOError:
                pass
            except OSError:
                return  # the reader notices too, and it has what the other end said before
        if sent < len(data):
            if not self._unsent:
                self._loop.add_writer(ours.fileno(), self._send_rest)
            self._unsent += data[sent:]

    def send_socket(self, what: bytes, theirs: socket.socket) -> None:
        """Send a byte, and with it a socket, which both ends then have.

        Raises:
            OSError: It cannot be sent now.
        """
        if self._socket is None or self._unsent:
            raise BlockingIOError
        socket.send_fds(self._socket, [what], [theirs.fileno()])

    def close(self) -> None:
        """Close the socket. Idempotent."""
        ours = self.detach()
        if ours is not None:
            ours.close()

    def detach(self) -> socket.socket | None:
        """Give the socket back, open, None when there is none. What was not sent is dropped."""
        ours, self._socket = self._socket, None
        if ours is not None:
            self._loop.remove_reader(ours.fileno())
            self._loop.remove_writer(ours.fileno())
        self._unsent.clear()
        return ours

    def _receive(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._on_lost()
            return
        for message in list(self._frames.feed(data)):
            self._on_message(message)

    def _send_rest(self) -> None:
        if self._socket is None:
            return
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())
