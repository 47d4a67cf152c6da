"""Request bodies: encodings, and the limit that is counted after decompression."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import threading
import zlib
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
import zstandard

from harness.fake_services import FakeServices
from harness.wire_servers import http_port
from turnwire_server.transports.inflate import MAX_PARTS, DataError, Encoding, inflate

LIMIT = 100_000
CREATE = json.dumps({"model": "m", "input": "삶 " * 1000}).encode()


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def halves(data: bytes) -> bytes:
    return gzip.compress(data[:100]) + gzip.compress(data[100:])


def zstd_frames(data: bytes) -> bytes:
    return zstandard.compress(data[:100]) + zstandard.compress(data[100:])


def zstd_stream(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush()


ENCODERS = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZIP", halves),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("zstd", zstandard.compress),
    ("zstd", zstd_stream),
    ("zstd", zstd_frames),
    ("identity", bytes),
]


async def post(
    data: object, encoding: str | None = None, services: FakeServices | None = None
) -> tuple[int, dict[str, str]]:
    headers = {"content-encoding": encoding} if encoding else {}
    services = services or FakeServices(max_message_bytes=LIMIT)
    async with (
        http_port(services) as port,
        aiohttp.ClientSession() as client,
        asyncio.timeout(20),
        client.post(f"http://127.0.0.1:{port}/v1/responses", data=data, headers=headers) as answer,
    ):
        return answer.status, (await answer.json()).get("error") or {}


@pytest.mark.parametrize(("encoding", "encode"), ENCODERS)
async def test_a_compressed_body_is_read(encoding: str, encode: object) -> None:
    assert callable(encode)
    services = FakeServices(max_message_bytes=LIMIT)
    status, _ = await post(encode(CREATE), encoding, services)
    assert status == 200
    ((event, size),) = services.connections[0].received
    assert event.response_create.input.text == "삶 " * 1000
    assert size == len(CREATE)


@pytest.mark.parametrize(("encoding", "encode"), ENCODERS)
async def test_a_body_over_the_limit_is_413_once_decompressed(
    encoding: str, encode: object
) -> None:
    assert callable(encode)
    at_limit = CREATE + b" " * (LIMIT - len(CREATE))
    assert (await post(encode(at_limit), encoding))[0] == 200
    status, error = await post(encode(at_limit + b" "), encoding)
    assert (status, error["code"]) == (413, "message_too_large")


@pytest.mark.parametrize(("encoding", "encode"), [ENCODERS[0], ENCODERS[5]])
async def test_a_bomb_is_413_and_not_unpacked(encoding: str, encode: object) -> None:
    assert callable(encode)
    bomb = encode(bytes(50_000_000))
    assert len(bomb) < 1_000_000
    services = FakeServices(max_message_bytes=1_000_000)
    status, error = await post(bomb, encoding, services)
    assert (status, error["code"]) == (413, "message_too_large")


async def test_a_body_without_a_length_is_counted_as_it_comes() -> None:
    async def chunks() -> object:
        for _ in range(5):
            yield b" " * 30_000

    status, error = await post(chunks())
    assert (status, error["code"]) == (413, "message_too_large")


async def test_a_large_body_is_refused_without_losing_the_answer() -> None:
    status, error = await post(io.BytesIO(b" " * 30_000_000))
    assert (status, error["code"]) == (413, "message_too_large")


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("zstd", zstandard.ZstdCompressor(write_checksum=True).compress),
        ("zstd", zstd_stream),
    ],
)
@pytest.mark.parametrize("before", [b"", CREATE])
async def test_a_body_that_stops_too_soon_is_truncated_wherever_it_stops(
    encoding: Encoding, encode: Callable[[bytes], bytes], before: bytes
) -> None:
    if before and encoding == "deflate":
        before = b""  # It has no members.
    first = encode(before) if before else b""
    data = first + encode(CREATE)
    assert inflate(encoding, data, LIMIT, lambda: False) == before + CREATE
    for size in range(len(first) + 1, len(data)):
        with pytest.raises(DataError, match=f"truncated.*{encoding}"):
            inflate(encoding, data[:size], LIMIT, lambda: False)
    status, error = await post(data[:-1], encoding)
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "content-encoding")
    assert "truncated" in error["message"]


def test_zstd_frames_may_be_skippable_and_a_broken_checksum_is_noticed() -> None:
    skippable = b"\x5a\x2a\x4d\x18\x03\x00\x00\x00abc"
    data = zstandard.ZstdCompressor(write_checksum=True).compress(CREATE)
    assert inflate("zstd", skippable + data + skippable, LIMIT, lambda: False) == CREATE
    for size in (6, 10):
        with pytest.raises(DataError, match="truncated"):
            inflate("zstd", data + skippable[:size], LIMIT, lambda: False)
    with pytest.raises(zstandard.ZstdError):
        inflate("zstd", data[:-1] + bytes((data[-1] ^ 1,)), LIMIT, lambda: False)
    with pytest.raises(zstandard.ZstdError):
        inflate("zstd", data + b"garbage", LIMIT, lambda: False)


@pytest.mark.parametrize(
    ("encoding", "part", "word"),
    [
        ("gzip", gzip.compress(b""), "members"),
        ("zstd", zstandard.compress(b""), "frames"),
        ("zstd", b"\x50\x2a\x4d\x18" + bytes(4), "frames"),
    ],
    ids=["gzip", "zstd", "skippable"],
)
async def test_parts_without_content_are_bounded(
    encoding: Encoding, part: bytes, word: str
) -> None:
    assert inflate(encoding, part * MAX_PARTS, LIMIT, lambda: False) == b""
    with pytest.raises(DataError, match=f"too many .*{word}"):
        inflate(encoding, part * (MAX_PARTS + 1), LIMIT, lambda: False)
    status, error = await post(part * (MAX_PARTS + 1), encoding)
    assert (status, error["code"]) == (400, "invalid_value")


def test_zstd_blocks_without_content_are_bounded() -> None:
    header = zstandard.compress(CREATE, 1)[:4] + b"\x00\x58"  # No size, a window of 2 MiB.
    inflate("zstd", header + bytes(3) * 9 + b"\x01\x00\x00", LIMIT, lambda: False)
    with pytest.raises(DataError, match="too many zstd blocks"):
        inflate("zstd", header + bytes(3_000_000), LIMIT, lambda: False)


def test_members_cost_what_they_hold_and_not_what_is_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = 0

    class Counting:
        """An inflater that counts what it copies of its input."""

        def __init__(self, wbits: int) -> None:
            self._inner = inflater(wbits)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal copied
            output = self._inner.decompress(data, most)
            copied += len(self._inner.unused_data) + len(self._inner.unconsumed_tail)
            return output

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

    inflater = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    member = gzip.compress(bytes(1), 0)
    body = member * 1000 + gzip.compress(os.urandom(20_000_000), 0)
    assert inflate("gzip", body, 10**8, lambda: False) is not None
    assert copied < 1100 * 65_536


@pytest.mark.parametrize(("encoding", "encode"), [ENCODERS[0], ENCODERS[3], ENCODERS[5]])
def test_decompression_stops_between_two_steps_when_nobody_waits(
    encoding: Encoding, encode: Callable[[bytes], bytes]
) -> None:
    asked = 0

    def is_cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    assert inflate(encoding, encode(bytes(50_000_000)), 10**9, is_cancelled) is None
    assert asked == 4


async def test_a_client_that_hangs_up_stops_the_decompression_of_its_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    begun, stopped, over = asyncio.Event(), asyncio.Event(), threading.Event()

    def endless(encoding: str, body: bytes, limit: int, is_cancelled: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        while not (is_cancelled() or over.is_set()):
            pass
        loop.call_soon_threadsafe(stopped.set)

    monkeypatch.setattr("turnwire_server.transports.http_body.inflate", endless)
    async with http_port(FakeServices()) as port, asyncio.timeout(20):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
            b"Content-Length: 1\r\n\r\nx"
        )
        try:
            await begun.wait()
            writer.close()
            await stopped.wait()
        finally:
            over.set()
