"""The grpclib back end below the wire: a connection fed by hand."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from typing import Any, cast

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived
from hyperframe.frame import GoAwayFrame

from harness.fake_services import FakeServices, FakeUnaryApi
from harness.wire_servers import CONNECT
from turnwire_server.transports.grpc import BackendFailure, GrpcSettings, make_grpc_server
from turnwire_server.transports.grpc_services import PromptContext
from turnwire_server.transports.grpc_status import Context, Leaving, call_when_left
from turnwire_server.transports.grpclib import fast_data
from turnwire_server.transports.grpclib import server as grpclib_server
from turnwire_server.transports.grpclib.connection import WireProtocol
from turnwire_server.transports.grpclib.server import GrpclibServer

CALL = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Service/Call"),
    (":authority", "test"),
    ("te", "trailers"),
]


class Pipe:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_open = True
        self.writes = 0

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.written += data

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.is_open = False

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0


class Calls:
    """A method that notes how its client left."""

    def __init__(self) -> None:
        self.left: list[Leaving] = []
        self.contexts: list[Context] = []
        self.has_begun = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        async def call(_: object, context: Context) -> None:
            self.contexts.append(context)
            assert call_when_left(context, self.left.append)
            self.has_begun.set()
            await asyncio.Event().wait()

        method: Any = grpc.stream_stream_rpc_method_handler(cast(Any, call))
        return grpc.method_handlers_generic_handler("test.Service", {"Call": method})


def connected(server: GrpclibServer) -> tuple[WireProtocol, H2Connection]:
    """Return a new connection, and the client's h2."""
    wire = server._protocol()
    wire.connection_made(cast(Any, Pipe()))
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    return wire, client


def received(client: H2Connection, pipe: Pipe) -> list[tuple[int, bytes]]:
    """Return the DATA that were written, with their streams."""
    events = client.receive_data(pipe.written)
    return [(one.stream_id, one.data) for one in events if isinstance(one, DataReceived)]


async def opened(calls: Calls, settings: GrpcSettings | None = None) -> tuple[WireProtocol, Any]:
    """Return a connection with one call, and the client's h2."""
    server = GrpclibServer(settings or GrpcSettings(), max_message_bytes=1000)
    server.add_generic_rpc_handlers([calls.handler()])
    wire, client = connected(server)
    client.send_headers(1, CALL)
    wire.data_received(client.data_to_send())
    async with asyncio.timeout(20):
        await calls.has_begun.wait()
    return wire, client


async def test_a_reset_reaches_the_handler_in_the_same_iteration_of_the_loop() -> None:
    calls = Calls()
    wire, client = await opened(calls)
    client.reset_stream(1, ErrorCodes.CANCEL)
    wire.data_received(client.data_to_send())
    assert calls.left == ["cancelled"]
    wire.connection_lost(None)
    assert calls.left == ["cancelled"]


async def test_a_lost_connection_is_told_from_a_cancelled_call() -> None:
    calls = Calls()
    wire, _ = await opened(calls)
    wire.connection_lost(ConnectionResetError())
    assert calls.left == ["lost"]


@pytest.mark.parametrize("how", ["cancelled", "lost"])
async def test_a_session_that_asks_later_how_its_client_left_is_told_the_same(how: Leaving) -> None:
    services = FakeServices()
    services.hold_after_half_close = True
    server = cast(
        GrpclibServer,
        make_grpc_server(
            cast(Any, services), GrpcSettings(backend="grpclib"), unary=cast(Any, FakeUnaryApi())
        ),
    )
    wire, client = connected(server)
    client.send_headers(1, [*CALL[:2], (":path", CONNECT), *CALL[3:]], end_stream=True)
    wire.data_received(client.data_to_send())
    connection = await services.connection()
    await services.until(lambda: connection.is_half_closed)
    if how == "cancelled":
        client.reset_stream(1, ErrorCodes.CANCEL)
        wire.data_received(client.data_to_send())
    else:
        wire.connection_lost(ConnectionResetError())
    assert connection.was_lost is not None
    assert connection.was_lost() == (how == "lost")
    await services.until(connection.ended.is_set)
    if how == "cancelled":
        wire.connection_lost(None)
    await server.stop(None)


async def test_a_goaway_with_an_error_is_a_loss() -> None:
    calls = Calls()
    wire, client = await opened(calls)
    client.close_connection(ErrorCodes.INTERNAL_ERROR)
    wire.data_received(client.data_to_send())
    assert calls.left == ["lost"]


async def test_a_polite_goaway_leaves_the_call() -> None:
    calls = Calls()
    wire, client = await opened(calls)
    client.data_to_send()
    wire.data_received(GoAwayFrame(0, 0, 0).serialize())
    assert calls.left == []
    await calls.contexts[0].write(b"still here")
    wire.connection_lost(None)


async def test_a_call_given_up_in_the_packet_that_opens_it_never_begins() -> None:
    calls = Calls()
    wire, client = await opened(calls)
    for stream_id in (3, 5):
        client.send_headers(stream_id, CALL)
        client.reset_stream(stream_id, ErrorCodes.CANCEL)
    wire.data_received(client.data_to_send())
    await asyncio.sleep(0)
    assert len(calls.contexts) == 1
    wire.connection_lost(None)


async def test_a_writer_that_waits_is_told_that_the_call_is_over() -> None:
    calls = Calls()
    wire, client = await opened(calls)
    wire.pause_writing()
    writing = asyncio.ensure_future(calls.contexts[0].write(b"x"))
    await asyncio.sleep(0)
    assert not writing.done()
    client.reset_stream(1, ErrorCodes.CANCEL)
    wire.data_received(client.data_to_send())
    with pytest.raises(grpc.aio.InternalError):
        async with asyncio.timeout(20):
            await writing
    with pytest.raises(grpc.aio.InternalError):
        await calls.contexts[0].write(b"y")
    wire.connection_lost(None)


async def test_a_full_transport_stops_writers_until_it_has_room() -> None:
    calls = Calls()
    wire, _ = await opened(calls)
    await calls.contexts[0].write(b"first")
    wire.pause_writing()
    writing = asyncio.ensure_future(calls.contexts[0].write(b"second"))
    await asyncio.sleep(0)
    assert not writing.done()
    wire.resume_writing()
    async with asyncio.timeout(20):
        await writing
    wire.connection_lost(None)


async def test_nothing_is_written_at_once_while_a_message_waits_or_when_the_call_is_over() -> None:
    calls = Calls()
    wire, client = await opened(calls)
    call = calls.contexts[0]
    assert isinstance(call, PromptContext)
    assert call.write_now(b"first")
    wire.pause_writing()
    writing = asyncio.ensure_future(call.write(b"second"))
    await asyncio.sleep(0)
    wire.resume_writing()
    assert not call.write_now(b"before the second")
    async with asyncio.timeout(20):
        await writing
    assert call.write_now(b"third")
    client.reset_stream(1, ErrorCodes.CANCEL)
    wire.data_received(client.data_to_send())
    assert not call.write_now(b"last")
    wire.connection_lost(None)


async def test_a_message_over_the_limit_is_not_sent() -> None:
    calls = Calls()
    wire, _ = await opened(calls)
    with pytest.raises(grpc.aio.InternalError):
        await calls.contexts[0].write(b"x" * 20_000)
    assert calls.left == ["cancelled"]
    wire.connection_lost(None)


async def test_frames_that_are_announced_too_large_are_not_waited_for() -> None:
    calls = Calls()
    wire, _ = await opened(calls)
    wire.data_received(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01")
    assert calls.left == ["lost"]


async def test_what_the_only_call_of_a_connection_writes_leaves_at_once_and_in_order() -> None:
    calls = Calls()
    wire, client = await opened(calls)
    await asyncio.sleep(0)  # Its settings are written.
    pipe = cast(Pipe, wire.connection.writer._transport)
    before, pipe.written = pipe.writes, b""
    for number, message in enumerate((b"one", b"two"), 1):
        await calls.contexts[0].write(message)
        assert pipe.writes == before + number  # The first one took the headers along.
    assert received(client, pipe) == [(1, b"\0\0\0\0\3one"), (1, b"\0\0\0\0\3two")]
    wire.connection_lost(None)


async def test_what_several_calls_of_a_connection_write_leaves_together() -> None:
    calls = Calls()
    wire, client = await opened(calls)
    calls.has_begun.clear()
    client.send_headers(3, CALL)
    wire.data_received(client.data_to_send())
    async with asyncio.timeout(20):
        await calls.has_begun.wait()
    await asyncio.sleep(0)
    pipe = cast(Pipe, wire.connection.writer._transport)
    before, pipe.written = pipe.writes, b""
    for context in calls.contexts:
        await context.write(b"one")
    assert pipe.writes == before
    await asyncio.sleep(0)
    assert pipe.writes == before + 1
    assert received(client, pipe) == [(1, b"\0\0\0\0\3one"), (3, b"\0\0\0\0\3one")]

    client.reset_stream(1, ErrorCodes.CANCEL)
    wire.data_received(client.data_to_send())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    before = pipe.writes
    await calls.contexts[1].write(b"alone")
    assert pipe.writes == before + 1
    wire.connection_lost(None)


async def test_a_bug_of_the_state_machine_ends_the_connection_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    wire, _ = await opened(calls)

    def broken(data: bytes) -> list[Any]:
        raise KeyError(data.decode())

    monkeypatch.setattr(wire.connection, "feed", broken)
    wire.data_received(b"secret")
    assert calls.left == ["lost"]
    assert "secret" not in caplog.text
    assert "connection failed" in caplog.text


@pytest.mark.parametrize("missing", ["grpclib", "h2"])
async def test_without_its_packages_the_back_end_says_what_to_install_and_what_to_set(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else name)
    with pytest.raises(BackendFailure, match=rf"needs {missing}.*turnwire\[server\].*to grpcio"):
        make_grpc_server(cast(Any, FakeServices()), GrpcSettings(backend="grpclib"))
    make_grpc_server(cast(Any, FakeServices()), GrpcSettings(backend="grpcio"))


# The h2 that is installed.


def test_the_installed_h2_is_the_one_that_is_known() -> None:
    assert fast_data.difference() is None
    assert grpclib_server.DIFFERENCE is None


def test_an_h2_that_counts_otherwise_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    send = H2Connection.send_data

    def twice(self: H2Connection, stream_id: int, data: bytes, **how: Any) -> None:
        send(self, stream_id, data, **how)
        self.outbound_flow_control_window -= 1

    monkeypatch.setattr(H2Connection, "send_data", twice)
    assert fast_data.difference() == "windows are counted otherwise"


def test_an_h2_that_makes_other_frames_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    send = H2Connection.send_data
    monkeypatch.setattr(
        H2Connection, "send_data", lambda self, *what: send(self, *what, pad_length=1)
    )
    assert fast_data.difference() == "a DATA frame looks otherwise"


def test_an_h2_without_what_is_replaced_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(H2Connection, "_receive_goaway_frame")
    assert "_receive_goaway_frame" in (fast_data.difference() or "")


def test_an_h2_that_breaks_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(H2Connection, "data_to_send", None)
    assert fast_data.difference() == "a trial ended with TypeError"


async def test_a_difference_is_logged_and_the_plain_way_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(grpclib_server, "DIFFERENCE", "h2 is strange")
    calls = Calls()
    with caplog.at_level(logging.WARNING):
        wire, _ = await opened(calls)
    assert "h2 is strange" in caplog.text
    frames: list[bytes] = []
    send = wire.connection.h2.send_data

    def spied(stream_id: int, data: bytes, **how: Any) -> None:
        frames.append(data)
        send(stream_id, data, **how)

    monkeypatch.setattr(wire.connection.h2, "send_data", spied)
    await calls.contexts[0].write(b"abc")
    assert frames == [b"\0\0\0\0\3abc"]
    wire.connection_lost(None)
