"""`Idempotency-Key` over HTTP and gRPC: the same request again gets the same response."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import grpc
import openai
import orjson
import pytest

from harness.background import WAIT_S, Bench, bench
from harness.clock import ManualClock
from harness.stack import Parts
from harness.waiting import until
from harness.wire_servers import RESPONSES
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.response_pb2 import Response
from turnwire.v1.server_event_pb2 import ServerFrame
from turnwire_server.runtime.settings import (
    BackgroundSettings,
    IdempotencySettings,
    RuntimeSettings,
)

FORMS = pytest.mark.parametrize("store", [True, False], ids=["stored", "unstored"])


@pytest.fixture
async def desk() -> AsyncIterator[Bench]:
    async with bench() as opened:
        yield opened


async def answer_of(posting: Any) -> tuple[int, Any]:
    """Return status and JSON; of a stream its events."""
    async with asyncio.timeout(WAIT_S), posting as answer:
        body = await answer.read()
        if answer.content_type != "text/event-stream":
            return answer.status, orjson.loads(body)
        lines = [line[6:] for line in body.splitlines() if line.startswith(b"data: ")]
        assert lines[-1] == b"[DONE]"
        return answer.status, [orjson.loads(line) for line in lines[:-1]]


def keyed(desk: Bench, key: str = "key-1", **members: Any) -> Any:
    return desk.post({"input": "Hi", **members}, idempotency_key=key)


# Joining.


@FORMS
async def test_twenty_requests_at_once_with_one_key_run_one_generation(
    desk: Bench, store: bool
) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    answers = [
        asyncio.ensure_future(answer_of(keyed(desk, stream=number % 2 == 0, store=store)))
        for number in range(20)
    ]
    response_id = await desk.engine.held(hold)
    await until(
        lambda: desk.services.detached.find(response_id, tenant="default").attending == 20,
        within_s=WAIT_S,
    )
    desk.engine.release(hold)
    streams = [(await answer)[1] for answer in answers[::2]]
    plain = [(await answer)[1] for answer in answers[1::2]]
    assert len(desk.engine.requests) == 1
    assert all(stream == streams[0] for stream in streams)
    assert [event["sequence_number"] for event in streams[0]] == list(range(len(streams[0])))
    assert all(body == streams[0][-1]["response"] for body in plain)
    await until(lambda: desk.statuses() == ["completed"], within_s=WAIT_S)


@FORMS
async def test_afterwards_the_key_brings_the_same_response(desk: Bench, store: bool) -> None:
    async with keyed(desk, store=store) as answer:
        first = await answer.json()
        assert "idempotent-replayed" not in answer.headers
    async with keyed(desk, store=store) as answer:
        assert await answer.json() == first
        assert answer.headers["idempotent-replayed"] == "true"
    status, events = await answer_of(keyed(desk, store=store, stream=True))
    assert status == 200 and events[-1]["response"] == first
    assert len(desk.engine.requests) == 1


@FORMS
async def test_it_does_so_too_when_its_events_are_no_longer_kept(store: bool) -> None:
    parts = Parts(settings=RuntimeSettings(background=BackgroundSettings(log_ttl_s=1.0)))
    parts.clock = clock = ManualClock()
    async with bench(parts) as desk:
        _, first = await answer_of(keyed(desk, store=store))
        clock.advance(3600.0)
        assert await answer_of(keyed(desk, store=store)) == (200, first)
        _, events = await answer_of(keyed(desk, store=store, stream=True))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[0]["type"] == "response.created" and events[-1]["response"] == first
        assert len(desk.engine.requests) == 1


async def test_the_key_of_an_unstored_response_is_forgotten_after_a_day() -> None:
    parts = Parts(clock=ManualClock())
    async with bench(parts) as desk:
        _, first = await answer_of(keyed(desk, store=False))
        assert isinstance(parts.clock, ManualClock)
        parts.clock.advance(24 * 3600.0 - 1)
        assert await answer_of(keyed(desk, store=False)) == (200, first)
        parts.clock.advance(2)
        _, second = await answer_of(keyed(desk, store=False))
        assert second["id"] != first["id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unstored_response_that_found_no_room_is_refused_and_never_runs_again(
    stream: bool,
) -> None:
    runtime = RuntimeSettings(
        idempotency=IdempotencySettings(max_bytes=8_000),
        background=BackgroundSettings(log_ttl_s=0.000001),
    )
    async with bench(Parts(settings=runtime)) as desk:
        first = [
            (await answer_of(keyed(desk, f"key-{number}", store=False)))[1]["id"]
            for number in range(10)
        ]
        last = (await answer_of(keyed(desk, "key-9", store=False)))[1]["id"]
        async with keyed(desk, "key-0", store=False, stream=stream) as answer:
            refused = (await answer.json())["error"]
        assert last == first[9]
        assert (answer.status, refused["code"]) == (400, "response_already_completed")
        assert refused["param"] == "idempotency-key"
        assert answer.headers["x-should-retry"] == "false"
        other = await answer_of(keyed(desk, "key-0", store=False, input="Something else"))
        assert (other[0], other[1]["error"]["code"]) == (422, "invalid_value")
        assert len(desk.engine.requests) == 10


async def test_so_is_one_that_finds_no_room_at_all() -> None:
    runtime = RuntimeSettings(
        idempotency=IdempotencySettings(max_bytes=0),
        background=BackgroundSettings(log_ttl_s=0.000001),
    )
    async with bench(Parts(settings=runtime)) as desk:
        assert (await answer_of(keyed(desk, store=False)))[0] == 200
        status, refused = await answer_of(keyed(desk, store=False))
        assert (status, refused["error"]["code"]) == (400, "response_already_completed")
        assert len(desk.engine.requests) == 1


async def test_keys_of_unstored_responses_are_bounded_and_the_oldest_go() -> None:
    runtime = RuntimeSettings(
        idempotency=IdempotencySettings(max_bytes=1_500, max_keys=3),
        background=BackgroundSettings(log_ttl_s=0.000001),
    )
    async with bench(Parts(settings=runtime)) as desk:
        for number in range(5):
            await answer_of(keyed(desk, f"key-{number}", store=False))
        for number in (4, 3, 2):
            await answer_of(keyed(desk, f"key-{number}", store=False))
        assert len(desk.engine.requests) == 5
        await answer_of(keyed(desk, "key-1", store=False))
        assert len(desk.engine.requests) == 6


async def test_a_key_may_name_a_response_in_the_background(desk: Bench) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    _, first = await answer_of(keyed(desk, background=True))
    assert await desk.engine.held(hold) == first["id"]
    _, again = await answer_of(keyed(desk, background=True))
    assert (again["id"], again["status"]) == (first["id"], "in_progress")
    desk.engine.release(hold)
    final = await desk.over(first["id"])
    _, over = await answer_of(keyed(desk, background=True))
    assert over["status"] == "completed" and over["output"][0]["id"] == final.output[0].id
    assert len(desk.engine.requests) == 1


async def test_a_key_belongs_to_its_tenant() -> None:
    async with bench(Parts(settings=RuntimeSettings(auth_keys=("one", "two")))) as desk:
        ids = set()
        for name in ("one", "two", "one"):
            headers = {"authorization": f"Bearer {name}", "idempotency_key": "key-1"}
            _, body = await answer_of(desk.post({"input": "Hi"}, **headers))
            ids.add(body["id"])
    assert len(ids) == 2


async def test_the_sdk_sends_keys_too(desk: Bench) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = await desk.create(extra_headers=headers)
    again = await desk.create(extra_headers=headers)
    events = await desk.events(await desk.create(extra_headers=headers, stream=True))
    assert first.id == again.id == events[-1].response.id
    assert len(desk.engine.requests) == 1


# What a key may be.


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "ä", "a\tb"])
async def test_a_bad_key_is_refused_by_name(desk: Bench, key: str) -> None:
    status, body = await answer_of(keyed(desk, key))
    error = body["error"]
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "idempotency-key")
    assert "Idempotency-Key" in error["message"] and not desk.engine.requests


async def test_the_longest_key_is_taken_and_two_are_not(desk: Bench) -> None:
    assert (await answer_of(keyed(desk, "!" + "~" * 254)))[0] == 200
    headers = [("idempotency-key", "a"), ("idempotency-key", "b")]
    url = f"{desk.server.http_url}/responses"
    status, body = await answer_of(
        desk.http.post(url, json={"model": "sim", "input": "Hi"}, headers=headers)
    )
    assert (status, body["error"]["param"]) == (400, "idempotency-key")


@FORMS
@pytest.mark.parametrize("running", [True, False], ids=["running", "over"])
async def test_a_key_with_another_body_is_refused(desk: Bench, store: bool, running: bool) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    first = asyncio.ensure_future(answer_of(keyed(desk, store=store)))
    await desk.engine.held(hold)
    if not running:
        desk.engine.release(hold)
        await first
    status, body = await answer_of(keyed(desk, store=store, temperature=0.5))
    error = body["error"]
    assert (status, error["code"], error["param"]) == (422, "invalid_value", "idempotency-key")
    desk.engine.release(hold)
    assert (await first)[0] == 200
    assert len(desk.engine.requests) == 1


async def test_a_refused_request_leaves_its_key_free(desk: Bench) -> None:
    for _ in range(2):
        status, body = await answer_of(keyed(desk, model="nope"))
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        status, body = await answer_of(keyed(desk, model="nope", stream=True))
        assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert (await answer_of(keyed(desk)))[0] == 200


# Clients that are gone.


@FORMS
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_a_client_that_hung_up_gets_its_answer_when_it_comes_back(
    desk: Bench, store: bool, stream: bool
) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    first = asyncio.ensure_future(answer_of(keyed(desk, store=store, stream=stream)))
    response_id = await desk.engine.held(hold)
    turn = desk.services.detached.find(response_id, tenant="default")
    assert turn is not None
    await until(lambda: turn.attending == 1)
    first.cancel()
    await until(lambda: turn.attending == 0)
    second = asyncio.ensure_future(answer_of(keyed(desk, store=store, stream=stream)))
    await until(lambda: turn.attending == 1)
    desk.engine.release(hold)
    _, body = await second
    final = body[-1]["response"] if stream else body
    assert (final["id"], final["status"]) == (response_id, "completed")
    assert ("cancel", response_id) not in desk.engine.log and len(desk.engine.requests) == 1


@FORMS
async def test_a_client_that_does_not_come_back_is_waited_for_and_then_cancelled_once(
    store: bool,
) -> None:
    clock = ManualClock()
    parts = Parts(settings=RuntimeSettings(idempotency=IdempotencySettings(grace_s=60.0)))
    parts.clock = clock
    async with bench(parts) as desk:
        hold = desk.engine.hold("Hi", after_steps=1)
        first = asyncio.ensure_future(answer_of(keyed(desk, store=store)))
        response_id = await desk.engine.held(hold)
        turn = desk.services.detached.find(response_id, tenant="default")
        assert turn is not None
        await until(lambda: turn.attending == 1)
        first.cancel()
        await until(lambda: turn.attending == 0)
        await clock.run_for(59.0)
        assert ("cancel", response_id) not in desk.engine.log
        await clock.run_for(1.5)
        await until(lambda: ("end", response_id) in desk.engine.log)
        await until(lambda: turn.is_over)
        desk.engine.release(hold)
        for stream in (False, True):
            status, body = await answer_of(keyed(desk, store=store, stream=stream))
            error = body["error"]
            assert (status, error["code"]) == (400, "request_cancelled")
            assert error["param"] == "idempotency-key" and response_id in error["message"]
        assert (await answer_of(keyed(desk, "key-2", store=store)))[0] == 200
        await until(lambda: len(desk.statuses()) == 2)
        assert sorted(desk.statuses()) == ["cancelled", "completed"]


async def test_clients_that_are_gone_may_not_leave_more_behind_than_runs_in_the_background() -> (
    None
):
    runtime = RuntimeSettings(background=BackgroundSettings(max_running_per_tenant=1))
    async with bench(Parts(settings=runtime)) as desk:
        hold = desk.engine.hold("Hi", after_steps=1)
        background = await desk.create(background=True)
        await desk.engine.held(hold)
        first = asyncio.ensure_future(answer_of(keyed(desk)))
        response_id = await desk.engine.held(hold)
        first.cancel()
        await until(lambda: ("cancel", response_id) in desk.engine.log, within_s=WAIT_S)
        assert ("cancel", background.id) not in desk.engine.log


@pytest.mark.parametrize("wire", ["create", "again"])
async def test_a_client_that_is_there_is_no_client_that_is_gone(wire: str) -> None:
    """Its turn is not counted with those in the background, though they are as many as may run."""
    runtime = RuntimeSettings(background=BackgroundSettings(max_running_per_tenant=1))
    async with bench(Parts(settings=runtime)) as desk:
        hold = desk.engine.hold("busy", after_steps=1)
        await desk.create("busy", background=True)
        await desk.engine.held(hold)
        own = desk.engine.hold("Hi", after_steps=1)
        first = asyncio.ensure_future(answer_of(keyed(desk, stream=True)))
        response_id = await desk.engine.held(own)
        if wire == "again":
            second = asyncio.ensure_future(answer_of(desk.get(f"{response_id}?stream=true")))
            turn = desk.services.detached.find(response_id, tenant="default")
            await until(lambda: turn.attending == 2, within_s=WAIT_S)
            first.cancel()
            await until(lambda: turn.attending == 1, within_s=WAIT_S)
            first = second
        desk.engine.release(own)
        _, events = await first
        assert events[-1]["type"] == "response.completed"


async def test_a_response_that_is_kept_keeps_no_events_beside_it(desk: Bench) -> None:
    _, events = await answer_of(keyed(desk, stream=True, store=False))
    response_id = events[0]["response"]["id"]
    turn = weakref.ref(desk.services.detached.find(response_id, tenant="default"))
    await until(lambda: desk.services.detached.running == 0, within_s=WAIT_S)
    assert (await answer_of(keyed(desk, stream=True, store=False)))[1] == events
    desk.services.detached.forget(response_id)
    await until(lambda: gc.collect() is not None and turn() is None, within_s=WAIT_S)
    assert (await answer_of(keyed(desk, store=False)))[1] == events[-1]["response"]


async def test_a_response_cancelled_on_purpose_is_not_handed_out_as_an_answer(
    desk: Bench,
) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    first = asyncio.ensure_future(answer_of(keyed(desk)))
    response_id = await desk.engine.held(hold)
    cancelled = await desk.sdk.responses.cancel(response_id)
    assert cancelled.status == "cancelled"
    assert (await first)[1]["status"] == "cancelled"  # who waited is told what happened
    assert (await answer_of(keyed(desk)))[1]["error"]["code"] == "request_cancelled"


async def test_a_deleted_response_leaves_its_key_free(desk: Bench) -> None:
    _, first = await answer_of(keyed(desk))
    await desk.sdk.responses.delete(first["id"])
    _, second = await answer_of(keyed(desk))
    assert second["id"] != first["id"]


async def test_an_unstored_response_with_a_key_is_not_found_by_its_id(desk: Bench) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    first = asyncio.ensure_future(answer_of(keyed(desk, store=False)))
    response_id = await desk.engine.held(hold)
    for call in (
        desk.sdk.responses.retrieve(response_id),
        desk.sdk.responses.retrieve(response_id, stream=True),
        desk.sdk.responses.delete(response_id),
    ):
        with pytest.raises(openai.NotFoundError):
            await call
    desk.engine.release(hold)
    assert (await first)[0] == 200


# gRPC.


async def call(desk: Bench, name: str, create: ResponseCreate, key: str) -> Any:
    rpc = desk.channel.unary_unary(RESPONSES + name)
    data = await rpc(
        create.SerializeToString(), metadata=(("idempotency-key", key),), timeout=WAIT_S
    )
    return Response.FromString(data)


async def test_a_key_means_the_same_over_grpc(desk: Bench) -> None:
    create = ResponseCreate(model="sim")
    create.input.text = "Hi"
    first = await call(desk, "Create", create, "key-1")
    assert await call(desk, "Create", create, "key-1") == first
    rpc = desk.channel.unary_stream(RESPONSES + "StreamCreate")
    frames = rpc(
        create.SerializeToString(), metadata=(("idempotency-key", "key-1"),), timeout=WAIT_S
    )
    events = [event async for data in frames for event in ServerFrame.FromString(data).events]
    assert events[-1].response_completed.response == first
    _, over_http = await answer_of(keyed(desk))
    assert over_http["id"] == first.id
    assert len(desk.engine.requests) == 1
    create.temperature = 0.5
    for key in ("key-1", "a b"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(desk, "Create", create, key)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "Idempotency-Key" in (refused.value.details() or "")


async def test_a_background_response_over_grpc_outlives_its_call(desk: Bench) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    create = ResponseCreate(model="sim", background=True)
    create.input.text = "Hi"
    rpc = desk.channel.unary_unary(RESPONSES + "Create")
    created = Response.FromString(await rpc(create.SerializeToString(), timeout=WAIT_S))
    assert await desk.engine.held(hold) == created.id
    streaming = desk.channel.unary_stream(RESPONSES + "StreamCreate")(create.SerializeToString())
    await streaming.read()
    streamed_id = await desk.engine.held(hold)
    streaming.cancel()
    turn = desk.services.detached.find(streamed_id, tenant="default")
    assert turn is not None
    await until(lambda: turn.attending == 0, within_s=WAIT_S)
    desk.engine.release(hold)
    assert (await desk.over(created.id)).status == "completed"
    assert (await desk.over(streamed_id)).status == "completed"
    assert not [one for one in desk.engine.log if one[0] == "cancel"]
