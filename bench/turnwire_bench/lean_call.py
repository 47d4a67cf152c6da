"""A gRPC client of one stream that costs next to nothing: HTTP/2 by hand, messages as bytes.

It honours the server's flow control, settings and pings; it reads no headers, so a call that the
server refuses is a call that ended. For load generators only.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final, cast

__all__ = ["LeanCall"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM: Final = 0x1
_ACK: Final = 0x1
_END_HEADERS: Final = 0x4
_INITIAL_WINDOW: Final = 4
_DEFAULT_WINDOW: Final = 65_535
_LARGEST_WINDOW: Final = (1 << 31) - 1
_LARGEST_FRAME: Final = 16_384
_STREAM: Final = 1
_FRAME_HEAD: Final = 9
_MESSAGE_HEAD: Final = 5


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">BHBBI", 0, len(payload), kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """Return a header field as HPACK writes it without tables; both are shorter than 127 bytes."""
    return b"\0%c%b%c%b" % (len(name), name.encode(), len(value), value.encode())


class LeanCall(asyncio.Protocol):
    """One connection with one stream. `on_message` is called with each message's bytes."""

    def __init__(
        self,
        port: int,
        method: str,
        on_message: Callable[[bytes], None],
        *,
        window: int = _LARGEST_WINDOW,
    ) -> None:
        """Call `method` at `port` of this machine once it is connected.

        Args:
            port: Where.
            method: Path of the method.
            on_message: Called with each message.
            window: Bytes that the server may send in all; no more are granted.
        """
        self._on_message = on_message
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": f"127.0.0.1:{port}",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(_literal(name, value) for name, value in headers.items())
        settings = struct.pack(">HI", _INITIAL_WINDOW, window)
        more = min(window, _LARGEST_WINDOW) - _DEFAULT_WINDOW
        self._opening = _PREFACE + _frame(_SETTINGS, 0, 0, settings)
        if more > 0:
            self._opening += _frame(_WINDOW, 0, 0, struct.pack(">I", more))
        self._opening += _frame(_HEADERS, _END_HEADERS, _STREAM, block)
        self._data = bytearray()
        self._messages = bytearray()
        self._waiting = bytearray()
        self._connection_window = _DEFAULT_WINDOW
        self._stream_window = self._initial_window = _DEFAULT_WINDOW
        self.transport: asyncio.Transport
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        """Done when the server speaks HTTP/2."""
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when the stream or the connection is gone."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the stream."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._opening)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("the connection was refused"))
        self._ended()

    def send(self, message: bytes) -> None:
        """Send a message, as soon as the server's windows have room for it."""
        self._waiting += struct.pack(">BI", 0, len(message)) + message
        self._flush()

    def close(self) -> None:
        """Half-close; the server ends the stream."""
        self.transport.write(_frame(_DATA, _END_STREAM, _STREAM, b""))

    def data_received(self, data: bytes) -> None:
        """Take frames apart."""
        buffer = self._data
        buffer += data
        position, end = 0, len(buffer)
        while end - position >= _FRAME_HEAD:
            size = int.from_bytes(buffer[position : position + 3], "big")
            start = position + _FRAME_HEAD
            if end < start + size:
                break
            kind, flags = buffer[position + 3], buffer[position + 4]
            position = start + size
            if kind == _DATA:
                self._messages += buffer[start:position]
                self._take_messages()
            else:
                stream = int.from_bytes(buffer[start - 4 : start], "big")
                self._control(kind, flags, stream, bytes(buffer[start:position]))
            if flags & _END_STREAM and kind in (_DATA, _HEADERS):
                self._ended()
        del buffer[:position]

    def _take_messages(self) -> None:
        buffer = self._messages
        position, end = 0, len(buffer)
        while end - position >= _MESSAGE_HEAD:
            start = position + _MESSAGE_HEAD
            stop = start + int.from_bytes(buffer[position + 1 : start], "big")
            if end < stop:
                break
            self._on_message(bytes(buffer[start:stop]))
            position = stop
        del buffer[:position]

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for number, value in struct.iter_unpack(">HI", payload):
                if number == _INITIAL_WINDOW:
                    self._stream_window += value - self._initial_window
                    self._initial_window = value
            self.transport.write(_frame(_SETTINGS, _ACK, 0, b""))
            if not self.opened.done():
                self.opened.set_result(None)
            self._flush()
        elif kind == _PING and not flags & _ACK:
            self.transport.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW:
            more = int.from_bytes(payload, "big")
            if stream:
                self._stream_window += more
            else:
                self._connection_window += more
            self._flush()
        elif kind in (_RESET, _GO_AWAY):
            self._ended()

    def _flush(self) -> None:
        waiting = self._waiting
        while waiting:
            size = min(len(waiting), self._connection_window, self._stream_window, _LARGEST_FRAME)
            if size <= 0:
                return
            self.transport.write(_frame(_DATA, 0, _STREAM, bytes(waiting[:size])))
            del waiting[:size]
            self._connection_window -= size
            self._stream_window -= size

    def _ended(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
