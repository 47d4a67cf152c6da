"""A TCP relay that can reset or stall what goes through it."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

__all__ = ["TcpProxy"]

_CHUNK = 65_536
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: closing resets the connection."""


class TcpProxy:
    """Relays connections from a port of its own to one of the server."""

    def __init__(self, server_port: int) -> None:
        """Make a relay to a port of this machine; `start` opens it."""
        self._server_port = server_port
        self._listener: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0
        """Where clients connect, once started."""

    async def start(self) -> None:
        """Listen on a free port."""
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Reset what is open and listen no more."""
        if self._listener is not None:
            self._listener.close()
        self._flows.set()
        self.cut()
        for pipe in list(self._pipes):
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection, on both sides."""
        for writer in list(self._writers):
            _reset(writer)
        self._writers.clear()

    async def stall(self, seconds: float) -> None:
        """Pass nothing on, in both directions, for a while."""
        self._flows.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            away = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            _reset(writer)  # the server is down: as it would be without a relay
            return
        self._writers |= {writer, away[1]}
        tasks = [
            asyncio.create_task(self._pipe(reader, away[1])),
            asyncio.create_task(self._pipe(away[0], writer)),
        ]
        self._pipes.update(tasks)
        for task in tasks:
            task.add_done_callback(self._pipes.discard)
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)
        for each in (writer, away[1]):
            self._writers.discard(each)
            each.close()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
        except (ConnectionError, OSError):
            _reset(writer)  # a server that was killed resets: its clients must see that


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
