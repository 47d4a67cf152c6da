"""The client on real sockets against servers that follow a script."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from aiohttp import WSMsgType, web
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

import turnwire
from harness.client_events import (
    call_item,
    call_turn,
    cancelled,
    failed_turn,
    opening,
    rejected,
    text_turn,
)
from harness.client_wires import Script, scripted_grpc, scripted_http, scripted_websocket
from turnwire import _codec
from turnwire.v1 import models_service_pb2, models_service_pb2_grpc, session_pb2_grpc
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.error_pb2 import ErrorBody
from turnwire.v1.server_event_pb2 import ServerEvent, ServerFrame, SessionError

SERVERS: dict[str, Callable[[Script], AbstractAsyncContextManager[tuple[str, object]]]] = {
    "grpc": scripted_grpc,
    "websocket": scripted_websocket,
    "http": scripted_http,
}


@pytest.fixture(params=SERVERS)
def wire(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@asynccontextmanager
async def connected(
    wire: str, script: Script, *, reconnect_s: float = 60.0
) -> AsyncIterator[turnwire.Session]:
    async with (
        asyncio.timeout(20),
        SERVERS[wire](script) as (url, _),
        turnwire.connect(url, model="m", close_timeout_s=2, reconnect_s=reconnect_s) as session,
    ):
        yield session


def numbered() -> Script:
    """Answer the n-th create as `resp_n` with its input in two pieces."""
    count = 0

    def script(event: ClientEvent) -> list[ServerEvent]:
        nonlocal count
        count += 1
        text = event.response_create.input.text
        return text_turn(event, f"resp_{count}", text[:1], text[1:])

    return script


async def test_a_turn_looks_the_same_on_every_wire(wire: str) -> None:
    async with connected(wire, numbered()) as session:
        assert session.wire == wire
        turn = session.create("Grüße 🚀", include=["turnwire.timing"], stream_id="a")
        events = [event async for event in turn]
        response = await turn.response()
        stats = turn.stats
        assert session.bytes_up >= (stats.bytes_up if stats else 0) > 0
        assert session.bytes_down >= (stats.bytes_down if stats else 0) > 0
    assert {event.stream_id for event in events} == {"a"}
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_item.done",
        "response.completed",
    ]
    assert response.output_text == "Grüße 🚀"
    assert response.to_dict()["usage"]["input_tokens"] == 40  # type: ignore[index, call-overload]
    assert stats is not None and stats.tokens_rendered == 7


async def test_an_agent_loop_runs_on_every_wire(wire: str) -> None:
    turns = 0

    def script(event: ClientEvent) -> list[ServerEvent]:
        nonlocal turns
        turns += 1
        if turns == 1:
            return call_turn(event, "resp_1", call_item("add", '{"a":1,"b":2}'))
        assert event.response_create.previous_response_id == "resp_1"
        output = event.response_create.input.items.items[0].function_call_output
        return text_turn(event, "resp_2", f"It is {output.output.text}.")

    def add(a: int, b: int) -> int:
        return a + b

    async with connected(wire, script) as session:
        result = await session.run("1 + 2?", tools={"add": add})
    assert result.output_text == "It is 3."
    assert all(turn.bytes_up > 0 and turn.bytes_down > 0 for turn in result.turns)


async def test_turns_on_many_lanes_end_on_every_wire(wire: str) -> None:
    async with connected(wire, numbered()) as session:
        turns = [session.create(f"t{n}", stream_id=f"lane.{n % 5}") for n in range(20)]
        texts = [(await turn.response()).output_text for turn in turns]
    assert texts == [f"t{n}" for n in range(20)]


@pytest.mark.parametrize("name", ["event_id", "stream_id"])
@pytest.mark.parametrize(
    "given",
    ["\ud800", 5, b"abc", uuid.UUID(int=5), object()],
    ids=lambda given: type(given).__name__,
)
async def test_an_id_that_is_no_text_is_refused_alike_in_all_turns_and_leaves_the_others_alone(
    wire: str, name: str, given: Any
) -> None:
    async def outcome(session: turnwire.Session) -> object:
        try:
            turn = session.create("Hi", **{name: given})
        except (TypeError, ValueError) as error:
            return type(error), str(error)
        assert getattr(turn, name) == "abc"  # Protobuf takes bytes.
        return (await turn.response()).output_text

    async with connected(wire, numbered()) as session:
        first = await outcome(session)
        await session.create("Hi").response()
        other = session.create("Other", stream_id="b")
        assert await outcome(session) == first
        assert (await other.response()).output_text == "Other"
        assert session.is_open
    assert (first == "Hi") is (given == b"abc")


async def test_a_refusal_is_typed_on_every_wire(wire: str) -> None:
    def script(event: ClientEvent) -> list[ServerEvent]:
        return [rejected(event, "context_length_exceeded", 400, "input")]

    async with connected(wire, script) as session:
        with pytest.raises(turnwire.InvalidRequest) as refused:
            await session.create("x", stream_id="a").response()
        assert session.is_open
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")


async def test_a_failed_turn_raises_on_every_wire(wire: str) -> None:
    async with connected(wire, lambda event: failed_turn(event, "resp_1", "oops")) as session:
        with pytest.raises(turnwire.TurnFailed, match="oops"):
            await session.create("x").response()


async def test_nobody_listening_is_a_connection_that_failed(wire: str) -> None:
    async with asyncio.timeout(20), SERVERS[wire](numbered()) as (url, _):
        pass
    with pytest.raises(turnwire.ConnectionFailed):
        async with turnwire.connect(url, model="m") as session:
            await session.create("x").response()


@pytest.mark.parametrize("wire", ["websocket", "http"])
async def test_a_wrong_key_is_an_authentication_that_failed(wire: str) -> None:
    serve = {"websocket": scripted_websocket, "http": scripted_http}[wire]
    async with asyncio.timeout(20), serve(numbered(), key="sesame") as (url, _):
        with pytest.raises(turnwire.AuthenticationFailed) as refused:
            async with turnwire.connect(url, api_key="wrong", model="m") as session:
                await session.create("x").response()
        assert (refused.value.code, refused.value.status) == ("invalid_api_key", 401)
        async with turnwire.connect(url, api_key="sesame", model="m") as session:
            assert (await session.create("x").response()).id == "resp_1"


async def test_leaving_half_closes_a_grpc_stream() -> None:
    async with asyncio.timeout(20), scripted_grpc(numbered()) as (url, log):
        async with turnwire.connect(url, api_key="sesame", model="m") as session:
            await session.create("x").response()
        assert log == ["Bearer sesame", "half-closed"]


async def test_leaving_closes_a_websocket_with_1000() -> None:
    async with asyncio.timeout(20), scripted_websocket(numbered()) as (url, log):
        async with turnwire.connect(url, model="m") as session:
            await session.create("x").response()
        assert log == ["closed 1000"]


async def test_a_frame_with_events_of_several_turns_is_split() -> None:
    waiting: list[ClientEvent] = []
    frames: list[ServerFrame] = []

    def script(event: ClientEvent) -> list[ServerEvent]:
        waiting.append(event)
        if len(waiting) < 2:
            return []
        turns = [text_turn(create, f"resp_{create.stream_id}", "x") for create in waiting]
        frames.extend(ServerFrame(events=pair) for pair in zip(*turns, strict=True))
        return [event for frame in frames for event in frame.events]

    async with connected("grpc", script) as session:
        turns = [session.create("x", stream_id=lane) for lane in "ab"]
        ids = [(await turn.response()).id for turn in turns]
        sizes = [turn.stats.bytes_down for turn in turns if turn.stats]
        assert sum(sizes) == session.bytes_down == sum(frame.ByteSize() for frame in frames)
    assert ids == ["resp_a", "resp_b"]


# Ends of a connection.


class _EndingServicer(session_pb2_grpc.SessionServiceServicer):
    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        self._code = code
        self._reason = reason

    async def Connect(self, request_iterator, context):  # type: ignore[no-untyped-def]
        async for _ in request_iterator:
            detail = any_pb2.Any()
            detail.Pack(error_details_pb2.ErrorInfo(reason=self._reason, domain="turnwire.dev"))
            status = status_pb2.Status(message="why", details=[detail])
            trailers = (("grpc-status-details-bin", status.SerializeToString()),)
            await context.abort(self._code, "why", trailers)
        yield


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "INVALID_API_KEY", turnwire.AuthenticationFailed),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE", turnwire.ConnectionLost),
        (grpc.StatusCode.CANCELLED, "SERVER_ERROR", turnwire.ConnectionLost),
    ],
)
async def test_a_stream_that_ends_with_a_status_is_typed(
    code: grpc.StatusCode, reason: str, kind: type[turnwire.TurnwireError]
) -> None:
    server = grpc.aio.server()
    servicer = _EndingServicer(code, reason)
    session_pb2_grpc.add_SessionServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with (
            asyncio.timeout(20),
            turnwire.connect(f"grpc://127.0.0.1:{port}", model="m", reconnect_s=0) as session,
        ):
            with pytest.raises(kind) as ended:
                await session.create("x").response()
    finally:
        await server.stop(None)
    if code is not grpc.StatusCode.CANCELLED:
        assert getattr(ended.value, "code", None) == reason.lower()


async def test_a_websocket_that_is_closed_under_a_turn_tells_the_code() -> None:
    async def upgrade(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        await socket.close(code=1012)
        return socket

    async with (
        asyncio.timeout(20),
        scripted_http(numbered(), routes=[web.get("/x/responses", upgrade)]) as (url, _),
    ):
        url = url.replace("http", "ws") + "/x"
        async with turnwire.connect(url, model="m", reconnect_s=0) as session:
            with pytest.raises(turnwire.ConnectionLost) as lost:
                await session.create("x").response()
    assert lost.value.close_code == 1012


async def test_a_websocket_that_is_switched_off_is_a_connection_that_failed_with_426() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=426)

    async with (
        asyncio.timeout(20),
        scripted_http(numbered(), routes=[web.get("/v1/responses", refuse)]) as (url, _),
    ):
        with pytest.raises(turnwire.ConnectionFailed) as failed:
            async with turnwire.connect(url.replace("http", "ws")):
                pass
    assert failed.value.status == 426


@pytest.mark.parametrize("text", ["not json", '{"type":"response.output_text.delta","delta":3}'])
async def test_a_malformed_event_is_a_protocol_violation(text: str) -> None:
    async def upgrade(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        await socket.send_str('{"type":"of.a.later.version","x":1}')
        await socket.send_str(text)
        await socket.receive()
        return socket

    async with (
        asyncio.timeout(20),
        scripted_http(numbered(), routes=[web.get("/x/responses", upgrade)]) as (url, _),
    ):
        async with turnwire.connect(url.replace("http", "ws") + "/x", model="m") as session:
            with pytest.raises(turnwire.ProtocolViolation):
                await session.create("x").response()


async def test_a_type_of_a_later_version_is_skipped_on_json_wires() -> None:
    later = b'{"type":"of.a.later.version","sequence_number":2,"x":1}'

    async def upgrade(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        create = _codec.loads(ClientEvent, (await socket.receive()).data)
        await socket.send_str(later.decode())
        for event in text_turn(create, "resp_1", "ws"):
            await socket.send_str(_codec.dumps(event).decode())
        await socket.receive()
        return socket

    async def post(request: web.Request) -> web.Response:
        events = [_codec.dumps(event) for event in text_turn(ClientEvent(), "resp_1", "http")]
        return web.Response(body=b"".join(b"data: %b\n\n" % data for data in [later, *events]))

    routes = [web.get("/x/responses", upgrade), web.post("/x/responses", post)]
    async with asyncio.timeout(20), scripted_http(numbered(), routes=routes) as (url, _):
        for name in ("ws", "http"):
            async with turnwire.connect(f"{url.replace('http', name)}/x", model="m") as session:
                assert (await session.create("x").response()).output_text == name


# Signs of life.


async def test_a_ping_of_the_server_is_answered_and_one_of_the_client_is_waited_for() -> None:
    heard: list[tuple[WSMsgType, bytes]] = []

    async def upgrade(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        await socket.ping(b"there?")
        async for message in socket:
            if message.type is WSMsgType.PING:
                await socket.pong(message.data)
            elif message.type is WSMsgType.PONG:
                heard.append((message.type, message.data))
        return socket

    async with (
        asyncio.timeout(20),
        scripted_http(numbered(), routes=[web.get("/x/responses", upgrade)]) as (url, _),
        turnwire.connect(url.replace("http", "ws") + "/x") as session,
    ):
        await session._wire.ping()
    assert heard == [(WSMsgType.PONG, b"there?")]


async def test_a_grpc_server_without_health_checks_is_alive_all_the_same() -> None:
    async with connected("grpc", numbered()) as session:
        await session._wire.ping()


async def test_a_refused_handshake_tells_when_to_come_back() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=503, headers={"retry-after": "7"})

    async with (
        asyncio.timeout(20),
        scripted_http(numbered(), routes=[web.get("/v1/responses", refuse)]) as (url, _),
    ):
        with pytest.raises(turnwire.ConnectionFailed) as failed:
            async with turnwire.connect(url.replace("http", "ws")):
                pass
    assert (failed.value.status, failed.value.retry_after_s) == (503, 7.0)


# HTTP's own.


async def test_an_answer_that_breaks_off_loses_its_turn_alone() -> None:
    script = numbered()

    def cut(event: ClientEvent) -> list[ServerEvent]:
        events = list(script(event))
        return events[:3] if event.response_create.input.text == "cut" else events

    async with connected("http", cut, reconnect_s=0) as session:
        turn = session.create("cut")
        with pytest.raises(turnwire.ConnectionLost):
            await turn.response()
        assert (await session.create("whole").response()).output_text == "whole"


async def test_an_error_before_a_failure_is_not_the_end_over_sse() -> None:
    def script(event: ClientEvent) -> list[ServerEvent]:
        *begun, failed = failed_turn(event, "resp_1", "oops")
        body = ErrorBody(type="server_error", code="oops", message="It broke.")
        return [*begun, ServerEvent(sequence_number=9, error=SessionError(error=body)), failed]

    async with connected("http", script) as session:
        with pytest.raises(turnwire.TurnFailed):
            await session.create("x").response()


async def test_a_lone_error_in_the_middle_of_sse_refuses_the_turn() -> None:
    def script(event: ClientEvent) -> list[ServerEvent]:
        body = ErrorBody(type="server_error", code="server_error", message="It broke.")
        return [*opening(event, "resp_1"), ServerEvent(error=SessionError(error=body))]

    async with connected("http", script) as session:
        with pytest.raises(turnwire.ServerFailed) as refused:
            await session.create("x").response()
    assert refused.value.status == 500


@asynccontextmanager
async def hanging_http(
    on_cancel: Callable[[], int],
) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Serve turns that begin and then wait for a cancel; yields the URL and "the peer left"."""
    over = asyncio.Event()
    left = asyncio.Event()

    async def create(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        event = ClientEvent()
        for started in opening(event, "resp_1"):
            await answer.write(b"data: " + _codec.dumps(started) + b"\n\n")
        try:
            await over.wait()
        except asyncio.CancelledError:
            left.set()
            raise
        await answer.write(b"data: " + _codec.dumps(cancelled(event, "resp_1")) + b"\n\n")
        return answer

    async def cancel(request: web.Request) -> web.Response:
        status = on_cancel()
        if status == 200:
            over.set()
            return web.json_response({"id": "resp_1", "status": "cancelled"})
        return web.json_response({"error": {"code": "response_not_found"}}, status=status)

    application = web.Application()
    application.add_routes(
        [
            web.post("/v1/responses", create),
            web.post("/v1/responses/resp_1/cancel", cancel),
        ]
    )
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", left
    finally:
        await runner.cleanup()


async def test_cancelling_over_http_asks_the_server_first() -> None:
    async with asyncio.timeout(20), hanging_http(lambda: 200) as (url, _):
        async with turnwire.connect(url, model="m") as session:
            turn = session.create("x")
            await turn.started()
            await turn.cancel()
            assert (await turn.response()).status == "cancelled"


async def test_cancelling_over_http_leaves_where_the_server_knows_no_such_response() -> None:
    async with asyncio.timeout(20), hanging_http(lambda: 404) as (url, left):
        async with turnwire.connect(url, model="m") as session:
            turn, queued = session.create("x"), session.create("y")
            await turn.started()
            await queued.cancel()
            await turn.cancel()
            for one in (turn, queued):
                with pytest.raises(turnwire.RequestCancelled):
                    await one.response()
            await left.wait()


@pytest.mark.parametrize("resume", [True, False])
async def test_closing_over_http_ends_what_runs_and_breaks_it_off(resume: bool) -> None:
    asked: list[bool] = []

    def cancel() -> int:
        asked.append(True)
        return 404

    async with asyncio.timeout(20), hanging_http(cancel) as (url, left):
        async with turnwire.connect(url, model="m", resume=resume) as session:
            turn = session.create("x")
            await turn.started()
        await left.wait()
        # Without a key its leaving says it all.
        assert bool(asked) is resume
        with pytest.raises(turnwire.SessionClosed):
            await turn.response()


# Calls beside the turns.


async def test_calls_over_websocket_go_to_the_same_origin_by_http() -> None:
    asked = []

    def answer(name: str, body: object) -> Callable[[web.Request], object]:
        async def handle(request: web.Request) -> web.Response:
            asked.append((name, dict(request.query), await request.text()))
            return web.json_response(body)

        return handle

    response = {"id": "resp/1", "object": "response", "status": "completed"}
    item = {"id": "msg_1", "type": "message", "role": "user", "content": "Hi"}
    page = {
        "object": "list",
        "data": [item],
        "first_id": "msg_1",
        "last_id": "msg_1",
        "has_more": True,
    }
    model = {"id": "sim", "object": "model", "created": 1, "owned_by": "sim", "simulated": True}
    routes = [
        web.get("/v1/responses/{id}", answer("get", response)),
        web.delete("/v1/responses/{id}", answer("delete", {"id": "resp/1", "deleted": True})),
        web.post("/v1/responses/{id}/cancel", answer("cancel", response)),
        web.get("/v1/responses/{id}/input_items", answer("items", page)),
        web.post("/v1/responses/input_tokens", answer("count", {"input_tokens": 12})),
        web.get("/v1/models", answer("models", {"object": "list", "data": [model]})),
    ]
    async with (
        asyncio.timeout(20),
        scripted_websocket(numbered(), routes=routes) as (url, _),
        turnwire.connect(url, model="m") as session,
    ):
        assert (await session.get("resp/1", include=["a", "b"])).id == "resp/1"
        await session.delete("resp/1")
        assert (await session.cancel_response("resp/1")).status == "completed"
        items = await session.input_items("resp/1", after="msg_0", limit=3, order="asc")
        assert items.to_dicts()[0]["content"] == "Hi"
        assert (items.first_id, items.has_more) == ("msg_1", True)
        assert await session.count_tokens("Hi") == 12
        assert await session.models() == [turnwire.ModelInfo("sim", "sim", None, simulated=True)]
        assert session.bytes_up > 0 and session.bytes_down > 0
    assert [name for name, _, _ in asked] == ["get", "delete", "cancel", "items", "count", "models"]
    assert asked[3][1] == {"after": "msg_0", "limit": "3", "order": "asc"}
    assert json.loads(asked[4][2]) == {"model": "m", "input": "Hi"}


async def test_a_call_that_the_server_refuses_is_typed() -> None:
    async with connected("http", numbered()) as session:
        with pytest.raises(turnwire.NotFound):
            await session.get("resp_none")


class _Models(models_service_pb2_grpc.ModelsServiceServicer):
    async def ListModels(self, request, context):  # type: ignore[no-untyped-def]
        model = models_service_pb2.Model(id="sim", owned_by="sim", context_length=99)
        return models_service_pb2.ListModelsResult(object="list", data=[model])


async def test_calls_over_grpc_share_the_channel_and_its_errors_are_typed() -> None:
    def add(server: grpc.aio.Server) -> None:
        models_service_pb2_grpc.add_ModelsServiceServicer_to_server(_Models(), server)

    async with (
        asyncio.timeout(20),
        scripted_grpc(numbered(), servicers=[add]) as (url, _),
        turnwire.connect(url) as session,
    ):
        assert await session.models() == [turnwire.ModelInfo("sim", "sim", 99, simulated=False)]
        assert session.bytes_down > 0
        with pytest.raises(turnwire.ResponseRejected) as refused:
            await session.get("resp_1")
    assert refused.value.status == 501
