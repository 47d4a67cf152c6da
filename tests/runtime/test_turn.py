"""What only the inside of a turn shows: the order of its stages, and what breaks in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from harness.memory import MemorySink
from harness.reading import (
    arm_of,
    arms,
    failure_of,
    items_json,
    response_of,
    status_of,
    text_of,
)
from harness.stack import one_peer
from harness.waiting import until
from turnwire_server.adapters.engines.sim import SimEngine, SimGeneration, SimSettings
from turnwire_server.adapters.ledgers.memory import MemoryLedger
from turnwire_server.adapters.renderers.sim_chatml import SimParser, SimRenderer
from turnwire_server.adapters.renderers.sim_tokens import IM_END
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.engine import EngineFailure, EngineRequest, EngineStep
from turnwire_server.ports.ledger import UsageRecord
from turnwire_server.ports.renderer import RenderFailure
from turnwire_server.ports.store import StoredResponse
from turnwire_server.session.events import Delta, Outgoing

SECRET = "/srv/secret/path is on fire"


class NotedLedger(MemoryLedger):
    """Notes what is so when a record is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.on_close: Callable[[UsageRecord], None] = lambda record: None

    def close_record(self, record: UsageRecord) -> None:
        self.on_close(record)
        super().close_record(record)


class GatedStore(MemoryResponseStore):
    """Keeps responses only when it is let, and can break."""

    def __init__(self) -> None:
        super().__init__(MemoryStoreSettings(), wall=lambda: 0)
        self.opened = asyncio.Event()
        self.opened.set()
        self.waiting = 0
        self.put_error: Exception | None = None
        self.get_error: Exception | None = None

    async def put(self, record: StoredResponse) -> None:
        self.waiting += 1
        await self.opened.wait()
        if self.put_error is not None:
            raise self.put_error
        await super().put(record)

    async def get(self, response_id: str, *, tenant: str) -> StoredResponse | None:
        if self.get_error is not None:
            raise self.get_error
        return await super().get(response_id, tenant=tenant)


async def test_after_work_never_delays_the_next_turn() -> None:
    ledger, opened, waiting = NotedLedger(), asyncio.Event(), []
    async with one_peer(ledger=ledger) as (stack, peer):

        async def waits() -> None:
            waiting.append(True)
            await opened.wait()
            waiting.pop()

        ledger.on_close = lambda record: stack.services.afterwork.add(
            waits, response_id=record.response_id
        )
        for _ in range(3):
            assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"
        await until(lambda: len(waiting) == 3)
        opened.set()
        await stack.services.afterwork.finish(5)
        assert (len(waiting), len(ledger.closed)) == (0, 3)


async def test_a_record_is_closed_behind_the_end_of_its_turn_and_needs_no_task() -> None:
    ledger, seen = NotedLedger(), []
    async with one_peer(ledger=ledger) as (stack, peer):
        ledger.on_close = lambda record: seen.append(
            (record.response_id in stack.services.running, asyncio.current_task())
        )
        await peer.turn(input="Hi")
        await stack.services.afterwork.finish(5)
        assert seen == [(False, None)]


async def test_after_work_that_breaks_is_logged_without_content_and_harms_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class BrokenLedger(MemoryLedger):
        def close_record(self, record: UsageRecord) -> None:
            raise RuntimeError("disk full")

    async with one_peer(ledger=BrokenLedger()) as (stack, peer):
        first = response_of(await peer.turn(input="Hi"))
        await stack.services.afterwork.finish(5)
        assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"
    assert f"response_id={first.id}" in caplog.text


async def test_a_peer_that_does_not_read_does_not_delay_the_next_turn() -> None:
    async with one_peer() as (stack, peer):
        sink = peer.inner.sink
        sink.readable.clear()
        for text in ("one", "two", "three"):
            await peer.create(input=text)
        await until(lambda: [what for what, _ in stack.engine.log].count("end") == 3)
        assert sink.events.empty()
        sink.readable.set()
        for _ in range(3):
            assert status_of(response_of(await peer.finish())) == "completed"


async def test_a_response_is_kept_before_its_terminal_event_leaves() -> None:
    store = GatedStore()
    store.opened.clear()
    async with one_peer(store=store) as (stack, peer):
        await peer.create(input="kept")
        await until(lambda: store.waiting)
        other = response_of(await peer.turn(input="not kept", store=False, stream_id="a"))
        assert status_of(other) == "completed"
        shown = [arm_of(event) for event in peer.rest()]
        assert "response_in_progress" in shown and "response_completed" not in shown
        store.opened.set()
        await peer.until("response_completed")
        (record,) = store._records.values()
        assert record.response_id == stack.engine.requests[0].request_id


async def test_a_response_that_cannot_be_kept_fails_and_frees_its_lane() -> None:
    store = GatedStore()
    store.put_error = RuntimeError(SECRET)
    async with one_peer(store=store) as (stack, peer):
        events = await peer.turn(input="keep this")
        assert arms(events)[-1] == "response_failed"
        response = response_of(events)
        assert response.error.code == "server_error"
        assert SECRET not in response.error.message
        assert text_of(response)  # what was said stays said
        store.put_error = None
        (error,) = await peer.turn(input="on", previous_response_id=response.id)
        assert failure_of(error)[0] == "previous_response_not_found"
        assert status_of(response_of(await peer.turn(input="again"))) == "completed"
        await stack.services.afterwork.finish(5)
        assert stack.ledger.closed[response.id].status == "failed"


async def test_a_store_that_cannot_be_asked_is_one_error_without_its_words() -> None:
    store = GatedStore()
    store.get_error = RuntimeError(SECRET)
    async with one_peer(store=store) as (_, peer):
        (error,) = await peer.turn(input="on", previous_response_id="resp_1")
        assert failure_of(error) == ("server_error", 500, None)
        assert SECRET not in error.error.error.message
        assert status_of(response_of(await peer.turn(input="again"))) == "completed"


async def test_what_the_template_refuses_is_one_error_before_the_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def render(*_: object) -> None:
        raise RenderFailure("the template does not take this")

    async with one_peer() as (stack, peer):
        monkeypatch.setattr(SimRenderer, "render", render)
        (error,) = await peer.turn(input="Hi")
        assert failure_of(error) == ("invalid_prompt", 400, "input")
        assert stack.engine.log == []
        monkeypatch.undo()
        assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"


@pytest.mark.parametrize("stage", ["feed", "finish"])
async def test_a_bug_while_output_is_read_fails_the_response_and_stops_the_engine(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(SECRET)

    async with one_peer(sim=SimSettings(step_tokens=1)) as (stack, peer):
        monkeypatch.setattr(SimParser, stage, broken)
        events = await peer.turn(input="Hi")
        assert arms(events)[-1] == "response_failed"
        response = response_of(events)
        assert SECRET not in response.error.message
        assert ("cancel", response.id) in stack.engine.log
        monkeypatch.undo()
        assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"
        await stack.services.afterwork.finish(5)
        assert not stack.ledger.open_records


async def test_a_bug_before_the_response_began_is_one_error_without_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(SECRET)

    async with one_peer() as (_, peer):
        monkeypatch.setattr(SimRenderer, "render", broken)
        (error,) = await peer.turn(input="Hi", event_id="e1")
        assert failure_of(error) == ("server_error", 500, None)
        assert error.event_id == "e1"
        assert SECRET not in str(error)
        monkeypatch.undo()
        assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"


async def test_a_terminal_event_that_cannot_be_encoded_does_not_hold_its_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode = MemorySink.encode

    def broken(self: MemorySink, event: Outgoing) -> bytes:
        if not hasattr(event, "part") and arm_of(event) == "response_completed":
            monkeypatch.undo()
            raise RuntimeError(SECRET)
        return encode(self, event)

    async with one_peer() as (stack, peer):
        peer.is_checked = False  # the first response has no end
        monkeypatch.setattr(MemorySink, "encode", broken)
        await peer.create(input="one", metadata={"turnwire.sim": "first"})
        await peer.create(input="two", metadata={"turnwire.sim": "second"})
        assert text_of(response_of(await peer.finish())) == "second"
        assert not stack.services.running


async def test_an_engine_that_gives_up_fails_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    class GivesUp:
        def __init__(self) -> None:
            self.steps = [EngineStep((), None, 0), EngineStep((), "cancelled")]

        def __aiter__(self) -> GivesUp:
            return self

        async def __anext__(self) -> EngineStep:
            if not self.steps:
                raise StopAsyncIteration
            return self.steps.pop(0)

        def listen(self, take: object) -> None:
            pass

        def cancel(self) -> None:
            pass

    async with one_peer() as (_, peer):
        monkeypatch.setattr(SimEngine, "generate", lambda *_: GivesUp())
        events = await peer.turn(input="Hi")
        assert arms(events)[-1] == "response_failed"
        assert response_of(events).error.code == "server_error"


async def test_the_engine_begins_before_the_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    encode, generate = MemorySink.encode, SimEngine.generate

    def noting_encode(sink: MemorySink, event: Outgoing) -> bytes:
        if not isinstance(event, Delta):
            told.append(arm_of(event))
        return encode(sink, event)

    def noting_generate(engine: SimEngine, request: EngineRequest) -> SimGeneration:
        told.append("engine")
        return generate(engine, request)

    monkeypatch.setattr(MemorySink, "encode", noting_encode)
    monkeypatch.setattr(SimEngine, "generate", noting_generate)
    async with one_peer() as (_, peer):
        await peer.turn(input="Hi")
    assert told[:3] == ["engine", "response_created", "response_in_progress"]


async def test_an_engine_that_does_not_begin_fails_a_response_that_was_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*_: object) -> SimGeneration:
        raise EngineFailure("not today")

    ledger = MemoryLedger()
    async with one_peer(ledger=ledger) as (stack, peer):
        monkeypatch.setattr(SimEngine, "generate", refuses)
        events = await peer.turn(input="Hi")
        assert arms(events) == ["response_created", "response_in_progress", "response_failed"]
        await stack.services.afterwork.finish(5)
    assert [record.status for record in ledger.closed.values()] == ["failed"]


async def test_the_engine_is_stopped_once_nothing_more_can_come_of_it() -> None:
    calls = '{"calls": [{"name": "f"}, {"name": "f"}, {"name": "f"}], "after": "on and on"}'
    async with one_peer(sim=SimSettings(step_tokens=4)) as (stack, peer):
        events = await peer.turn(
            input="Hi",
            tools=[{"type": "function", "name": "f"}],
            parallel_tool_calls=False,
            metadata={"turnwire.sim": calls},
        )
        response = response_of(events)
        assert status_of(response) == "completed"
        assert len(response.output) == 1
        assert ("cancel", response.id) in stack.engine.log


@pytest.mark.parametrize("step_tokens", [1, 4, 100])
@pytest.mark.parametrize("tool_choice", ["auto", "required"])
async def test_what_the_model_sampled_behind_its_one_call_is_nowhere(
    step_tokens: int, tool_choice: str
) -> None:
    calls = '{"text": "So.", "calls": [{"name": "f"}, {"name": "f"}], "after": "on and on"}'
    members = {
        "tools": [{"type": "function", "name": "f"}],
        "parallel_tool_calls": False,
        "tool_choice": tool_choice,
        "metadata": {"turnwire.sim": calls},
    }
    async with one_peer(sim=SimSettings(step_tokens=step_tokens)) as (stack, peer):
        response = response_of(await peer.turn(members, input="Hi"))
        call_id = response.output[-1].function_call.call_id
        output = {"type": "function_call_output", "call_id": call_id, "output": "x"}
        said = items_json(response.output)
        hi = {"type": "message", "role": "user", "content": "Hi"}
        await peer.turn(members, previous_response_id=response.id, input=[output])
        await peer.turn(members, input=[hi, *said, output])
        _, chained, cold = stack.engine.requests
        assert list(chained.ids) == list(cold.ids)
        # What was counted is what is kept: behind it the turn is closed.
        assert chained.ids[response.usage.total_tokens] == IM_END


async def test_no_turn_outlives_its_connection() -> None:
    async with one_peer() as (stack, peer):
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.create(input="talk")
        await stack.engine.held(hold)
        run = peer.inner._run
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert not stack.engine.running
        assert not stack.services.running and not stack.services.connection_count
