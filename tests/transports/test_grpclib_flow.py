"""The grpclib back end's DATA: inside every window, in order, one write per tick."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import DataFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from harness.fake_services import FakeConnection, FakeServices, completed, created
from harness.grpc_backends import served_by
from harness.raw_grpc import RawGrpc, message, raw_grpc
from harness.wire_servers import CONNECT, grpc_port
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.server_event_pb2 import ServerFrame
from turnwire_server.runtime.connection import Ending
from turnwire_server.session.events import Delta, Part
from turnwire_server.transports.grpc import GrpcSettings
from turnwire_server.transports.grpclib import server as grpclib_server
from turnwire_server.transports.grpclib.connection import WireProtocol

CREATE = message(ClientEvent(response_create=ResponseCreate(model="m")).SerializeToString())
INITIAL_WINDOW, MAX_FRAME = 4, 5
PING_BYTES = 17
SETTINGS = GrpcSettings(min_client_ping_interval_s=0)
"""Pings tell when the server is done."""
PART = Part("response_output_text_delta", "msg_1", 0, 0, None)


@pytest.fixture(params=["fast", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways that DATA go: the fast one, and h2's own where h2 is not the one we know."""
    if request.param == "plain":
        monkeypatch.setattr(grpclib_server, "DIFFERENCE", "the test says so")
    with served_by("grpclib"):
        yield request.param


@pytest.fixture
async def services() -> FakeServices:
    services = FakeServices(lambda connection, event: [])
    services.hold_after_half_close = True
    return services


@pytest.fixture
async def port(way: str, services: FakeServices) -> AsyncIterator[int]:
    async with grpc_port(services, SETTINGS) as port:
        yield port


def text(size: int) -> Delta:
    return Delta(PART, 1, "t" * size)


async def begin(client: RawGrpc, services: FakeServices, stream_id: int = 1) -> FakeConnection:
    """Open a call; return its connection."""
    count = len(services.connections)
    client.send(client.headers(CONNECT, stream_id), client.data(CREATE, stream_id))
    await services.until(lambda: len(services.connections) > count)
    return services.connections[-1]


async def settled(client: RawGrpc) -> list[DataFrame]:
    return [frame for frame in await client.until_settled() if isinstance(frame, DataFrame)]


def size_of(frames: list[DataFrame]) -> int:
    return sum(len(frame.data) for frame in frames)


async def test_no_more_than_the_streams_window_is_sent_until_it_is_opened(
    port: int, services: FakeServices
) -> None:
    async with raw_grpc(port, {INITIAL_WINDOW: 1000}) as client:
        connection = await begin(client, services)
        await client.until_settled()
        connection.send(text(2500))
        first = await settled(client)
        client.send(WindowUpdateFrame(1, 500))
        second = await settled(client)
        client.send(WindowUpdateFrame(1, 100_000))
        third = await settled(client)
    assert (size_of(first), size_of(second)) == (1000, 500)
    data = b"".join(frame.data for frame in (*first, *second, *third))
    (event,) = ServerFrame.FromString(data[5:]).events
    assert event.response_output_text_delta.delta == "t" * 2500


async def test_the_connections_window_bounds_all_streams_together(
    port: int, services: FakeServices
) -> None:
    async with raw_grpc(port, {INITIAL_WINDOW: 1 << 20}) as client:
        connections = [await begin(client, services, stream_id) for stream_id in (1, 3)]
        await client.until_settled()
        for _ in range(5):
            for connection in connections:
                connection.send(text(10_000))
        first = await settled(client)
        client.send(WindowUpdateFrame(0, 1 << 20))
        second = await settled(client)
    assert size_of(first) == 65_535
    assert size_of(first) + size_of(second) > 100_000
    assert {frame.stream_id for frame in second} <= {1, 3}


async def test_a_reader_that_stops_stops_its_own_stream_only(
    port: int, services: FakeServices
) -> None:
    async with raw_grpc(port, {INITIAL_WINDOW: 1000}) as client:
        slow = await begin(client, services, 1)
        quick = await begin(client, services, 3)
        await client.until_settled()
        client.send(WindowUpdateFrame(3, 100_000))
        slow.send(text(5000))
        quick.send(text(5000))
        frames = await settled(client)
        slow.send(completed())
        assert await settled(client) == []
    sizes = {stream_id: 0 for stream_id in (1, 3)}
    for frame in frames:
        sizes[frame.stream_id] += len(frame.data)
    assert sizes[1] == 1000
    assert sizes[3] > 5000


async def test_a_smaller_initial_window_takes_away_what_streams_had(
    port: int, services: FakeServices
) -> None:
    async with raw_grpc(port, {INITIAL_WINDOW: 10_000}) as client:
        connection = await begin(client, services)
        await client.until_settled()
        connection.send(text(4000))
        first = await settled(client)
        client.send(SettingsFrame(0, settings={INITIAL_WINDOW: 1000}))
        await client.until_settled()
        connection.send(text(100))
        second = await settled(client)  # The window is below zero now.
        client.send(SettingsFrame(0, settings={INITIAL_WINDOW: 20_000}))
        third = await settled(client)
    assert size_of(first) > 4000
    assert second == []
    assert size_of(third) > 100


async def test_frames_are_no_larger_than_the_client_wants(
    port: int, services: FakeServices
) -> None:
    async with raw_grpc(port, {INITIAL_WINDOW: 1 << 20}) as client:
        connection = await begin(client, services)
        await client.until_settled()
        connection.send(text(30_000))
        small = await settled(client)
        client.send(SettingsFrame(0, settings={MAX_FRAME: 1 << 20}))
        await client.until_settled()
        connection.send(text(30_000))
        large = await settled(client)
    assert [len(frame.data) <= 16_384 for frame in small] == [True, True]
    assert len(large) == 1


async def test_a_stream_that_was_reset_gets_no_more_data(port: int, services: FakeServices) -> None:
    async with raw_grpc(port, {INITIAL_WINDOW: 1000}) as client:
        waiting = await begin(client, services, 1)
        other = await begin(client, services, 3)
        await client.until_settled()
        waiting.send(text(5000))
        assert size_of(await settled(client)) == 1000
        client.send(RstStreamFrame(1, ErrorCodes.CANCEL))
        async with asyncio.timeout(20):
            await waiting.ended.wait()
        client.send(WindowUpdateFrame(1, 100_000))
        waiting.send(text(100))
        other.send(text(100))
        frames = await settled(client)
    assert {frame.stream_id for frame in frames} == {3}
    assert waiting.was_cancelled


async def test_trailers_come_after_all_data(port: int, services: FakeServices) -> None:
    async with raw_grpc(port) as client:
        connection = await begin(client, services)
        for number in range(50):
            connection.send(created(f"resp_{number}"))
        connection.end(Ending("finished"))
        trailers, data = await client.status()
    assert trailers["grpc-status"] == "0"
    assert len(data) == 50


async def test_what_a_connection_has_to_say_in_one_tick_is_one_write(
    services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    made = WireProtocol.connection_made

    def counting(self: WireProtocol, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        writer = self.connection.writer
        hand_over = writer._transport.write
        count = lambda data: (writes.append(len(data)), hand_over(data))  # noqa: E731
        writer._transport = _Wrapped(writer._transport, count)  # type: ignore[assignment]

    monkeypatch.setattr(WireProtocol, "connection_made", counting)
    with served_by("grpclib"):
        async with grpc_port(services, SETTINGS) as port, raw_grpc(port) as client:
            connections = [await begin(client, services, 2 * n + 1) for n in range(20)]
            await client.until_settled()
            for connection in connections:  # Their headers are on their way with these.
                connection.send(text(10))
            assert len(await settled(client)) == 20
            writes.clear()
            for connection in connections:
                connection.send(text(10))
            assert len(await settled(client)) == 20
            large = [size for size in writes if size > PING_BYTES]
    assert len(large) == 1


class _Wrapped:
    def __init__(self, transport: asyncio.Transport, write: object) -> None:
        self._transport = transport
        self.write = write

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)
