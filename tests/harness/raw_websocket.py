"""A WebSocket client that sends bytes as they are."""

from __future__ import annotations

import asyncio

__all__ = ["RawReader", "close_frame", "handshake", "masked"]


class RawReader:
    """A stream reader and the answer to its handshake."""

    def __init__(self, reader: asyncio.StreamReader, answer: bytes) -> None:
        self.stream = reader
        self.answer = answer


async def handshake(port: int, headers: str = "") -> tuple[RawReader, asyncio.StreamWriter]:
    """Open a WebSocket; return both of its ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n" + headers.encode() + b"\r\n"
    )
    async with asyncio.timeout(20):
        answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101 ")
    return RawReader(reader, answer), writer


def masked(payload: bytes, *, opcode: int, final: bool = True, mask: bytes = bytes(4)) -> bytes:
    """Return a client's frame."""
    size = len(payload)
    if size < 126:
        length = bytes((0x80 | size,))
    elif size < 65_536:
        length = bytes((0x80 | 126,)) + size.to_bytes(2)
    else:
        length = bytes((0x80 | 127,)) + size.to_bytes(8)
    body = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)) if any(mask) else payload
    return bytes((0x80 * final | opcode,)) + length + mask + body


async def close_frame(reader: RawReader) -> tuple[int, str]:
    """Read a close frame, which must be the next one; return code and reason."""
    head = await reader.stream.readexactly(2)
    assert head[0] == 0x88
    payload = await reader.stream.readexactly(head[1])
    return int.from_bytes(payload[:2], "big"), payload[2:].decode()
