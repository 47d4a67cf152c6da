"""What clients do to HTTP/2 that no client library would: both back ends bear it."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from harness.fake_services import FakeServices, FakeUnaryApi, created
from harness.raw_grpc import RawGrpc, message, raw_grpc
from harness.wire_servers import CONNECT, grpc_port
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.models_service_pb2 import GetModelRequest
from turnwire_server.runtime.connection import Ending
from turnwire_server.transports.grpc import GrpcBackend, GrpcSettings, make_grpc_server

GET_MODEL = "/turnwire.v1.ModelsService/GetModel"
MODEL = message(GetModelRequest(model="m").SerializeToString())
CREATE = message(ClientEvent(response_create=ResponseCreate(model="m")).SerializeToString())
BOMB = gzip.compress(b"\0" * 200_000, mtime=0)
GIVEN_UP = 2000


@pytest.fixture(autouse=True)
def backend(each_grpc_backend: GrpcBackend) -> GrpcBackend:
    return each_grpc_backend


@pytest.fixture
def services() -> FakeServices:
    services = FakeServices(max_message_bytes=100_000)
    services.hold_after_half_close = True
    return services


@pytest.fixture
async def port(services: FakeServices) -> AsyncIterator[int]:
    async with grpc_port(services, GrpcSettings(max_concurrent_streams=50)) as port:
        yield port


async def is_healthy(port: int) -> bool:
    """Whether another client is served."""
    async with raw_grpc(port) as other:
        other.send(other.headers(GET_MODEL), other.data(MODEL, ends=True))
        trailers, _ = await other.status()
    return trailers["grpc-status"] == "0"


# Calls.


@pytest.mark.parametrize(
    ("more", "code", "details"),
    [
        ([("grpc-timeout", "soon")], "13", "Error parsing 'grpc-timeout' metadata"),
        ([("grpc-timeout", "0S")], "4", "Deadline Exceeded"),
        ([("grpc-encoding", "br")], "13", "Error parsing 'grpc-encoding' metadata"),
        ([("x-bin", "***")], "13", "Error parsing 'x-bin' metadata: illegal base64 encoding"),
        ([("grpc-timeout", "999999999S")], "0", ""),
        ([("grpc-encoding", "gzip")], "0", ""),
        ([("x-bin", "AAE"), ("x", "y")], "0", ""),
    ],
)
async def test_headers_are_read(
    port: int, more: list[tuple[str, str]], code: str, details: str
) -> None:
    async with raw_grpc(port) as client:
        client.send(client.headers(GET_MODEL, more=more), client.data(MODEL, ends=True))
        trailers, _ = await client.status()
    assert (trailers["grpc-status"], trailers.get("grpc-message", "")) == (code, details)


@pytest.mark.parametrize(
    ("encoding", "data", "code", "details"),
    [
        ("gzip", gzip.compress(MODEL[5:], mtime=0), "0", ""),
        (
            "gzip",
            BOMB,
            "8",
            "Decompressed message larger than max",
        ),
        ("gzip", b"no gzip", "13", "Decompression failed due to zlib error"),
        ("identity", MODEL[5:], "13", "Compression bit set but no encoding configured"),
    ],
    ids=["gzip", "bomb", "no gzip", "no encoding"],
)
async def test_compressed_messages_are_what_they_say(
    port: int, encoding: str, data: bytes, code: str, details: str
) -> None:
    async with raw_grpc(port) as client:
        client.send(
            client.headers(GET_MODEL, more=[("grpc-encoding", encoding)]),
            client.data(message(data, compressed=True), ends=True),
        )
        trailers, _ = await client.status()
    assert (trailers["grpc-status"], trailers["grpc-message"]) == (code, details)


async def test_a_message_that_says_it_is_too_large_is_refused_before_it_is_there(
    port: int,
) -> None:
    async with raw_grpc(port) as client:
        client.send(client.headers(CONNECT), client.data(b"\0" + (100_001).to_bytes(4)))
        trailers, _ = await client.status()
    assert trailers["grpc-status"] == "8"
    assert trailers["grpc-message"].endswith("(100001 vs. 100000)")


async def test_a_message_may_come_byte_by_byte(port: int) -> None:
    async with raw_grpc(port) as client:
        client.send(client.headers(GET_MODEL))
        for at in range(len(MODEL)):
            client.send(client.data(MODEL[at : at + 1], ends=at == len(MODEL) - 1))
        trailers, data = await client.status()
    assert trailers["grpc-status"] == "0"
    assert data


async def test_a_request_that_is_no_call_is_reset_and_no_more(port: int) -> None:
    async with raw_grpc(port) as client:
        get = client.encoder.encode(
            [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "x")]
        )
        client.send(HeadersFrame(1, get, flags=["END_HEADERS", "END_STREAM"]))
        assert (await client.next(RstStreamFrame)).stream_id == 1
        client.send(client.headers(GET_MODEL, 3), client.data(MODEL, 3, ends=True))
        trailers, _ = await client.status(3)
    assert trailers["grpc-status"] == "0"


async def test_calls_go_on_after_a_polite_goaway(port: int, backend: GrpcBackend) -> None:
    async with raw_grpc(port) as client:
        client.send(client.headers(GET_MODEL), GoAwayFrame(0, 0, 0), client.data(MODEL, ends=True))
        trailers, _ = await client.status()
        if backend == "grpclib":  # grpcio leaves that to the client.
            await client.everything()
    assert trailers["grpc-status"] == "0"


async def test_frames_of_unknown_kinds_are_ignored(port: int) -> None:
    async with raw_grpc(port) as client:
        client.send_bytes(b"\x00\x00\x03\xbb\x00\x00\x00\x00\x00abc")
        client.send(PriorityFrame(3, 0, 10, False))
        client.send(client.headers(GET_MODEL), client.data(MODEL, ends=True))
        trailers, _ = await client.status()
    assert trailers["grpc-status"] == "0"


async def test_more_calls_than_announced_are_refused_and_the_others_go_on(port: int) -> None:
    async with raw_grpc(port) as client:
        assert (await client.settings())[3] == 50
        client.send(*(client.headers(CONNECT, 2 * number + 1) for number in range(51)))
        refused = await client.next(RstStreamFrame)
        client.send(client.data(CREATE, 1))
        answered = await client.next(DataFrame)
    assert refused.stream_id == 101
    assert answered.stream_id == 1


@pytest.mark.parametrize("flags", [["END_HEADERS"], []])
async def test_a_client_that_hangs_up_leaves_nothing_behind(
    port: int, services: FakeServices, flags: list[str]
) -> None:
    async with raw_grpc(port) as client:
        client.send(client.headers(CONNECT, 1), client.data(CREATE, 1))
        connection = await services.connection()
        half = client.headers(CONNECT, 3)
        client.send(HeadersFrame(3, half.data, flags=flags))
        await client.flush()
    async with asyncio.timeout(20):
        await connection.ended.wait()
    assert await is_healthy(port)


async def test_a_server_that_stops_says_so_and_closes_after_the_last_call(
    backend: GrpcBackend,
) -> None:
    services = FakeServices()
    services.hold_after_half_close = True
    server = make_grpc_server(
        cast(Any, services), GrpcSettings(backend=backend), unary=cast(Any, FakeUnaryApi())
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with raw_grpc(port) as client:
        client.send(client.headers(CONNECT), client.data(CREATE))
        connection = await services.connection()
        stopping = asyncio.create_task(server.stop(20))
        goodbye = await client.next(GoAwayFrame)
        connection.end(Ending("finished"))
        trailers, _ = await client.status()
        rest = await client.everything()
        async with asyncio.timeout(20):
            await stopping
    assert (goodbye.last_stream_id, goodbye.error_code) == (2**31 - 1, ErrorCodes.NO_ERROR)
    assert trailers["grpc-status"] == "0"
    last = [frame for frame in rest if isinstance(frame, GoAwayFrame)]
    assert backend == "grpcio" or [frame.last_stream_id for frame in last] == [1]


# Floods.


def resets(client: RawGrpc) -> Iterator[tuple[Frame, ...]]:
    for number in range(GIVEN_UP):
        stream_id = 2 * number + 1
        yield client.headers(CONNECT, stream_id), RstStreamFrame(stream_id, ErrorCodes.CANCEL)


def settings(client: RawGrpc) -> Iterator[tuple[Frame, ...]]:
    for number in range(5000):
        yield (SettingsFrame(0, settings={4: 65_535 + number}),)


def pings(client: RawGrpc) -> Iterator[tuple[Frame, ...]]:
    for number in range(1000):
        yield (PingFrame(0, number.to_bytes(8)),)


def empty_data(client: RawGrpc) -> Iterator[tuple[Frame, ...]]:
    yield (client.headers(CONNECT),)
    for _ in range(5000):
        yield (client.data(b""),)


def priorities(client: RawGrpc) -> Iterator[tuple[Frame, ...]]:
    for _ in range(5000):
        yield (PriorityFrame(3, 0, 10, False),)


def window_updates(client: RawGrpc) -> Iterator[tuple[Frame, ...]]:
    yield (client.headers(CONNECT),)
    for _ in range(5000):
        yield (WindowUpdateFrame(0, 1),)


def continuations(client: RawGrpc) -> Iterator[tuple[Frame, ...]]:
    yield (HeadersFrame(1, client.encoder.encode([(":method", "POST")])),)
    for number in range(3000):
        yield (ContinuationFrame(1, client.encoder.encode([(f"x-{number}", "y" * 1000)])),)


def data_for_dead_calls(client: RawGrpc) -> Iterator[tuple[Frame, ...]]:
    yield client.headers(CONNECT), RstStreamFrame(1, ErrorCodes.CANCEL)
    for _ in range(5000):
        yield (client.data(b"x", 1),)


FLOODS = [
    resets,
    settings,
    pings,
    empty_data,
    priorities,
    window_updates,
    continuations,
    data_for_dead_calls,
]


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_does_not_reach_others(
    port: int,
    services: FakeServices,
    flood: Callable[[RawGrpc], Iterator[tuple[Frame, ...]]],
    backend: GrpcBackend,
) -> None:
    async with raw_grpc(port) as client:
        reading = asyncio.create_task(client.everything())
        try:
            for number, frames in enumerate(flood(client)):
                client.send(*frames)
                if number % 50 == 0:
                    await client.flush()
        except ConnectionError:
            pass  # It was cut, as it may be.
        assert await is_healthy(port)
        # grpcio bears some of them to the end.
        if backend == "grpclib" and flood is not data_for_dead_calls:
            reasons = {
                frame.error_code for frame in await reading if isinstance(frame, GoAwayFrame)
            }
            assert reasons == {
                ErrorCodes.PROTOCOL_ERROR
                if flood is continuations
                else ErrorCodes.ENHANCE_YOUR_CALM
            }
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert len([one for one in services.connections if one.started.is_set()]) <= GIVEN_UP


async def test_headers_that_never_end_are_cut_off_by_the_limit(backend: GrpcBackend) -> None:
    services = FakeServices(lambda connection, event: [created()])
    async with grpc_port(services) as port, raw_grpc(port) as client:
        block = client.encoder.encode([(f"x-{number}", "y" * 1000) for number in range(100)])
        parts = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
        client.send(HeadersFrame(1, parts[0]))
        client.send(*(ContinuationFrame(1, part) for part in parts[1:-1]))
        client.send(ContinuationFrame(1, parts[-1], flags=["END_HEADERS"]))
        frame: Frame = await client.next(GoAwayFrame if backend == "grpclib" else RstStreamFrame)
        assert isinstance(frame, GoAwayFrame | RstStreamFrame)
        assert await is_healthy(port)
