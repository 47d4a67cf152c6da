"""Turns without a connection, below the transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from harness.clock import ManualClock
from harness.memory import MemorySink
from harness.stack import Parts, Stack, running_stack
from harness.waiting import until
from turnwire.v1 import error_pb2
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.response_pb2 import RESPONSE_STATUS_CANCELLED, Response
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.ledgers.memory import MemoryLedger
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.store import StoredResponse, StoreFailure
from turnwire_server.runtime.background import DetachedTurn
from turnwire_server.runtime.event_log import Gap
from turnwire_server.runtime.keeping import Keeping
from turnwire_server.runtime.settings import BackgroundSettings, OutboxSettings, RuntimeSettings
from turnwire_server.runtime.unary import UnaryApi
from turnwire_server.session.errors import Rejection

TENANT = "default"


class BrittleStore(MemoryResponseStore):
    """Fails the puts whose status is in `broken`."""

    def __init__(self) -> None:
        super().__init__(MemoryStoreSettings(), wall=lambda: 1_000)
        self.broken: set[str] = set()
        self.puts: list[tuple[str, str]] = []

    async def put(self, record: StoredResponse) -> None:
        self.puts.append((record.status, record.owner))
        if record.status in self.broken:
            raise StoreFailure("the disk is full")
        await super().put(record)


class OrphanLedger(MemoryLedger):
    """Knows a process that died."""

    dead = ("inst_dead",)

    def dead_owners(self) -> Sequence[str]:
        return self.dead

    def forget_dead(self) -> None:
        self.dead = ()


def create_of(text: str = "Hi", **members) -> ResponseCreate:
    create = ResponseCreate(model="sim", background=True, **members)
    create.input.text = text
    return create


def start(stack: Stack, text: str = "Hi", **members) -> DetachedTurn:
    turn = stack.services.detached.start(
        create_of(text, **members), size=100, wire="http", tenant=TENANT, keeping=Keeping()
    )
    assert isinstance(turn, DetachedTurn)
    return turn


async def follow(turn: DetachedTurn, sink: MemorySink, after: int = -1) -> list[ServerEvent]:
    async with asyncio.timeout(20):
        await turn.follow(sink, after=after, heartbeat_s=1000)
    events = []
    while not sink.events.empty():
        events.append(sink.events.get_nowait())
    return events


def numbers(events: Sequence[ServerEvent]) -> list[int]:
    return [event.sequence_number for event in events]


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(Parts(sim=SimSettings(step_tokens=2))) as running:
        yield running


async def outcome(turn: DetachedTurn) -> ServerEvent:
    async with asyncio.timeout(20):
        return await turn.outcome()


# Following.


async def test_what_it_takes_to_keep_a_response_that_begins_is_no_time_of_the_engine() -> None:
    clock = ManualClock()

    class SlowStore(MemoryResponseStore):
        async def put(self, record: StoredResponse) -> None:
            clock.advance(0.5)
            await super().put(record)

    store = SlowStore(MemoryStoreSettings(), wall=clock.wall)
    async with running_stack(Parts(clock=clock, store=store)) as stack:
        turn = start(stack, include=["turnwire.timing"])
        (*_, last) = await follow(turn, MemorySink())
    timing = last.response_completed.response.turnwire.timing
    assert (timing.prefill_ms, timing.decode_ms) == (0, 0)
    assert timing.commit_ms == 1_000


async def test_a_slow_reader_is_told_from_the_log_what_found_no_room() -> None:
    small = RuntimeSettings(outbox=OutboxSettings(outbox_bytes=600))
    async with running_stack(Parts(settings=small, sim=SimSettings(step_tokens=1))) as stack:
        hold = stack.engine.hold("Hi", after_steps=1)
        turn = start(stack)
        await stack.engine.held(hold)
        slow, fast = MemorySink(), MemorySink()
        slow.readable.clear()
        slow_reading = asyncio.ensure_future(follow(turn, slow))
        fast_reading = asyncio.ensure_future(follow(turn, fast))
        stack.engine.release(hold)
        whole = await fast_reading
        assert turn.is_over and slow.events.empty()
        slow.readable.set()
        assert await slow_reading == whole
        assert numbers(whole) == list(range(len(whole)))
        assert len(slow.batches) > 2  # it was not given everything at once


async def test_a_reader_that_the_log_has_left_behind_is_told_so_and_the_turn_goes_on() -> None:
    settings = RuntimeSettings(
        outbox=OutboxSettings(outbox_bytes=200),
        background=BackgroundSettings(response_log_bytes=3_000),
    )
    async with running_stack(Parts(settings=settings, sim=SimSettings(step_tokens=1))) as stack:
        hold = stack.engine.hold("Hi", after_steps=1)
        turn = start(stack)
        await stack.engine.held(hold)
        slow = MemorySink()
        slow.readable.clear()
        reading = asyncio.ensure_future(follow(turn, slow))
        await until(lambda: turn.attending == 1)
        stack.engine.release(hold)
        assert (await outcome(turn)).HasField("response_completed")
        slow.readable.set()
        events = await reading
        assert events[-1].error.error.reason == error_pb2.ERROR_REASON_SLOW_CONSUMER
        assert numbers(events[:-1]) == list(range(len(events) - 1))


async def test_a_reader_that_goes_away_leaves_no_trace(stack: Stack) -> None:
    hold = stack.engine.hold("Hi", after_steps=1)
    turn = start(stack)
    await stack.engine.held(hold)
    before = asyncio.all_tasks()
    reading = asyncio.ensure_future(follow(turn, MemorySink()))
    await until(lambda: turn.followers)
    reading.cancel()
    await asyncio.wait((reading,))
    assert not turn.followers and turn.attending == 0
    assert asyncio.all_tasks() == before


async def test_a_reader_whose_writes_fail_is_given_up(stack: Stack) -> None:
    class Broken(MemorySink):
        async def write(self, batch: Sequence[bytes]) -> None:
            raise ConnectionResetError

    hold = stack.engine.hold("Hi", after_steps=1)
    turn = start(stack)
    await stack.engine.held(hold)
    assert await follow(turn, Broken()) == []
    assert not turn.is_over and not turn.followers


async def test_a_silent_turn_gives_its_reader_a_sign_of_life() -> None:
    class Beating(MemorySink):
        beats = 0

        def heartbeat(self) -> bytes | None:
            self.beats += 1
            return ServerEvent().SerializeToString()

    clock = ManualClock()
    async with running_stack(Parts(clock=clock)) as stack:
        hold = stack.engine.hold("Hi", after_steps=0)
        turn = start(stack)
        await stack.engine.held(hold)
        sink = Beating()
        reading = asyncio.ensure_future(turn.follow(sink, heartbeat_s=15))
        await clock.run_for(14)
        assert sink.beats == 0
        await clock.run_for(32)
        assert sink.beats == 3
        stack.engine.release(hold)
        async with asyncio.timeout(20):
            await reading


async def test_when_only_running_turns_have_logs_the_one_that_grows_gives_its_own_up() -> None:
    settings = RuntimeSettings(background=BackgroundSettings(log_bytes=4_000))
    async with running_stack(Parts(settings=settings, sim=SimSettings(step_tokens=2))) as stack:
        hold = stack.engine.hold("Hi", after_steps=3)
        turns = [start(stack) for _ in range(3)]
        for _ in turns:
            await stack.engine.held(hold)
        detached = stack.services.detached
        assert detached.log_bytes == sum(turn.log_bytes for turn in turns) <= 4_000
        gone = [turn for turn in turns if isinstance(turn.missed(-1), Gap)]
        assert gone
        turn, sink = gone[0], MemorySink()
        reading = asyncio.ensure_future(follow(turn, sink, after=turn.newest))
        assert (await follow(turn, MemorySink()))[0].HasField("error")  # from the start: too late
        await until(lambda: turn.attending == 1)
        stack.engine.release(hold)
        events = await reading
        assert numbers(events)[0] == numbers(events)[-1] - len(events) + 1
        assert events[-1].HasField("response_completed")
        for each in turns:
            await each.ended()
        kept = [one for one in turns if detached.find(one.response_id, tenant=TENANT)]
        assert detached.log_bytes == sum(one.log_bytes for one in kept) <= 4_000


# What the store has of it.


async def test_the_store_has_it_before_its_client_hears_of_it(stack: Stack) -> None:
    store = BrittleStore()
    stack.services.store = store
    hold = stack.engine.hold("Hi", after_steps=0)
    turn = start(stack)
    await turn.opening()
    assert store.puts == [("in_progress", stack.services.instance_id)]
    await stack.engine.held(hold)
    stack.engine.release(hold)
    await outcome(turn)
    assert store.puts[1:] == [("completed", "")]
    record = await store.get(turn.response_id, tenant=TENANT)
    assert record is not None and record.background and record.is_over


async def test_what_cannot_be_stored_does_not_begin(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    store = BrittleStore()
    store.broken = {"in_progress"}
    stack.services.store = store
    turn = start(stack)
    event = await turn.opening()
    assert event.error.status == 500 and turn.was_refused
    await turn.ended()
    assert not stack.engine.requests and stack.services.detached.running == 0
    assert stack.services.detached.log_bytes == 0


@pytest.mark.parametrize("broken", [{"completed"}, {"completed", "failed"}])
async def test_an_end_that_cannot_be_stored_is_a_failure_for_everybody(
    stack: Stack, broken: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = BrittleStore()
    store.broken = broken
    stack.services.store = store
    turn = start(stack)
    event = await outcome(turn)
    assert event.response_failed.response.error.code == "server_error"
    assert [status for status, _ in store.puts] == ["in_progress", "completed", "failed"]
    await turn.ended()
    unary = UnaryApi(stack.services)
    shown = await unary.get(turn.response_id, tenant=TENANT)
    assert isinstance(shown, Response)
    if "failed" not in broken:
        assert shown.error.code == "server_error"
    # Whatever the store says of it, it can be forgotten.
    assert not isinstance(await unary.delete(turn.response_id, tenant=TENANT), Rejection)


async def test_a_broken_engine_is_a_failure_that_is_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_stack(Parts(sim=SimSettings(step_tokens=2))) as stack:
        turn = start(stack, metadata={"turnwire.sim": '{"fail_after": 3}'})
        event = await outcome(turn)
        assert event.HasField("response_failed")
        record = await stack.services.store.get(turn.response_id, tenant=TENANT)
        assert record is not None and (record.status, record.owner) == ("failed", "")


async def test_what_a_dead_process_left_running_has_failed_after_the_start() -> None:
    store, ledger = BrittleStore(), OrphanLedger()
    response = Response(id="resp_1", object="response", model="m", background=True)
    for name, owner in (("resp_1", "inst_dead"), ("resp_2", "inst_alive")):
        response.id = name
        await store.put(
            StoredResponse(
                response_id=name,
                tenant=TENANT,
                response=response.SerializeToString(),
                input_items=(),
                conversation=(await _empty()),
                prompt=None,
                created_at=1,
                expires_at=2_000_000_000,
                status="in_progress",
                owner=owner,
                background=True,
            )
        )
    async with running_stack(Parts(store=store, ledger=ledger)):
        dead = await store.get("resp_1", tenant=TENANT)
        alive = await store.get("resp_2", tenant=TENANT)
        assert dead is not None and alive is not None
        assert (dead.status, alive.status) == ("failed", "in_progress")
        assert not ledger.dead


async def _empty():
    from turnwire_server.session.conversation import EMPTY

    return EMPTY


async def test_the_end_of_the_server_is_no_cancel(stack: Stack) -> None:
    hold = stack.engine.hold("Hi", after_steps=1)
    turn = start(stack)
    await stack.engine.held(hold)
    await stack.services.close()
    assert turn.terminal is not None and turn.terminal.HasField("response_failed")
    (record,) = stack.ledger.closed.values()
    assert record.status == "failed" and record.output_tokens > 0


async def test_a_cancel_by_its_client_is_one(stack: Stack) -> None:
    hold = stack.engine.hold("Hi", after_steps=1)
    turn = start(stack)
    await stack.engine.held(hold)
    turn.cancel()
    assert stack.engine.log[-1] == ("cancel", turn.response_id)
    event = await outcome(turn)
    assert event.response_incomplete.response.status == RESPONSE_STATUS_CANCELLED
    turn.cancel()  # to no effect
    record = await stack.services.store.get(turn.response_id, tenant=TENANT)
    assert record is not None and record.status == "cancelled"


async def test_a_turn_that_is_over_holds_nothing_but_its_log(stack: Stack) -> None:
    turn = start(stack)
    await outcome(turn)
    await turn.ended()
    assert not stack.services.running and stack.services.detached.running == 0
    assert turn.state() is None and turn.log_bytes > 0
    stack.services.detached.forget(turn.response_id)
    stack.services.detached.forget(turn.response_id)  # to no effect
    assert stack.services.detached.log_bytes == 0
    assert stack.services.detached.find(turn.response_id, tenant=TENANT) is None


# Another process of the same store.


async def test_another_process_shows_the_state_and_says_that_it_can_do_no_more() -> None:
    store = BrittleStore()
    async with (
        running_stack(Parts(store=store, sim=SimSettings(step_tokens=2))) as runs,
        running_stack(Parts(store=store)) as other,
    ):
        hold = runs.engine.hold("Hi", after_steps=1)
        turn = start(runs)
        await runs.engine.held(hold)
        unary, response_id = UnaryApi(other.services), turn.response_id
        shown = await unary.get(response_id, tenant=TENANT)
        assert isinstance(shown, Response) and shown.id == response_id
        for call in (unary.cancel, unary.delete):
            refused = await call(response_id, tenant=TENANT)
            assert isinstance(refused, Rejection)
            assert refused.reason == error_pb2.ERROR_REASON_RESPONSE_NOT_ACTIVE
        refused = await unary.find_stream(response_id, after=None, tenant=TENANT)
        assert isinstance(refused, Rejection)
        assert refused.reason == error_pb2.ERROR_REASON_RESUME_GAP
        runs.engine.release(hold)
        await outcome(turn)
        shown = await unary.find_stream(response_id, after=None, tenant=TENANT)
        assert isinstance(shown, Response) and shown.HasField("completed_at")
