"""A gRPC client that costs next to nothing: HTTP/2 by hand, messages as bytes.

It honours the server's flow control, settings and pings; it reads no headers, so a call that the
server refuses is a call that ended. For load generators only.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final, cast

__all__ = ["LeanCall", "LeanConnection"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM: Final = 0x1
_ACK: Final = 0x1
_END_HEADERS: Final = 0x4
_INITIAL_WINDOW: Final = 4
_DEFAULT_WINDOW: Final = 65_535
_LARGEST_WINDOW: Final = (1 << 31) - 1
_LARGEST_FRAME: Final = 16_384
_FRAME_HEAD: Final = 9
_MESSAGE_HEAD: Final = 5


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">BHBBI", 0, len(payload), kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """Return a header field as HPACK writes it without tables; both are shorter than 127 bytes."""
    return b"\0%c%b%c%b" % (len(name), name.encode(), len(value), value.encode())


class LeanCall:
    """One stream of a connection. `on_message` is called with each message's bytes."""

    def __init__(
        self,
        connection: LeanConnection,
        number: int,
        on_message: Callable[[bytes], None],
    ) -> None:
        """Be stream `number`; only the connection makes one."""
        self._connection = connection
        self._number = number
        self._on_message = on_message
        self._messages = bytearray()
        self._waiting = bytearray()
        self._window = connection.initial_window
        self.opened = connection.opened
        """Done when the server speaks HTTP/2."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the stream or the connection is gone."""

    @property
    def transport(self) -> asyncio.Transport:
        """The connection's, which other calls may share."""
        return self._connection.transport

    def send(self, message: bytes) -> None:
        """Send a message, as soon as the server's windows have room for it."""
        self._waiting += struct.pack(">BI", 0, len(message)) + message
        self.flush()

    def close(self) -> None:
        """Half-close; the server ends the stream."""
        self.transport.write(_frame(_DATA, _END_STREAM, self._number, b""))

    # For the connection.

    def take(self, data: bytes | bytearray) -> None:
        """Take messages apart."""
        buffer = self._messages
        buffer += data
        position, end = 0, len(buffer)
        while end - position >= _MESSAGE_HEAD:
            start = position + _MESSAGE_HEAD
            stop = start + int.from_bytes(buffer[position + 1 : start], "big")
            if end < stop:
                break
            self._on_message(bytes(buffer[start:stop]))
            position = stop
        del buffer[:position]

    def grant(self, more: int) -> None:
        """Widen the stream's window, or narrow it."""
        self._window += more

    def flush(self) -> None:
        """Send what the windows have room for."""
        waiting = self._waiting
        while waiting:
            size = min(len(waiting), self._connection.window, self._window, _LARGEST_FRAME)
            if size <= 0:
                return
            self.transport.write(_frame(_DATA, 0, self._number, bytes(waiting[:size])))
            del waiting[:size]
            self._connection.window -= size
            self._window -= size

    def end(self) -> None:
        """Note the end."""
        if not self.closed.done():
            self.closed.set_result(None)


class LeanConnection(asyncio.Protocol):
    """One connection with any number of calls."""

    def __init__(self, port: int, *, window: int = _LARGEST_WINDOW) -> None:
        """Speak to `port` of this machine once it is connected.

        Args:
            port: Where.
            window: Bytes that the server may send in all, and on each stream; no more are granted.
        """
        self._authority = f"127.0.0.1:{port}"
        settings = struct.pack(">HI", _INITIAL_WINDOW, window)
        more = min(window, _LARGEST_WINDOW) - _DEFAULT_WINDOW
        # Until it is connected; then what is written first goes out as one.
        self._opening: bytes = _PREFACE + _frame(_SETTINGS, 0, 0, settings)
        if more > 0:
            self._opening += _frame(_WINDOW, 0, 0, struct.pack(">I", more))
        self._data = bytearray()
        self._calls: dict[int, LeanCall] = {}
        self._next = 1
        self.window = self.initial_window = _DEFAULT_WINDOW
        """Bytes that may be sent on all streams together, and on a new one."""
        self.transport: asyncio.Transport
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the server speaks HTTP/2."""

    def call(self, method: str, on_message: Callable[[bytes], None]) -> LeanCall:
        """Open a stream, also before the connection is made.

        Args:
            method: Path of the method.
            on_message: Called with each message.
        """
        call = self._calls[self._next] = LeanCall(self, self._next, on_message)
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": self._authority,
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(_literal(name, value) for name, value in headers.items())
        frame = _frame(_HEADERS, _END_HEADERS, self._next, block)
        self._next += 2
        if self._opening:
            self._opening += frame
        else:
            self.transport.write(frame)
        return call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to speak."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._opening)
        self._opening = b""

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("the connection was refused"))
        self._end_all()

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
            call = self._calls.get(int.from_bytes(buffer[start - 4 : start], "big"))
            position = start + size
            if kind == _DATA:
                if call is not None:
                    call.take(buffer[start:position])
            else:
                self._control(kind, flags, call, bytes(buffer[start:position]))
            if flags & _END_STREAM and kind in (_DATA, _HEADERS) and call is not None:
                call.end()
        del buffer[:position]

    def _control(self, kind: int, flags: int, call: LeanCall | None, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for number, value in struct.iter_unpack(">HI", payload):
                if number == _INITIAL_WINDOW:
                    for each in self._calls.values():
                        each.grant(value - self.initial_window)
                    self.initial_window = value
            self.transport.write(_frame(_SETTINGS, _ACK, 0, b""))
            if not self.opened.done():
                self.opened.set_result(None)
            self._flush_all()
        elif kind == _PING and not flags & _ACK:
            self.transport.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW:
            more = int.from_bytes(payload, "big")
            if call is not None:
                call.grant(more)
                call.flush()
            else:
                self.window += more
                self._flush_all()
        elif kind == _RESET and call is not None:
            call.end()
        elif kind == _GO_AWAY:
            self._end_all()

    def _flush_all(self) -> None:
        for call in self._calls.values():
            call.flush()

    def _end_all(self) -> None:
        for call in self._calls.values():
            call.end()
