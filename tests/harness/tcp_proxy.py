"""A TCP relay between a client and a server that loses connections as networks do."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

__all__ = ["TcpProxy", "tcp_proxy"]

_CHUNK = 65_536
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: closing resets."""


class TcpProxy:
    """Relays to one port of this machine."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._writers: set[asyncio.StreamWriter] = set()
        self.opened: set[asyncio.StreamWriter] = set()
        """All that were ever opened; closed with the relay."""
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0
        """Where clients connect."""

    @property
    def open(self) -> int:
        """Connections that are relayed now."""
        return len(self._writers) // 2

    def cut(self) -> None:
        """Lose every connection: both sides get a reset."""
        for writer in self._writers:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        self._writers.clear()

    def swallow(self) -> None:
        """Be a black hole from now on: connections stand and nothing comes through."""
        self._flows.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until a side is gone."""
        away_reader, away_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        self.opened.add(away_writer)
        self._writers |= {writer, away_writer}
        pipes = [
            asyncio.create_task(self._pipe(reader, away_writer)),
            asyncio.create_task(self._pipe(away_reader, writer)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.wait(pipes)
            for each in (writer, away_writer):
                self._writers.discard(each)
                each.close()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def tcp_proxy(server_port: int) -> AsyncIterator[TcpProxy]:
    """Run a relay in front of a port of this machine."""
    proxy = TcpProxy(server_port)
    relays: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.opened.add(writer)
        relay = asyncio.create_task(proxy.serve(reader, writer))
        relays.add(relay)
        relay.add_done_callback(relays.discard)

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
        for relay in list(relays):
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        for writer in proxy.opened:
            writer.transport.abort()
        await asyncio.gather(
            *(writer.wait_closed() for writer in proxy.opened), return_exceptions=True
        )
