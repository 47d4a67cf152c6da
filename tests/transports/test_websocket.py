"""The WebSocket wire: frames, close codes, handshake, limits, signs of life."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from harness.fake_services import (
    FakeConnection,
    FakeServices,
    completed,
    created,
    greeting,
)
from harness.raw_websocket import close_frame, handshake, masked
from harness.wire_servers import http_port
from turnwire import _codec
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire_server.runtime.connection import Ending
from turnwire_server.session.events import Outgoing
from turnwire_server.transports.http import HttpSettings
from turnwire_server.transports.websocket import WebSocketSettings
from turnwire_server.transports.websocket_pings import Pings

CREATE = {"type": "response.create", "model": "m", "input": "hi"}
Socket = aiohttp.ClientWebSocketResponse


def url(port: int, path: str = "/v1/responses") -> str:
    return f"http://127.0.0.1:{port}{path}"


@asynccontextmanager
async def connected(
    services: FakeServices,
    settings: HttpSettings | None = None,
    *,
    path: str = "/v1/responses",
    **options: Any,
) -> AsyncIterator[Socket]:
    async with (
        http_port(services, settings) as port,
        aiohttp.ClientSession() as client,
        asyncio.timeout(20),
        client.ws_connect(url(port, path), **options) as socket,
    ):
        yield socket


async def refused(
    services: FakeServices, settings: HttpSettings | None = None, **options: Any
) -> Any:
    """Return status, headers and error of a handshake that is refused."""
    headers = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
        **options.pop("headers", {}),
    }
    async with http_port(services, settings) as port, aiohttp.ClientSession() as client:
        path = options.pop("path", "/v1/responses")
        async with client.get(url(port, path), headers=headers) as answer:
            return answer.status, answer.headers, (await answer.json())["error"]


async def closed(socket: Socket) -> tuple[int | None, str]:
    """Read until the server has closed; return code and reason."""
    while True:
        message = await socket.receive()
        if message.type is WSMsgType.CLOSE:
            return message.data, message.extra or ""
        if message.type is not WSMsgType.TEXT:
            return socket.close_code, ""


async def test_every_event_is_one_text_frame_of_public_json() -> None:
    async with connected(FakeServices()) as socket:
        await socket.send_json({**CREATE, "stream_id": "a"})
        messages = [await socket.receive() for _ in greeting()]
    assert {message.type for message in messages} == {WSMsgType.TEXT}
    events = [json.loads(message.data) for message in messages]
    assert [event["type"] for event in events] == [
        "response.created",
        *["response.output_text.delta"] * 3,
        "response.completed",
    ]
    assert {event["stream_id"] for event in events} == {"a"}
    assert "".join(event["delta"] for event in events[1:4]) == 'Hello "삶😀'


@pytest.mark.parametrize("size", [10, 125, 126, 60_000, 65_535, 65_536, 1_000_000])
async def test_frames_of_every_length_are_read(size: int) -> None:
    def script(connection: FakeConnection, event: ClientEvent) -> Iterable[Outgoing]:
        empty = len(_codec.dumps(created("")))
        return [created("r" * max(0, size - empty)), completed()]

    async with connected(FakeServices(script), max_msg_size=0) as socket:
        await socket.send_json(CREATE)
        first = await socket.receive_str()
        assert len(first) == max(size, len(_codec.dumps(created(""))))
        assert json.loads(await socket.receive_str())["type"] == "response.completed"


async def test_a_batch_is_one_write() -> None:
    services = FakeServices(lambda connection, event: [])
    async with http_port(services) as port:
        _, writer = await handshake(port)
        connection = await services.connection()
        sink: Any = connection.sink
        writes: list[bytes] = []

        class Recording:
            def write(self, data: bytes) -> None:
                writes.append(data)

            def is_closing(self) -> bool:
                return False

        sink._transport = Recording()
        await sink.write([sink.encode(event) for event in greeting()])
        writer.close()
    assert len(writes) == 1
    assert writes[0].count(b'"type":') >= 5


async def test_binary_frames_are_read_as_utf_8_json() -> None:
    services = FakeServices()
    async with connected(services) as socket:
        data = json.dumps({**CREATE, "instructions": "삶"}, ensure_ascii=False).encode()
        await socket.send_bytes(data)
        assert json.loads(await socket.receive_str())["type"] == "response.created"
    ((event, size),) = services.connections[0].received
    assert (event.response_create.instructions, size) == ("삶", len(data))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("not json", "invalid_json"),
        ("[]", "invalid_json"),
        ("", "invalid_json"),
        ('{"type":"nope","event_id":"e1","stream_id":"a"}', "unknown_event_type"),
    ],
)
async def test_bad_json_gets_one_error_frame_and_the_socket_lives(text: str, code: str) -> None:
    services = FakeServices()
    async with connected(services) as socket:
        await socket.send_str(text)
        error = json.loads(await socket.receive_str())
        await socket.send_json(CREATE)
        assert json.loads(await socket.receive_str())["type"] == "response.created"
    assert (error["type"], error["status"], error["error"]["code"]) == ("error", 400, code)
    assert "sequence_number" not in error
    if code == "unknown_event_type":
        assert (error["stream_id"], error["event_id"]) == ("a", "e1")


async def test_a_malformed_create_is_rejected_as_a_create_of_its_parent() -> None:
    services = FakeServices()
    async with connected(services) as socket:
        await socket.send_json({**CREATE, "previous_response_id": "resp_1", "input": 7})
        await socket.receive_str()
        await socket.send_json({"type": "response.cancel", "response_id": 7})
        await socket.receive_str()
    first, second = services.connections[0].rejected
    assert first["event"].response_create.previous_response_id == "resp_1"
    assert first["size"] > 50
    assert second["event"] is None


@pytest.mark.parametrize("kind", ["send_str", "send_bytes"])
async def test_bytes_that_are_not_utf_8_close_with_1007(kind: str) -> None:
    services = FakeServices()
    async with connected(services) as socket:
        opcode = WSMsgType.TEXT if kind == "send_str" else WSMsgType.BINARY
        await socket.send_frame(b'{"type":"\xff"}', opcode)
        assert await closed(socket) == (1007, "not UTF-8")
    assert services.connections[0].disconnected.is_set()


async def test_a_message_at_the_limit_is_read_and_one_byte_more_closes_with_1009() -> None:
    services = FakeServices(max_message_bytes=5000)
    async with connected(services) as socket:
        text = json.dumps(CREATE).encode()
        await socket.send_bytes(text + b" " * (5000 - len(text)))
        assert json.loads(await socket.receive_str())["type"] == "response.created"
        await socket.send_bytes(text + b" " * (5001 - len(text)))
        assert await closed(socket) == (1009, "message over 5000 bytes")
    assert services.connections[0].disconnected.is_set()


async def test_the_close_is_heard_although_most_of_the_message_is_still_on_its_way() -> None:
    services = FakeServices(max_message_bytes=1000)
    async with connected(services) as socket:
        await socket.send_bytes(b" " * 30_000_000)
        assert (await closed(socket))[0] == 1009


async def test_an_oversize_message_in_fragments_closes_with_1009() -> None:
    services = FakeServices(max_message_bytes=1000)
    async with http_port(services) as port:
        reader, writer = await handshake(port)
        for index in range(20):
            writer.write(masked(b"x" * 100, opcode=0 if index else 1, final=False))
        async with asyncio.timeout(20):
            assert (await close_frame(reader))[0] == 1009
        writer.close()


async def test_a_protocol_error_closes_with_1002() -> None:
    async with http_port(FakeServices()) as port:
        reader, writer = await handshake(port)
        writer.write(masked(b"", opcode=3, final=True))
        async with asyncio.timeout(20):
            assert await close_frame(reader) == (1002, "protocol error")
        writer.close()


async def test_a_frame_without_a_mask_closes_with_1002_and_is_not_read() -> None:
    services = FakeServices()
    async with http_port(services) as port:
        reader, writer = await handshake(port)
        event = b'{"type":"response.processed"}'
        writer.write(masked(event, opcode=1, final=True))
        await services.until(lambda: len(services.connections[0].received) == 1)
        writer.write(bytes((0x81, len(event))) + event)
        async with asyncio.timeout(20):
            assert await close_frame(reader) == (1002, "protocol error")
        writer.close()
    assert len(services.connections[0].received) == 1


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (Ending("finished"), 1000),
        (Ending("age"), 1001),
        (Ending("age", turns_cut=True), 1012),
        (Ending("drain"), 1001),
        (Ending("drain", turns_cut=True), 1012),
        (Ending("internal"), 1011),
    ],
)
async def test_the_end_of_a_connection_has_its_close_code_after_its_events(
    ending: Ending, code: int
) -> None:
    services = FakeServices()
    async with connected(services) as socket:
        connection = await services.connection()
        connection.send(completed())
        connection.end(ending)
        assert json.loads(await socket.receive_str())["type"] == "response.completed"
        assert (await closed(socket))[0] == code


async def test_a_bug_while_reading_closes_with_1011_without_its_text() -> None:
    def broken(connection: FakeConnection, event: ClientEvent) -> Iterable[Outgoing]:
        raise RuntimeError("/secret/path is on fire")

    async with connected(FakeServices(broken)) as socket:
        await socket.send_json(CREATE)
        assert await closed(socket) == (1011, "internal error")


async def test_a_bug_while_writing_closes_with_1011() -> None:
    services = FakeServices(lambda connection, event: [])
    async with connected(services) as socket:
        connection = await services.connection()
        sink: Any = connection.sink
        sink._drain = None
        connection.send(created())
        assert json.loads(await socket.receive_str())["type"] == "response.created"
        assert await closed(socket) == (1011, "internal error")


@pytest.mark.parametrize("said", [b"", b"\x03\xe8", b"\x03\xe9bye", b"\x0f\xa0"])
async def test_no_close_is_without_a_code_also_in_answer_to_one_that_is(said: bytes) -> None:
    async with http_port(FakeServices()) as port:
        reader, writer = await handshake(port)
        writer.write(masked(said, opcode=8, final=True))
        async with asyncio.timeout(20):
            assert await close_frame(reader) == (1000, "")
        writer.close()


async def test_a_client_that_closes_disconnects() -> None:
    services = FakeServices(lambda connection, event: [created()])
    async with connected(services) as socket:
        await socket.send_json(CREATE)
        await socket.receive_str()
        await socket.close()
        assert socket.close_code == 1000
        await services.connections[0].ended.wait()
    assert services.connections[0].disconnected.is_set()


async def test_a_dropped_connection_disconnects_at_once() -> None:
    services = FakeServices()
    async with http_port(services) as port:
        _, writer = await handshake(port)
        connection = await services.connection()
        writer.transport.abort()
        async with asyncio.timeout(20):
            await connection.disconnected.wait()
            await connection.ended.wait()


async def test_a_reader_that_stops_holds_up_the_writer_and_no_memory() -> None:
    services = FakeServices(lambda connection, event: [])
    async with http_port(services) as port:
        _, writer = await handshake(port)
        connection = await services.connection()
        sink: Any = connection.sink
        frame = sink.encode(created("r" * 100_000))
        written = 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                while written < 100_000_000:
                    await sink.write([frame])
                    written += len(frame)
        assert sink._transport.get_write_buffer_size() < 1_000_000
        writer.transport.abort()


async def test_events_of_a_closed_socket_are_a_connection_error() -> None:
    services = FakeServices()
    async with connected(services) as socket:
        connection = await services.connection()
        await socket.close()
        await connection.ended.wait()
        with pytest.raises(ConnectionError):
            await connection.sink.write([connection.sink.encode(created())])


async def test_a_silent_client_is_pinged_and_its_pong_is_life() -> None:
    settings = HttpSettings(websocket=WebSocketSettings(ping_interval_s=0.05, silence_limit_s=1.0))
    async with connected(FakeServices(), settings, autoping=False) as socket:
        for _ in range(30):
            message = await socket.receive()
            assert message.type is WSMsgType.PING
            await socket.pong(message.data)


async def test_any_frame_is_life_even_without_pongs() -> None:
    settings = HttpSettings(websocket=WebSocketSettings(ping_interval_s=0.05, silence_limit_s=0.5))
    services = FakeServices(lambda connection, event: [created()])
    async with connected(services, settings, autoping=False) as socket:
        pings = 0
        while pings < 30:
            await socket.send_json(CREATE)
            while (await socket.receive()).type is not WSMsgType.PING:
                pass
            pings += 1
        assert not services.connections[0].disconnected.is_set()


async def test_a_client_without_any_sign_of_life_is_dropped() -> None:
    settings = HttpSettings(websocket=WebSocketSettings(ping_interval_s=0.05, silence_limit_s=0.3))
    services = FakeServices()
    async with connected(services, settings, autoping=False):
        connection = await services.connection()
        async with asyncio.timeout(20):
            await connection.disconnected.wait()


async def test_every_frame_of_a_client_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Pings] = []
    monkeypatch.setattr(Pings, "heard", lambda self: heard.append(self))
    services = FakeServices(lambda connection, event: [created()])
    async with connected(services, autoping=False) as socket:
        await socket.pong(b"1")
        await socket.ping(b"2")
        await socket.send_json(CREATE)
        assert (await socket.receive()).type is WSMsgType.PONG
        assert (await socket.receive()).type is WSMsgType.TEXT
        assert len(heard) == 3


async def test_pings_of_the_client_are_answered() -> None:
    async with connected(FakeServices(), autoping=False) as socket:
        await socket.ping(b"42")
        message = await socket.receive()
    assert (message.type, message.data) == (WSMsgType.PONG, b"42")


async def test_the_codex_path_is_the_same() -> None:
    async with connected(FakeServices(), path="/v1/codex/responses") as socket:
        await socket.send_json(CREATE)
        assert json.loads(await socket.receive_str())["type"] == "response.created"


async def test_unknown_query_keys_and_headers_are_ignored() -> None:
    options: dict[str, Any] = {
        "path": "/v1/responses?api-version=preview&model=x",
        "headers": {"OpenAI-Beta": "responses_websockets=2026-02-06", "x-codex": "a" * 20_000},
    }
    async with connected(FakeServices(), **options) as socket:
        await socket.send_json(CREATE)
        assert json.loads(await socket.receive_str())["type"] == "response.created"


@pytest.mark.parametrize("mode", ["event", "in_progress", "off", None])
async def test_the_keepalive_of_the_query_reaches_the_connection(mode: str | None) -> None:
    services = FakeServices()
    query = f"?keepalive={mode}" if mode else ""
    async with connected(services, path=f"/v1/responses{query}"):
        connection = await services.connection()
    assert connection.arguments == {
        "wire": "websocket",
        "tenant": "default",
        "keepalive": mode,
    }


async def test_an_unknown_keepalive_is_refused_before_the_upgrade() -> None:
    status, _, error = await refused(FakeServices(), path="/v1/responses?keepalive=loud")
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "keepalive")


async def test_resume_may_be_asked_for_by_header() -> None:
    services = FakeServices()
    async with connected(services, headers={"Turnwire-Resume": "1"}):
        connection = await services.connection()
    ((event, _),) = connection.received
    assert event.turnwire_session_start.resume


async def test_a_key_may_look_like_a_signed_token() -> None:
    token = f"{'eyJhbGciOiJSUzI1NiJ9' * 4}.{'eyJzdWIiOiJ1c2VyX18tIn0' * 80}.{'s1g-_' * 70}"
    headers = {"authorization": f"Bearer {token}"}
    for key in (token, None):  # the key, or an open server that does not care
        async with connected(FakeServices(key=key), headers=headers) as socket:
            await socket.send_json(CREATE)
            assert json.loads(await socket.receive_str())["type"] == "response.created"


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}])
async def test_a_wrong_key_is_401_before_the_upgrade(headers: dict[str, str]) -> None:
    services = FakeServices(key="right")
    status, answered, error = await refused(services, headers=headers)
    assert (status, error["code"], error["param"]) == (401, "invalid_api_key", None)
    assert answered["www-authenticate"] == "Bearer"
    assert services.connections == []


async def test_switched_off_websocket_is_426_at_once() -> None:
    status, _, error = await refused(FakeServices(), HttpSettings(websocket=None))
    assert (status, error["code"]) == (426, "transport_disabled")


async def test_a_draining_server_refuses_the_upgrade() -> None:
    services = FakeServices()
    services.accepting = False
    status, headers, error = await refused(services)
    assert (status, error["code"]) == (503, "server_is_overloaded")
    assert headers["retry-after"] == "1"


async def test_a_bad_handshake_is_a_json_error() -> None:
    status, _, error = await refused(FakeServices(), headers={"sec-websocket-version": "1"})
    assert (status, error["type"]) == (400, "invalid_request_error")


async def test_a_key_among_the_subprotocols_is_taken_and_never_echoed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = "openai-insecure-api-key.right"
    for offered in (("realtime", key), (key, "openai-organization.o", "realtime")):
        async with connected(FakeServices(key="right"), protocols=offered) as socket:
            assert socket.protocol == "realtime"
    with caplog.at_level(logging.DEBUG):
        async with http_port(FakeServices(key="right")) as port:
            reader, writer = await handshake(port, f"Sec-WebSocket-Protocol: {key}\r\n")
            assert b"sec-websocket-protocol" not in (reader.answer).lower()
            writer.close()
    assert "right" not in caplog.text


async def test_authorization_wins_over_a_key_among_the_subprotocols() -> None:
    status, _, _ = await refused(
        FakeServices(key="right"),
        headers={
            "authorization": "Bearer wrong",
            "sec-websocket-protocol": "realtime, openai-insecure-api-key.right",
        },
    )
    assert status == 401


async def test_compression_is_off_by_default_and_on_by_setting() -> None:
    async with connected(FakeServices(), compress=15) as socket:
        assert not socket.compress
    settings = HttpSettings(websocket=WebSocketSettings(compression=True))
    services = FakeServices(max_message_bytes=5000)
    async with connected(services, settings, compress=15) as socket:
        assert socket.compress
        await socket.send_json({**CREATE, "instructions": "x" * 3000})
        events = [json.loads(await socket.receive_str()) for _ in greeting()]
        assert events[-1]["type"] == "response.completed"
        await socket.send_json({**CREATE, "instructions": "x" * 6000})
        assert (await closed(socket))[0] == 1009


async def test_the_upgrade_carries_a_request_id() -> None:
    async with http_port(FakeServices()) as port:
        reader, writer = await handshake(port)
        assert b"x-request-id: req_" in reader.answer.lower()
        writer.close()
