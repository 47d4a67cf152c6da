"""A raw HTTP/2 client: just enough to see what a server does with pings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

__all__ = ["ACK", "GOAWAY", "PING", "SETTINGS", "Frame", "RawHttp2", "raw_http2"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1


@dataclass(frozen=True, slots=True)
class Frame:
    """One HTTP/2 frame (RFC 9113, 4.1)."""

    kind: int
    flags: int
    payload: bytes


class RawHttp2:
    """A connection without streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, kind: int, payload: bytes = b"", flags: int = 0) -> None:
        self._writer.write(len(payload).to_bytes(3, "big") + bytes((kind, flags, 0, 0, 0, 0)))
        self._writer.write(payload)

    async def receive(self) -> Frame:
        """Return the next frame; bounded."""
        async with asyncio.timeout(20):
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
        return Frame(head[3], head[4], payload)

    async def settings(self) -> dict[int, int]:
        """Return the server's settings by identifier."""
        while (frame := await self.receive()).kind != SETTINGS or frame.flags & ACK:
            pass
        pairs = range(0, len(frame.payload), 6)
        return {
            int.from_bytes(frame.payload[at : at + 2], "big"): int.from_bytes(
                frame.payload[at + 2 : at + 6], "big"
            )
            for at in pairs
        }

    async def ping(self, number: int) -> Frame:
        """Ping once and return the answer: the PING with ACK, or a GOAWAY."""
        self.send(PING, number.to_bytes(8, "big"))
        while True:
            frame = await self.receive()
            if frame.kind == GOAWAY or (frame.kind == PING and frame.flags & ACK):
                return frame


@asynccontextmanager
async def raw_http2(port: int) -> AsyncIterator[RawHttp2]:
    """Connect and exchange the preface."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_PREFACE)
    connection = RawHttp2(reader, writer)
    connection.send(SETTINGS)
    try:
        yield connection
    finally:
        writer.close()
