"""Request bodies: encodings, and the limit that is counted after decompression."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import zlib

import aiohttp
import pytest
import zstandard

from harness.fake_services import FakeServices
from harness.wire_servers import http_port

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
        asyncio.timeout(10),
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
    ("encoding", "data"),
    [
        ("gzip", b"not gzip"),
        ("gzip", gzip.compress(CREATE)[:-20]),
        ("deflate", b"\xff\xff"),
        ("zstd", b"not zstd"),
        ("zstd", CREATE),
    ],
    ids=["gzip", "cut gzip", "deflate", "zstd", "plain as zstd"],
)
async def test_a_body_that_is_not_what_it_says_is_400(encoding: str, data: bytes) -> None:
    status, error = await post(data, encoding)
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "content-encoding")


async def test_a_cut_zstd_body_is_400() -> None:
    status, error = await post(zstandard.compress(CREATE)[:-20], "zstd")
    assert status == 400
    assert error["code"] in ("invalid_value", "invalid_json")


@pytest.mark.parametrize("encoding", ["br", "gzip, zstd"])
async def test_an_unknown_encoding_is_400(encoding: str) -> None:
    status, error = await post(CREATE, encoding)
    assert (status, error["code"], error["param"]) == (
        400,
        "unsupported_value",
        "content-encoding",
    )
