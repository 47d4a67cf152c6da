"""A TCP proxy that cuts a connection exactly behind a given frame of the server, or before one of
the client's: it reads the frames of WebSocket and of HTTP/2, and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

__all__ = ["Cut", "CuttingProxy", "cutting_proxy"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA = 0
_TEXT = 1


@dataclass(slots=True)
class Cut:
    """Where to cut: counted over all connections of the proxy."""

    side: Literal["server", "client"]
    """Whose frames are counted."""
    frames: int
    """After so many frames of the server's; before this one of the client's, counted from 1."""


@dataclass(eq=False)
class _Connection:
    """One connection, in both directions."""

    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    flowing: asyncio.Event
    is_plain: bool = False
    """Whether it carries HTTP that is no WebSocket: nothing of it is counted."""


class CuttingProxy:
    """Stands between clients and one server."""

    def __init__(self, upstream_port: int, *, wire: str) -> None:
        self.port = 0
        self.cut: Cut | None = None
        """The next cut; None to let everything through."""
        self.cuts = 0
        """How often it cut."""
        self.connections = 0
        """How many there were."""
        self.upstream_port = upstream_port
        """Where the server listens; of connections that come."""
        self.before_cut: Callable[[], Awaitable[None]] | None = None
        """Awaited before a cut behind a frame of the server's, which is written by then."""
        self.on_cut: Callable[[], None] | None = None
        """Called with each cut."""
        self._split = _http2_frame if wire == "grpc" else _websocket_frame
        self._counted = {"server": 0, "client": 0}
        self._open: set[_Connection] = set()

    def arm(self, cut: Cut) -> None:
        """Cut there, counted from now on."""
        self._counted = {"server": 0, "client": 0}
        self.cut = cut

    def stall(self) -> None:
        """Let nothing more through on the connections that there are, though nobody hangs up."""
        for connection in self._open:
            connection.flowing.clear()

    def hang_up(self) -> None:
        """Reset all connections, on both sides."""
        for connection in self._open:
            connection.flowing.set()
            for writer in connection.writers:
                writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        self.connections += 1
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection((writer, up_writer), asyncio.Event())
        connection.flowing.set()
        self._open.add(connection)
        try:
            await asyncio.gather(
                self._pump(connection, reader, up_writer, "client"),
                self._pump(connection, up_reader, writer, "server"),
            )
        except OSError:
            pass
        finally:
            self._open.discard(connection)
            for each in connection.writers:
                each.transport.abort()

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        side: Literal["server", "client"],
    ) -> None:
        buffer = bytearray()
        is_first = True
        while data := await reader.read(65536):
            buffer += data
            while (size := self._size(connection, buffer, is_first)) > 0:
                frame = bytes(buffer[:size])
                del buffer[:size]
                if is_first and side == "client" and self._split is _websocket_frame:
                    connection.is_plain = b"upgrade: websocket" not in frame.lower()
                counts = not (is_first or connection.is_plain) and self._counts(frame)
                is_first = False
                self._counted[side] += counts
                is_due = counts and self._is_due(side)
                if is_due and side == "client":
                    self._strike()
                    return
                await connection.flowing.wait()
                writer.write(frame)
                if is_due:
                    await writer.drain()
                    if self.before_cut is not None:
                        await self.before_cut()
                    self._strike()
                    return
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    def _size(self, connection: _Connection, buffer: bytearray, is_first: bool) -> int:
        return len(buffer) if connection.is_plain else self._split(buffer, is_first)

    def _counts(self, frame: bytes) -> bool:
        """Return whether a frame carries events."""
        if self._split is _websocket_frame:
            return frame[0] & 0x0F == _TEXT
        return frame[3] == _DATA and len(frame) > 9 + 5  # A message of its own bytes.

    def _is_due(self, side: str) -> bool:
        cut = self.cut
        return cut is not None and cut.side == side and self._counted[side] == cut.frames

    def _strike(self) -> None:
        self.cut = None
        self.cuts += 1
        if self.on_cut is not None:
            self.on_cut()
        loop = asyncio.get_running_loop()
        # What was written before is on its way first.
        loop.call_soon(self.hang_up)


def _websocket_frame(buffer: bytearray, is_first: bool) -> int:
    """Return the size of the first frame, or of the HTTP head in front of them; 0: not whole."""
    if is_first:
        end = buffer.find(b"\r\n\r\n")
        return 0 if end < 0 else end + 4
    if len(buffer) < 2:
        return 0
    length, start = buffer[1] & 0x7F, 2
    if length == 126:
        length, start = int.from_bytes(buffer[2:4]), 4
    elif length == 127:
        length, start = int.from_bytes(buffer[2:10]), 10
    size = start + length + (4 if buffer[1] & 0x80 else 0)
    return size if len(buffer) >= max(size, start) else 0


def _http2_frame(buffer: bytearray, is_first: bool) -> int:
    if is_first and buffer.startswith(_PREFACE[: len(buffer)]):
        return len(_PREFACE) if len(buffer) >= len(_PREFACE) else 0
    if len(buffer) < 9:
        return 0
    size = 9 + int.from_bytes(buffer[:3])
    return size if len(buffer) >= size else 0


@asynccontextmanager
async def cutting_proxy(upstream_port: int, *, wire: str) -> AsyncIterator[CuttingProxy]:
    """Run a proxy in front of a port of this host.

    Args:
        upstream_port: Where the server listens.
        wire: `grpc` or `websocket`.
    """
    proxy = CuttingProxy(upstream_port, wire=wire)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.hang_up()
        await server.wait_closed()
