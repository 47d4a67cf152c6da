"""Idempotency keys, below the transports: several processes, broken stores, clients in a hurry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from harness.clock import ManualClock
from harness.stack import Parts, Stack, running_stack
from harness.waiting import until
from turnwire.v1 import error_pb2
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.response_pb2 import RESPONSE_STATUS_COMPLETED, RESPONSE_STATUS_FAILED
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.store import StoredResponse, StoreFailure
from turnwire_server.runtime.idempotency import KEY_REUSED, Found, check_key
from turnwire_server.runtime.settings import BackgroundSettings, RuntimeSettings
from turnwire_server.session.errors import Rejection

TENANT = "default"


class SharedStore(MemoryResponseStore):
    """A store whose look-ups by key wait for a test, or fail."""

    def __init__(self) -> None:
        super().__init__(MemoryStoreSettings(), wall=lambda: 1_000)
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0
        self.is_broken = False

    async def find_by_key(self, tenant: str, idempotency_key: str) -> StoredResponse | None:
        if self.is_broken:
            raise StoreFailure("gone")
        self.waiting += 1
        await self.open.wait()
        self.waiting -= 1
        return await super().find_by_key(tenant, idempotency_key)


def create_of(text: str = "Hi", **members) -> ResponseCreate:
    create = ResponseCreate(model="sim", **members)
    create.input.text = text
    return create


async def claim(stack: Stack, key: str = "key", **members) -> Found | Rejection:
    async with asyncio.timeout(20):
        return await stack.services.idempotency.claim(
            key, create_of(**members), size=100, wire="http", tenant=TENANT
        )


async def turn_of(stack: Stack, key: str = "key", **members):
    found = await claim(stack, key, **members)
    assert isinstance(found, Found) and found.turn is not None
    return found.turn


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(Parts(sim=SimSettings(step_tokens=2))) as running:
        yield running


@pytest.mark.parametrize("key", ["a", "~" * 255, '"quoted"'])
def test_visible_ascii_is_a_key(key: str) -> None:
    assert check_key(key) is None


@pytest.mark.parametrize("key", ["", "a b", "a\n", "\x7f", "é", "x" * 256])
def test_what_is_no_key_is_refused_by_name(key: str) -> None:
    refusal = check_key(key)
    assert refusal is not None and refusal.param == "idempotency-key"


async def test_what_asks_for_another_form_of_answer_is_the_same_request(stack: Stack) -> None:
    first = await turn_of(stack)
    assert (await turn_of(stack, stream=True)) is first
    assert await claim(stack, temperature=0.5) is KEY_REUSED
    await first.ended()


async def test_a_client_that_leaves_before_it_began_is_waited_for_too() -> None:
    """Its request was heard: it must not run twice."""
    store, clock = SharedStore(), ManualClock()
    async with running_stack(Parts(store=store, clock=clock)) as stack:
        store.open.clear()
        hold = stack.engine.hold("Hi", after_steps=0)
        leaving = asyncio.ensure_future(claim(stack))
        await until(lambda: store.waiting)
        leaving.cancel()
        await asyncio.wait((leaving,))
        joining = asyncio.ensure_future(claim(stack))
        store.open.set()
        found = await joining
        assert isinstance(found, Found) and found.turn is not None
        response_id = await stack.engine.held(hold)
        assert found.turn.response_id == response_id
        await clock.run_for(59)
        assert ("cancel", response_id) not in stack.engine.log
        await clock.run_for(2)
        assert ("cancel", response_id) in stack.engine.log
        assert len(stack.engine.requests) == 1


async def test_where_no_more_may_run_alone_a_client_that_left_early_is_not_waited_for() -> None:
    store, clock = SharedStore(), ManualClock()
    runtime = RuntimeSettings(background=BackgroundSettings(max_running_per_tenant=0))
    async with running_stack(Parts(store=store, clock=clock, settings=runtime)) as stack:
        store.open.clear()
        hold = stack.engine.hold("Hi", after_steps=0)
        leaving = asyncio.ensure_future(claim(stack))
        await until(lambda: store.waiting)
        leaving.cancel()
        await asyncio.wait((leaving,))
        store.open.set()
        response_id = await stack.engine.held(hold)
        await clock.run_for(2)
        assert ("cancel", response_id) in stack.engine.log


async def test_a_store_that_fails_refuses_and_leaves_the_key_free() -> None:
    store = SharedStore()
    async with running_stack(Parts(store=store)) as stack:
        store.is_broken = True
        with pytest.raises(StoreFailure):
            await claim(stack)
        store.is_broken = False
        turn = await turn_of(stack)
        await turn.ended()


async def test_another_process_waits_for_the_one_that_runs_it() -> None:
    store, clock = SharedStore(), ManualClock()
    async with (
        running_stack(Parts(store=store)) as runs,
        running_stack(Parts(store=store, clock=clock)) as other,
    ):
        hold = runs.engine.hold("Hi", after_steps=1)
        turn = await turn_of(runs)
        await runs.engine.held(hold)
        waiting = asyncio.ensure_future(claim(other))
        await clock.until_sleeping()
        assert await claim(other, temperature=0.5) is KEY_REUSED
        runs.engine.release(hold)
        await turn.ended()
        await clock.run_for(1)
        found = await waiting
        assert isinstance(found, Found) and found.turn is None and found.response is not None
        assert found.response.id == turn.response_id
        assert found.response.status == RESPONSE_STATUS_COMPLETED
        assert not other.engine.requests


async def test_a_process_that_never_ends_it_is_not_waited_for_without_end() -> None:
    store, clock = SharedStore(), ManualClock()
    async with (
        running_stack(Parts(store=store)) as runs,
        running_stack(Parts(store=store, clock=clock)) as other,
    ):
        hold = runs.engine.hold("Hi", after_steps=1)
        await turn_of(runs)
        await runs.engine.held(hold)
        waiting = asyncio.ensure_future(claim(other))
        await clock.until_sleeping()
        await clock.run_for(601)
        async with asyncio.timeout(20):
            refused = await waiting
        assert isinstance(refused, Rejection)
        assert refused.reason == error_pb2.ERROR_REASON_SERVER_IS_OVERLOADED
        runs.engine.release(hold)


async def test_of_two_processes_that_begin_at_once_one_does() -> None:
    store = SharedStore()
    async with running_stack(Parts(store=store)) as one, running_stack(Parts(store=store)) as two:
        store.open.clear()
        claims = [asyncio.ensure_future(claim(stack)) for stack in (one, two)]
        await until(lambda: store.waiting == 2)
        store.open.set()
        outcomes = []
        for claimed in claims:
            found = await claimed
            assert isinstance(found, Found) and found.turn is not None
            outcomes.append(await found.turn.outcome())
            await found.turn.ended()
        refused = [one for one in outcomes if one.HasField("error")]
        assert len(refused) == 1
        assert refused[0].error.error.reason == error_pb2.ERROR_REASON_SERVER_IS_OVERLOADED
        assert refused[0].error.error.headers["retry-after"] == "1"
        assert len(one.engine.requests) + len(two.engine.requests) == 1
        # Who sends it again gets the answer.
        for stack in (one, two):
            found = await claim(stack)
            assert isinstance(found, Found)


async def test_a_response_that_failed_stays_failed_under_its_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_stack(Parts(store=SharedStore())) as stack:
        broken = {"turnwire.sim": '{"fail_after": 3}'}
        turn = await turn_of(stack, metadata=broken)
        await turn.ended()
        stack.services.detached.forget(turn.response_id)
        found = await claim(stack, metadata=broken)
        assert isinstance(found, Found) and found.response is not None
        assert found.response.status == RESPONSE_STATUS_FAILED
        assert len(stack.engine.requests) == 1


async def test_a_response_whose_end_was_lost_is_not_waited_for(stack: Stack) -> None:
    store = SharedStore()
    stack.services.store = store
    turn = await turn_of(stack)
    await turn.ended()
    record = await store.get(turn.response_id, tenant=TENANT)
    assert record is not None
    stack.services.detached.forget(turn.response_id)
    await store.put(replace(record, status="in_progress", owner=stack.services.instance_id))
    refused = await claim(stack)
    assert isinstance(refused, Rejection)
    assert refused.reason == error_pb2.ERROR_REASON_SERVER_ERROR
    assert refused.headers["x-should-retry"] == "false"
