"""`background: true`, and streaming a response again, through the official SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import openai
import pytest
from aiohttp import web

from harness.background import WAIT_S, Bench, bench
from harness.clock import ManualClock
from harness.stack import Parts
from harness.waiting import until
from turnwire_server.runtime.settings import BackgroundSettings, RuntimeSettings


@pytest.fixture
async def desk() -> AsyncIterator[Bench]:
    async with bench() as opened:
        yield opened


def settings(**background: float) -> Parts:
    return Parts(settings=RuntimeSettings(background=BackgroundSettings(**background)))


def dumped(events: list) -> list:
    return [event.to_dict() for event in events]


# Creating and polling.


async def test_a_background_response_is_answered_while_it_runs_and_polled_until_it_is_over(
    desk: Bench,
) -> None:
    hold = desk.engine.hold("Hi", after_steps=2)
    created = await desk.create(background=True)
    assert (created.status, created.background, created.output) == ("in_progress", True, [])
    assert await desk.engine.held(hold) == created.id
    polled = await desk.sdk.responses.retrieve(created.id)
    assert (polled.id, polled.status, polled.usage) == (created.id, "in_progress", None)
    desk.engine.release(hold)
    final = await desk.over(created.id)
    assert final.status == "completed" and final.background and final.output_text
    listed = await desk.sdk.responses.input_items.list(created.id)
    assert len(listed.data) == 1
    following = await desk.create("And?", previous_response_id=created.id)
    assert following.status == "completed" and following.background is False


async def test_a_running_background_response_has_its_input_items(desk: Bench) -> None:
    hold = desk.engine.hold("Hi")
    created = await desk.create(background=True)
    await desk.engine.held(hold)
    assert len((await desk.sdk.responses.input_items.list(created.id)).data) == 1


async def test_a_background_create_that_is_wrong_is_refused_at_once(desk: Bench) -> None:
    with pytest.raises(openai.BadRequestError) as unstored:
        await desk.create(background=True, store=False)
    assert (unstored.value.code, unstored.value.param) == ("invalid_value", "store")
    with pytest.raises(openai.NotFoundError) as unknown:
        await desk.sdk.responses.create(model="nope", input="Hi", background=True)
    assert unknown.value.param == "model"
    assert desk.services.detached.running == 0 and not desk.engine.requests


async def test_hanging_up_ends_a_foreground_response_and_not_one_in_the_background(
    desk: Bench,
) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    background = await desk.create(background=True, stream=True)
    first = await anext(aiter(background))
    kept_id = await desk.engine.held(hold)
    assert first.response.id == kept_id
    foreground = await desk.create(stream=True)
    await anext(aiter(foreground))
    cut_id = await desk.engine.held(hold)
    await background.close()
    await foreground.close()
    await until(lambda: ("end", cut_id) in desk.engine.log, within_s=WAIT_S)
    assert ("cancel", cut_id) in desk.engine.log
    assert ("cancel", kept_id) not in desk.engine.log
    desk.engine.release(hold)
    assert (await desk.over(kept_id)).status == "completed"
    await until(lambda: len(desk.statuses()) == 2, within_s=WAIT_S)
    assert sorted(desk.statuses()) == ["cancelled", "completed"]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_a_client_that_hangs_up_is_told_to_the_engine_in_the_same_iteration_and_billed_once(
    desk: Bench, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the loop is given when the connection is lost comes after the cancel."""
    log, loop = desk.engine.log, asyncio.get_running_loop()
    lose = web.RequestHandler.connection_lost

    def lost(protocol: web.RequestHandler, error: BaseException | None) -> None:
        log.append(("lost", ""))
        lose(protocol, error)
        loop.call_soon(log.append, ("next", ""))

    monkeypatch.setattr(web.RequestHandler, "connection_lost", lost)
    hold = desk.engine.hold("Hi", after_steps=1)
    client = aiohttp.ClientSession()
    url, body = f"{desk.server.http_url}/responses", {"model": "sim", "input": "Hi"}
    waiting = asyncio.ensure_future(client.post(url, json={**body, "stream": stream}))
    cut_id = await desk.engine.held(hold)
    waiting.cancel()
    await client.close()
    await until(lambda: cut_id in desk.stack.ledger.closed, within_s=WAIT_S)
    assert log[log.index(("lost", "")) :][:3] == [("lost", ""), ("cancel", cut_id), ("next", "")]
    (record,) = desk.stack.ledger.closed.values()
    assert record.status == "cancelled" and record.output_tokens > 0


# Streaming again.


async def test_every_position_of_a_stream_can_be_resumed_while_it_runs_and_after(
    desk: Bench,
) -> None:
    hold = desk.engine.hold("Hi", after_steps=3)
    stream = await desk.create(background=True, stream=True)
    reading = asyncio.ensure_future(desk.events(stream))
    response_id = await desk.engine.held(hold)
    live = []
    for position in range(3):
        again = await desk.sdk.responses.retrieve(response_id, stream=True, starting_after=position)
        live.append(asyncio.ensure_future(desk.events(again)))
    from_start = await desk.sdk.responses.retrieve(response_id, stream=True)
    live.append(asyncio.ensure_future(desk.events(from_start)))
    await until(lambda: desk.services.detached.find(response_id, tenant="default").attending == 5)
    desk.engine.release(hold)
    whole = dumped(await reading)
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    assert whole[-1]["type"] == "response.completed"
    for position, resumed in zip((0, 1, 2, -1), live, strict=True):
        assert dumped(await resumed) == whole[position + 1 :]
    for position in range(len(whole)):
        again = await desk.sdk.responses.retrieve(response_id, stream=True, starting_after=position)
        assert dumped(await desk.events(again)) == whole[position + 1 :]


async def test_a_position_far_behind_the_end_gets_the_terminal_event(desk: Bench) -> None:
    whole = await desk.events(await desk.create(background=True, stream=True))
    response_id = whole[0].response.id
    for position in (len(whole), 10**8):
        again = await desk.sdk.responses.retrieve(response_id, stream=True, starting_after=position)
        assert dumped(await desk.events(again)) == dumped(whole[-1:])


async def test_a_client_that_believes_to_be_ahead_gets_the_terminal_event_of_one_that_runs(
    desk: Bench,
) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    created = await desk.create(background=True)
    await desk.engine.held(hold)
    again = await desk.sdk.responses.retrieve(created.id, stream=True, starting_after=10**8)
    reading = asyncio.ensure_future(desk.events(again))
    desk.engine.release(hold)
    (event,) = await reading
    assert event.type == "response.completed" and event.response.id == created.id


async def test_events_expire_some_time_after_the_end(desk: Bench) -> None:
    clock = ManualClock()
    parts = settings(log_ttl_s=60.0)
    parts.clock = clock
    async with bench(parts) as timed:
        whole = await timed.events(await timed.create(background=True, stream=True))
        response_id = whole[0].response.id
        clock.advance(59)
        again = await timed.sdk.responses.retrieve(response_id, stream=True, starting_after=2)
        assert dumped(await timed.events(again)) == dumped(whole[3:])
        clock.advance(2)
        with pytest.raises(openai.ConflictError) as gone:
            await timed.sdk.responses.retrieve(response_id, stream=True, starting_after=2)
        assert (gone.value.code, gone.value.param) == ("resume_gap", "starting_after")
        assert gone.value.response.headers["x-should-retry"] == "false"
        assert (await timed.sdk.responses.retrieve(response_id)).status == "completed"


async def test_what_is_over_is_told_again_to_who_has_nothing_of_it(desk: Bench) -> None:
    """Not one in the background: nothing is kept of it but its response."""
    first = await desk.create()
    async with asyncio.timeout(WAIT_S):
        events = await desk.events(await desk.sdk.responses.retrieve(first.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert events[-1].response.to_dict() == first.to_dict()
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == first.output_text
    with pytest.raises(openai.ConflictError) as gone:
        await desk.sdk.responses.retrieve(first.id, stream=True, starting_after=1)
    assert gone.value.code == "resume_gap"


@pytest.mark.parametrize("position", ["-1", "x", "1.5", "", "1" * 10, "٣"])
async def test_a_position_that_is_no_number_is_refused(desk: Bench, position: str) -> None:
    first = await desk.create()
    async with desk.get(f"{first.id}?stream=true&starting_after={position}") as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["param"]) == (400, "starting_after")


async def test_what_is_unknown_or_another_s_is_not_found() -> None:
    parts = Parts(settings=RuntimeSettings(auth_keys=("one", "two")))
    async with bench(parts) as desk:
        one, two = (desk.sdk.with_options(api_key=key) for key in ("one", "two"))
        hold = desk.engine.hold("Hi")
        created = await one.responses.create(model="sim", input="Hi", background=True)
        await desk.engine.held(hold)
        for response_id in (created.id, "resp_unknown"):
            for call in (
                two.responses.retrieve(response_id),
                two.responses.retrieve(response_id, stream=True),
                two.responses.cancel(response_id),
                two.responses.delete(response_id),
            ):
                with pytest.raises(openai.NotFoundError):
                    await call
        assert (await one.responses.retrieve(created.id)).status == "in_progress"
        assert ("cancel", created.id) not in desk.engine.log


# Bounds.


async def test_a_log_that_grew_too_large_says_so_and_the_response_is_there() -> None:
    async with bench(settings(response_log_bytes=4_000)) as desk:
        whole = await desk.events(await desk.create(background=True, stream=True))
        response_id, last = whole[0].response.id, len(whole) - 1
        with pytest.raises(openai.ConflictError) as gone:
            await desk.sdk.responses.retrieve(response_id, stream=True, starting_after=0)
        assert gone.value.code == "resume_gap"
        again = await desk.sdk.responses.retrieve(response_id, stream=True, starting_after=last - 1)
        assert dumped(await desk.events(again)) == dumped(whole[-1:])
        anew = await desk.events(await desk.sdk.responses.retrieve(response_id, stream=True))
        assert anew[-1].response.to_dict() == whole[-1].response.to_dict()


async def test_all_logs_together_are_bounded_and_the_oldest_go_first() -> None:
    async with bench(settings(log_bytes=60_000)) as desk:
        ids = []
        for _ in range(12):
            events = await desk.events(await desk.create(background=True, stream=True))
            ids.append(events[0].response.id)
            assert desk.services.detached.log_bytes <= 60_000
        found = [desk.services.detached.find(one, tenant="default") is not None for one in ids]
        assert found == sorted(found) and not found[0] and found[-1]


async def test_more_background_responses_than_may_run_are_refused() -> None:
    parts = Parts(
        settings=RuntimeSettings(
            auth_keys=("one", "two", "three"),
            background=BackgroundSettings(max_running=3, max_running_per_tenant=2),
        )
    )
    async with bench(parts) as desk:
        one, two, three = (desk.sdk.with_options(api_key=key) for key in ("one", "two", "three"))
        hold = desk.engine.hold("Hi")

        async def start(client: openai.AsyncOpenAI) -> str:
            created = await client.responses.create(model="sim", input="Hi", background=True)
            await desk.engine.held(hold)
            return created.id

        first = await start(one)
        await start(one)
        with pytest.raises(openai.RateLimitError) as mine:
            await start(one)
        assert mine.value.code == "rate_limit_exceeded"
        assert mine.value.response.headers["retry-after"] == "1"
        await start(two)
        with pytest.raises(openai.RateLimitError):
            await start(three)
        await one.responses.cancel(first)
        await start(three)


# Cancelling, deleting, continuing.


async def test_cancelling_tells_the_engine_and_the_client_that_follows(desk: Bench) -> None:
    hold = desk.engine.hold("Hi", after_steps=2)
    stream = await desk.create(background=True, stream=True)
    reading = asyncio.ensure_future(desk.events(stream))
    response_id = await desk.engine.held(hold)
    cancelled = await desk.sdk.responses.cancel(response_id)
    assert (cancelled.id, cancelled.status) == (response_id, "cancelled")
    assert cancelled.usage is not None and cancelled.usage.output_tokens > 0
    last = (await reading)[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert (await desk.sdk.responses.retrieve(response_id)).status == "cancelled"
    again = await desk.sdk.responses.cancel(response_id)
    assert again.to_dict() == cancelled.to_dict()
    assert desk.engine.log.count(("cancel", response_id)) == 1
    await until(lambda: desk.statuses() == ["cancelled"], within_s=WAIT_S)


async def test_a_cancel_reaches_the_engine_in_the_call_that_makes_it(desk: Bench) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    created = await desk.create(background=True)
    await desk.engine.held(hold)
    turn = desk.services.detached.find(created.id, tenant="default")
    assert turn is not None
    turn.cancel()
    assert desk.engine.log[-1] == ("cancel", created.id)  # nothing was awaited


async def test_deleting_a_running_response_ends_it_first(desk: Bench) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    created = await desk.create(background=True)
    await desk.engine.held(hold)
    await desk.sdk.responses.delete(created.id)
    assert ("cancel", created.id) in desk.engine.log and not desk.engine.running
    for call in (
        desk.sdk.responses.retrieve(created.id),
        desk.sdk.responses.retrieve(created.id, stream=True),
        desk.sdk.responses.delete(created.id),
    ):
        with pytest.raises(openai.NotFoundError):
            await call
    await until(lambda: desk.statuses() == ["cancelled"], within_s=WAIT_S)


async def test_a_running_response_cannot_be_continued_yet(desk: Bench) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    created = await desk.create(background=True)
    await desk.engine.held(hold)
    with pytest.raises(openai.BadRequestError) as early:
        await desk.create("And?", previous_response_id=created.id)
    assert (early.value.code, early.value.param) == (
        "previous_response_not_found",
        "previous_response_id",
    )
    assert "in_progress" in str(early.value)
    desk.engine.release(hold)
    await desk.over(created.id)
    assert (await desk.create("And?", previous_response_id=created.id)).status == "completed"


async def test_a_response_that_the_server_ends_has_failed(desk: Bench) -> None:
    hold = desk.engine.hold("Hi", after_steps=1)
    created = await desk.create(background=True)
    await desk.engine.held(hold)
    store = desk.services.store
    kept = []
    put = store.put

    async def noted(record) -> None:
        kept.append(record)
        await put(record)

    store.put = noted
    await desk.services.close()
    assert [(record.response_id, record.status, record.owner) for record in kept] == [
        (created.id, "failed", "")
    ]
    assert desk.statuses() == ["failed"]
