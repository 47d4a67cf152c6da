"""The gRPC wire: frames, half-close, statuses, limits, metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
import pytest

from harness.fake_services import (
    FakeConnection,
    FakeServices,
    FakeUnaryApi,
    completed,
    created,
    failed,
)
from harness.grpc_context import error_info
from harness.wire_servers import CONNECT, RESPONSES, grpc_port, raw_call, serving_grpc
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.error_pb2 import ERROR_REASON_PREVIOUS_RESPONSE_NOT_FOUND
from turnwire.v1.models_service_pb2 import GetModelRequest, ListModelsRequest, ListModelsResult
from turnwire.v1.response_pb2 import (
    RESPONSE_STATUS_CANCELLED,
    RESPONSE_STATUS_COMPLETED,
    RESPONSE_STATUS_FAILED,
    Response,
)
from turnwire.v1.responses_service_pb2 import (
    CompactRequest,
    CountInputTokensResult,
    DeleteResult,
    GetRequest,
    ListInputItemsRequest,
)
from turnwire.v1.server_event_pb2 import ServerFrame
from turnwire_server.runtime.connection import Ending
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Outgoing
from turnwire_server.transports.grpc import GrpcSettings

pytestmark = pytest.mark.usefixtures("each_grpc_backend")

MODELS = "/turnwire.v1.ModelsService/"
NOT_FOUND = Rejection(
    ERROR_REASON_PREVIOUS_RESPONSE_NOT_FOUND, "No parent.", "previous_response_id"
)


def create(**fields: Any) -> bytes:
    return ClientEvent(response_create=ResponseCreate(model="m", **fields)).SerializeToString()


async def frames(call: Any) -> list[ServerFrame]:
    read: list[ServerFrame] = []
    async with asyncio.timeout(20):
        while (data := await call.read()) is not grpc.aio.EOF:
            read.append(ServerFrame.FromString(data))
    return read


async def failure_of(call: Any) -> grpc.aio.AioRpcError:
    """Read the call to its end and return its status."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(20):
            if hasattr(call, "read"):
                while await call.read() is not grpc.aio.EOF:
                    pass
            await call
    return caught.value


def arms(frame: ServerFrame) -> list[str | None]:
    return [event.WhichOneof("event") for event in frame.events]


async def test_half_close_finishes_what_is_queued_and_ends_with_ok() -> None:
    services = FakeServices()
    async with serving_grpc(services) as channel:
        call = raw_call(channel, CONNECT)()
        for lane in ("a", "b", "c"):
            event = ClientEvent(stream_id=lane, response_create=ResponseCreate(model="m"))
            await call.write(event.SerializeToString())
        await call.done_writing()
        events = [event for frame in await frames(call) for event in frame.events]
        assert await call.code() is grpc.StatusCode.OK
    ends = [event.stream_id for event in events if event.HasField("response_completed")]
    assert ends == ["a", "b", "c"]
    assert services.connections[0].is_half_closed
    assert not services.connections[0].disconnected.is_set()


async def test_half_close_waits_for_a_turn_that_still_runs() -> None:
    services = FakeServices(lambda connection, event: [created()])
    services.hold_after_half_close = True
    async with serving_grpc(services) as channel:
        call = raw_call(channel, CONNECT)()
        await call.write(create())
        await call.done_writing()
        first = ServerFrame.FromString(await call.read())
        connection = services.connections[0]
        connection.send(completed())
        connection.end(Ending("finished"))
        rest = await frames(call)
        assert await call.code() is grpc.StatusCode.OK
    assert [arms(frame) for frame in (first, *rest)] == [
        ["response_created"],
        ["response_completed"],
    ]


async def test_events_that_are_ready_together_share_a_frame() -> None:
    async with serving_grpc(FakeServices()) as channel:
        call = raw_call(channel, CONNECT)(iter([create()]))
        (frame,) = await frames(call)
    assert len(frame.events) == 5


async def test_a_frame_stays_below_its_limit_and_a_larger_event_goes_alone() -> None:
    def script(connection: FakeConnection, event: ClientEvent) -> Iterable[Outgoing]:
        return [created("r" * 450), created("r" * 40), created("r" * 40), created("r" * 4000)]

    settings = GrpcSettings(max_frame_bytes=500)
    async with serving_grpc(FakeServices(script), settings) as channel:
        call = raw_call(channel, CONNECT)(iter([create()]))
        assert [len(frame.events) for frame in await frames(call)] == [1, 2, 1]


async def test_the_sign_of_life_is_a_frame_without_events() -> None:
    services = FakeServices()
    async with serving_grpc(services) as channel:
        call = raw_call(channel, CONNECT)()
        connection = await services.connection()
        connection.beat()
        assert ServerFrame.FromString(await call.read()) == ServerFrame()
        await call.done_writing()
        assert await frames(call) == []


async def test_the_size_of_an_event_is_what_was_on_the_wire() -> None:
    services = FakeServices()
    async with serving_grpc(services) as channel:
        data = create(instructions="x" * 5000)
        await frames(raw_call(channel, CONNECT)(iter([data])))
    ((event, size),) = services.connections[0].received
    assert (event.response_create.instructions, size) == ("x" * 5000, len(data))


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe"])
async def test_bytes_that_are_no_event_end_the_stream_with_invalid_argument(data: bytes) -> None:
    services = FakeServices()
    async with serving_grpc(services) as channel:
        call = raw_call(channel, CONNECT)()
        await call.write(data)
        failure = await failure_of(call)
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_info(failure.trailing_metadata()).reason == "INVALID_VALUE"
    assert services.connections[0].disconnected.is_set()


async def test_a_message_over_the_limit_ends_the_stream_with_resource_exhausted() -> None:
    services = FakeServices(max_message_bytes=10_000)
    async with serving_grpc(services) as channel:
        call = raw_call(channel, CONNECT)()
        await call.write(create(instructions="x" * 9_000))
        await call.read()
        await call.write(create(instructions="x" * 11_000))
        assert (await failure_of(call)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        connection = services.connections[0]
        async with asyncio.timeout(20):
            await connection.ended.wait()
    assert len(connection.received) == 1


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)])
async def test_a_wrong_key_ends_every_call_with_unauthenticated(
    metadata: tuple[tuple[str, str], ...],
) -> None:
    services = FakeServices(key="right")
    async with serving_grpc(services) as channel:
        for path in (
            CONNECT,
            RESPONSES + "Create",
            RESPONSES + "StreamCreate",
            MODELS + "GetModel",
        ):
            call = raw_call(channel, path)
            failure = await failure_of(
                call(metadata=metadata) if path == CONNECT else call(b"", metadata=metadata)
            )
            assert failure.code() is grpc.StatusCode.UNAUTHENTICATED
            info = error_info(failure.trailing_metadata())
            assert (info.reason, info.domain) == ("INVALID_API_KEY", "turnwire.dev")
    assert services.connections == []


async def test_the_right_key_is_let_in() -> None:
    async with serving_grpc(FakeServices(key="right")) as channel:
        metadata = (("authorization", "Bearer right"),)
        call = raw_call(channel, CONNECT)(iter([create()]), metadata=metadata)
        assert len(await frames(call)) == 1


async def test_cancelling_the_call_disconnects_at_once() -> None:
    services = FakeServices(lambda connection, event: [created()])
    services.hold_after_half_close = True
    async with serving_grpc(services) as channel:
        call = raw_call(channel, CONNECT)()
        await call.write(create())
        await call.read()
        call.cancel()
        connection = services.connections[0]
        async with asyncio.timeout(20):
            await connection.disconnected.wait()
            await connection.ended.wait()
    assert connection.was_cancelled


async def test_a_deadline_cancels_like_the_client() -> None:
    services = FakeServices(lambda connection, event: [created()])
    services.hold_after_half_close = True
    async with serving_grpc(services) as channel:
        call = raw_call(channel, CONNECT)(timeout=3)
        await call.write(create())
        assert (await failure_of(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        async with asyncio.timeout(20):
            await services.connections[0].disconnected.wait()


async def test_a_client_that_vanishes_disconnects() -> None:
    services = FakeServices(lambda connection, event: [created()])
    services.hold_after_half_close = True
    async with grpc_port(services) as port:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        call = raw_call(channel, CONNECT)()
        await call.write(create())
        await call.read()
        await channel.close()
        async with asyncio.timeout(20):
            await services.connections[0].disconnected.wait()


@pytest.mark.parametrize(
    ("ending", "code", "reason"),
    [
        (Ending("age"), "UNAVAILABLE", "WEBSOCKET_CONNECTION_LIMIT_REACHED"),
        (Ending("drain", turns_cut=True), "UNAVAILABLE", "SERVER_IS_OVERLOADED"),
        (Ending("internal"), "INTERNAL", "SERVER_ERROR"),
    ],
)
async def test_the_end_of_a_connection_is_a_status_after_its_events(
    ending: Ending, code: str, reason: str
) -> None:
    services = FakeServices()
    async with serving_grpc(services) as channel:
        call = raw_call(channel, CONNECT)()
        connection = await services.connection()
        connection.send(completed())
        connection.end(ending)
        assert arms(ServerFrame.FromString(await call.read())) == ["response_completed"]
        failure = await failure_of(call)
    assert failure.code() is grpc.StatusCode[code]
    assert error_info(failure.trailing_metadata()).reason == reason


async def test_a_bug_while_reading_ends_the_stream_without_its_text() -> None:
    def broken(connection: FakeConnection, event: ClientEvent) -> Iterable[Outgoing]:
        raise RuntimeError("/secret/path is on fire")

    async with serving_grpc(FakeServices(broken)) as channel:
        call = raw_call(channel, CONNECT)()
        await call.write(create())
        failure = await failure_of(call)
    assert failure.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(failure.details())


async def test_a_bug_in_a_unary_call_is_internal_with_a_request_id() -> None:
    async with serving_grpc(FakeServices()) as channel:
        request = GetModelRequest(model="boom").SerializeToString()
        failure = await failure_of(raw_call(channel, MODELS + "GetModel")(request))
    assert failure.code() is grpc.StatusCode.INTERNAL
    assert "req_" in str(failure.details())
    assert "secret" not in str(failure.details())


async def test_resume_may_be_asked_for_by_metadata() -> None:
    services = FakeServices()
    async with serving_grpc(services) as channel:
        call = raw_call(channel, CONNECT)(iter([]), metadata=(("turnwire-resume", "1"),))
        await frames(call)
    ((event, _),) = services.connections[0].received
    assert event.turnwire_session_start.resume


async def test_while_the_server_drains_new_streams_are_told_to_come_back() -> None:
    services = FakeServices()
    services.accepting = False
    async with serving_grpc(services) as channel:
        for path in (CONNECT, RESPONSES + "Create", RESPONSES + "StreamCreate"):
            call = raw_call(channel, path)
            failure = await failure_of(call() if path == CONNECT else call(b""))
            assert failure.code() is grpc.StatusCode.UNAVAILABLE
            info = error_info(failure.trailing_metadata())
            assert info.metadata["retry-after"] == "1"


async def test_create_returns_the_response_of_a_turn_that_is_not_persistent() -> None:
    services = FakeServices()
    async with serving_grpc(services) as channel:
        request = ResponseCreate(model="m").SerializeToString()
        response = Response.FromString(await raw_call(channel, RESPONSES + "Create")(request))
    assert (response.id, response.status) == ("resp_1", RESPONSE_STATUS_COMPLETED)
    assert services.connections[0].arguments == {
        "wire": "grpc",
        "tenant": "default",
        "persistent": False,
    }


async def test_create_returns_a_response_that_failed() -> None:
    services = FakeServices(lambda connection, event: [created(), failed()])
    async with serving_grpc(services) as channel:
        request = ResponseCreate(model="m").SerializeToString()
        response = Response.FromString(await raw_call(channel, RESPONSES + "Create")(request))
    assert response.status == RESPONSE_STATUS_FAILED


@pytest.mark.parametrize("name", ["Create", "StreamCreate"])
async def test_a_refused_create_is_a_status_with_the_same_code_and_param(name: str) -> None:
    services = FakeServices(lambda connection, event: [NOT_FOUND.event()])
    async with serving_grpc(services) as channel:
        request = ResponseCreate(model="m").SerializeToString()
        failure = await failure_of(raw_call(channel, RESPONSES + name)(request))
    info = error_info(failure.trailing_metadata())
    assert info.reason == "PREVIOUS_RESPONSE_NOT_FOUND"
    assert info.metadata["param"] == "previous_response_id"
    assert failure.details() == "No parent."


async def test_stream_create_sends_frames_that_end_with_the_terminal_event() -> None:
    async with serving_grpc(FakeServices()) as channel:
        request = ResponseCreate(model="m").SerializeToString()
        call = raw_call(channel, RESPONSES + "StreamCreate")(request)
        (frame,) = await frames(call)
        assert await call.code() is grpc.StatusCode.OK
    assert arms(frame)[-1] == "response_completed"


async def test_unary_calls_reach_their_methods() -> None:
    unary = FakeUnaryApi()
    async with serving_grpc(FakeServices(), unary=unary) as channel:

        async def ask(path: str, request: Any) -> bytes:
            return bytes(await raw_call(channel, path)(request.SerializeToString()))

        asked = GetRequest(response_id="resp_9")
        assert Response.FromString(await ask(RESPONSES + "Get", asked)).id == "resp_9"
        cancelled = Response.FromString(await ask(RESPONSES + "Cancel", asked))
        assert cancelled.status == RESPONSE_STATUS_CANCELLED
        assert DeleteResult.FromString(await ask(RESPONSES + "Delete", asked)).deleted
        listing = ListInputItemsRequest(response_id="resp_9", limit=3)
        await ask(RESPONSES + "ListInputItems", listing)
        counted = await ask(RESPONSES + "CountInputTokens", ResponseCreate(model="m"))
        assert CountInputTokensResult.FromString(counted).input_tokens == 7
        models = ListModelsResult.FromString(await ask(MODELS + "ListModels", ListModelsRequest()))
        assert [model.id for model in models.data] == ["m"]
        failure = await failure_of(
            raw_call(channel, RESPONSES + "Compact")(CompactRequest(model="m").SerializeToString())
        )
        assert error_info(failure.trailing_metadata()).reason == "UNSUPPORTED_VALUE"
    assert unary.asked == [listing, ResponseCreate(model="m"), CompactRequest(model="m")]


async def test_a_rejected_unary_call_is_a_status() -> None:
    async with serving_grpc(FakeServices()) as channel:
        for name in ("Get", "Delete", "Cancel"):
            request = GetRequest(response_id="resp_missing").SerializeToString()
            failure = await failure_of(raw_call(channel, RESPONSES + name)(request))
            assert failure.code() is grpc.StatusCode.NOT_FOUND
            assert error_info(failure.trailing_metadata()).reason == "RESPONSE_NOT_FOUND"


@pytest.mark.parametrize("name", ["Create", "StreamCreate", "Get", "CountInputTokens"])
async def test_an_undecodable_request_is_invalid_argument(name: str) -> None:
    async with serving_grpc(FakeServices()) as channel:
        failure = await failure_of(raw_call(channel, RESPONSES + name)(b"\xff\xff"))
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_thousands_of_streams_may_open_at_once() -> None:
    streams = 3000
    services = FakeServices()

    async def code_of(call: Any) -> grpc.StatusCode:
        while await call.read() is not grpc.aio.EOF:
            pass
        return grpc.StatusCode(await call.code())

    async with grpc_port(services) as port:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(8)
        ]
        connects = [raw_call(channel, CONNECT) for channel in channels]
        data = create()
        async with asyncio.timeout(60):
            calls = [connects[index % 8](iter([data])) for index in range(streams)]
            codes = await asyncio.gather(*map(code_of, calls))
        for channel in channels:
            await channel.close()
    assert set(codes) == {grpc.StatusCode.OK}
    assert len(services.connections) == streams


async def test_a_field_of_json_text_that_is_none_is_one_refused_event_and_the_stream_lives() -> (
    None
):
    services = FakeServices()
    broken = ResponseCreate(model="m", previous_response_id="resp_1")
    broken.tools.add().function.parameters = '{"type":'
    event = ClientEvent(stream_id="a", event_id="e", response_create=broken)
    async with serving_grpc(services) as channel:
        call = raw_call(channel, CONNECT)(iter([event.SerializeToString(), create()]))
        events = [event for frame in await frames(call) for event in frame.events]
    (refused,) = services.connections[0].rejected
    assert refused["rejection"].param == "tools[0].parameters"
    assert refused["event"].response_create.previous_response_id == "resp_1"
    assert (events[0].stream_id, events[0].event_id) == ("a", "e")
    assert len(services.connections[0].received) == 1


async def test_of_a_create_whose_settings_passed_before_all_else_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services = FakeServices()
    monkeypatch.setattr(services.validator, "knows_settings", lambda *_: True)
    with_item, with_prompt, with_conversation, plain = (
        ClientEvent(response_create=ResponseCreate(model="m")) for _ in range(4)
    )
    item = with_item.response_create.input.items.items.add()
    item.additional_tools.tools.add().function.parameters = '{"type":'
    with_prompt.response_create.prompt.variables = '{"name":'
    for event in (plain, with_conversation):
        event.response_create.tools.add().function.parameters = "not looked at again"
    with_conversation.response_create.conversation.id = "conv_1"
    steer = ClientEvent(event_id="steer")
    steer.response_steer.input.items.items.add().CopyFrom(item)
    plain.response_create.input.text = "Hi"
    sent = (with_item, with_prompt, with_conversation, steer, plain)
    async with serving_grpc(services) as channel:
        await frames(raw_call(channel, CONNECT)(iter([one.SerializeToString() for one in sent])))
    (connection,) = services.connections
    assert [one["rejection"].param for one in connection.rejected] == [
        "input[0].tools[0].parameters",
        "prompt.variables",
        "tools[0].parameters",
        "input[0].tools[0].parameters",
    ]
    assert [event for event, _ in connection.received] == [plain]
