"""A gRPC client that sends whatever frames a test wants, and sees all answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from harness.wire_servers import CONNECT

__all__ = ["RawGrpc", "message", "raw_grpc"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WAIT_S = 20.0
FrameT = TypeVar("FrameT", bound=Frame)


def message(data: bytes, *, compressed: bool = False) -> bytes:
    """Return a message with its prefix."""
    return bytes((compressed,)) + len(data).to_bytes(4) + data


class RawGrpc:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.encoder = Encoder()
        self._decoder = Decoder()
        self._decoder.max_header_list_size = 1 << 20

    # Out.

    def send(self, *frames: Frame) -> None:
        """Send frames as they are."""
        self._writer.write(b"".join(frame.serialize() for frame in frames))

    def send_bytes(self, data: bytes) -> None:
        """Send what need not be a frame."""
        self._writer.write(data)

    async def flush(self) -> None:
        """Wait until the server takes more."""
        await self._writer.drain()

    def headers(
        self,
        path: str = CONNECT,
        stream_id: int = 1,
        *,
        ends: bool = False,
        more: Iterable[tuple[str, str]] = (),
    ) -> HeadersFrame:
        """Return the frame that opens a call."""
        block = self.encoder.encode(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "test"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                *more,
            ]
        )
        flags = ["END_HEADERS", "END_STREAM"] if ends else ["END_HEADERS"]
        return HeadersFrame(stream_id, block, flags=flags)

    def data(self, data: bytes, stream_id: int = 1, *, ends: bool = False) -> DataFrame:
        """Return a frame of bytes."""
        return DataFrame(stream_id, data, flags=["END_STREAM"] if ends else [])

    # In.

    async def receive(self) -> Frame:
        """Return the next frame, answering pings; bounded.

        Raises:
            ConnectionError: There is none: the server closed the connection.
        """
        async with asyncio.timeout(WAIT_S):
            try:
                head = await self._reader.readexactly(9)
                frame, length = Frame.parse_frame_header(memoryview(head))
                frame.parse_body(memoryview(await self._reader.readexactly(length)))
            except asyncio.IncompleteReadError:
                raise ConnectionResetError("closed by the server") from None
        if isinstance(frame, PingFrame) and "ACK" not in frame.flags:
            self.send(PingFrame(0, frame.opaque_data, flags=["ACK"]))
        return frame

    async def next(self, kind: type[FrameT], stream_id: int | None = None) -> FrameT:
        """Return the next frame of a kind; others are passed over."""
        while True:
            frame = await self.receive()
            if isinstance(frame, kind) and stream_id in (None, frame.stream_id):
                return frame

    async def settings(self) -> dict[int, int]:
        """Return the server's settings."""
        while True:
            frame = await self.next(SettingsFrame)
            if "ACK" not in frame.flags:
                return dict(frame.settings)

    async def everything(self) -> list[Frame]:
        """Return all frames until the server closes the connection."""
        frames: list[Frame] = []
        try:
            while True:
                frames.append(await self.receive())
        except ConnectionError:
            return frames

    async def until_settled(self) -> list[Frame]:
        """Return all frames until the server has done what was sent before.

        It has when it has answered a few pings, one after the other: its tasks had their turns.
        """
        frames: list[Frame] = []
        for _ in range(3):
            self.send(PingFrame(0, b"settled?"))
            while not _is_pong(frame := await self.receive()):
                frames.append(frame)
        return frames

    async def status(self, stream_id: int = 1) -> tuple[dict[str, str], list[bytes]]:
        """Return the trailers of a call, and the data before them."""
        data: list[bytes] = []
        while True:
            frame = await self.receive()
            if isinstance(frame, HeadersFrame):
                fields: dict[str, str] = dict(self._texts(frame))
                if frame.stream_id == stream_id and "END_STREAM" in frame.flags:
                    return fields, data
            elif isinstance(frame, DataFrame) and frame.stream_id == stream_id:
                data.append(frame.data)
            elif isinstance(frame, RstStreamFrame) and frame.stream_id == stream_id:
                raise ConnectionError(f"reset with {frame.error_code}")
            elif isinstance(frame, GoAwayFrame) and frame.error_code:
                raise ConnectionError(f"sent away with {frame.error_code}")

    def _texts(self, frame: HeadersFrame) -> Iterable[tuple[str, str]]:
        fields: list[Any] = self._decoder.decode(frame.data)
        return [(str(name), str(value)) for name, value in fields]

    def open_windows(self, stream_id: int, by: int = 1 << 24) -> None:
        """Let the server send more on a stream, and altogether."""
        self.send(WindowUpdateFrame(0, by), WindowUpdateFrame(stream_id, by))


def _is_pong(frame: Frame) -> bool:
    return isinstance(frame, PingFrame) and "ACK" in frame.flags


@asynccontextmanager
async def raw_grpc(port: int, settings: dict[int, int] | None = None) -> AsyncIterator[RawGrpc]:
    """Connect and exchange the preface."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE)
    client = RawGrpc(reader, writer)
    client.send(SettingsFrame(0, settings=settings or {}))
    try:
        yield client
    finally:
        writer.transport.abort()
