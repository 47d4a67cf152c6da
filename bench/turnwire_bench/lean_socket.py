"""A WebSocket client that costs next to nothing, so that a load generator is not the bottleneck.

It speaks what a server of this project sends: unfragmented frames without extensions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

__all__ = ["LeanSocket"]

_TEXT: Final = 0x81
_CLOSE: Final = 0x88
_PING: Final = 0x89
_PONG: Final = 0x8A
_KEY: Final = "dHVybndpcmUtYmVuY2gtMQ=="
_NO_MASK: Final = b"\0\0\0\0"
"""Clients must mask; with this key the payload stays as it is."""


class LeanSocket(asyncio.Protocol):
    """One WebSocket. `on_message` is called with each text message, as bytes."""

    def __init__(self, port: int, path: str, on_message: Callable[[bytes], None]) -> None:
        """Speak to `path` at `port` of this machine once it is connected."""
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {_KEY}\r\n"
            "\r\n"
        ).encode()
        self._on_message = on_message
        self._data = bytearray()
        self._is_open = False
        self.transport: asyncio.Transport
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        """Done when the handshake is; an error when it was refused."""
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when the connection is gone."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Shake hands."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("the WebSocket was refused"))
        if not self.closed.done():
            self.closed.set_result(None)

    def send(self, message: bytes) -> None:
        """Send a text message."""
        self._frame(_TEXT, message)

    def close(self) -> None:
        """Say good-bye; the server closes the connection."""
        self._frame(_CLOSE, b"\x03\xe8")

    def data_received(self, data: bytes) -> None:
        """Take frames apart."""
        buffer = self._data
        buffer += data
        if not self._is_open:
            head, ended, rest = bytes(buffer).partition(b"\r\n\r\n")
            if not ended:
                return
            if b" 101 " not in head.partition(b"\r\n")[0]:
                self.transport.abort()
                return
            self._is_open = True
            buffer[:] = rest
            self.opened.set_result(None)
        position, end = 0, len(buffer)
        while end - position >= 2:
            kind, size = buffer[position], buffer[position + 1]
            start = position + 2
            if size == 126:
                size, start = int.from_bytes(buffer[start : start + 2], "big"), start + 2
            elif size == 127:
                size, start = int.from_bytes(buffer[start : start + 8], "big"), start + 8
            if end < start + size:
                break
            payload = bytes(buffer[start : start + size])
            position = start + size
            if kind == _TEXT:
                self._on_message(payload)
            elif kind == _PING:
                self._frame(_PONG, payload)
            elif kind == _CLOSE:
                self.transport.close()
        del buffer[:position]

    def _frame(self, kind: int, payload: bytes) -> None:
        size = len(payload)
        if size < 126:
            head = bytes((kind, 0x80 | size))
        elif size < 1 << 16:
            head = bytes((kind, 0x80 | 126)) + size.to_bytes(2, "big")
        else:
            head = bytes((kind, 0x80 | 127)) + size.to_bytes(8, "big")
        self.transport.write(b"%b%b%b" % (head, _NO_MASK, payload))
