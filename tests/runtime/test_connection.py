"""A connection and its turns: nothing outlives it, nothing waits for a peer without end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from harness.clock import ManualClock
from harness.memory import MemoryPeer, MemorySink
from harness.reading import response_of, status_of
from harness.stack import Parts, one_peer, running_stack
from harness.waiting import until
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.response_pb2 import Response
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.store import StoredResponse
from turnwire_server.runtime import connection as connection_module
from turnwire_server.runtime import host as host_module
from turnwire_server.runtime.outbox import Outbox
from turnwire_server.runtime.settings import OutboxSettings, RuntimeSettings
from turnwire_server.runtime.unary import UnaryApi


async def test_no_turn_outlives_its_connection_when_that_is_cancelled() -> None:
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


@pytest.mark.parametrize("rounds", range(1, 12))
@pytest.mark.parametrize("is_talking", [False, True])
async def test_a_client_that_goes_while_its_connection_ends_leaves_nothing_behind(
    rounds: int, is_talking: bool
) -> None:
    # grpcio says that a client is gone twice: reading ends, and the call is cancelled.
    async with one_peer() as (stack, peer):
        if is_talking:
            hold = stack.engine.hold("talk", after_steps=1)
            await peer.create(input="talk")
            await stack.engine.held(hold)
            await peer.disconnect()
        else:
            await peer.half_close()
        for _ in range(rounds):
            await asyncio.sleep(0)
        run = peer.inner._run
        run.cancel()
        async with asyncio.timeout(20):
            await asyncio.wait((run,))
        assert not stack.services.connection_count and not stack.services.hosts
        assert not stack.engine.running and not stack.services.running


async def test_a_turn_that_does_not_end_is_given_up_and_forgotten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class StuckStore(MemoryResponseStore):
        async def put(self, record: StoredResponse) -> None:
            stuck.set()
            await asyncio.Event().wait()

    stuck = asyncio.Event()
    monkeypatch.setattr(connection_module, "CLEANUP_S", 0.01)
    monkeypatch.setattr(host_module, "CLEANUP_S", 0.01)
    store = StuckStore(MemoryStoreSettings(), wall=lambda: 0)
    async with one_peer(store=store) as (stack, peer):
        await peer.create(input="keep me")
        async with asyncio.timeout(20):
            await stuck.wait()
        (response_id,) = stack.services.running
        asked = asyncio.create_task(UnaryApi(stack.services).cancel(response_id, tenant="default"))
        await until(lambda: ("cancel", response_id) in stack.engine.log or asked.done())
        await peer.disconnect()
        assert (await peer.inner.ended()).reason == "disconnected"
        assert not stack.services.running and not stack.services.connection_count
        async with asyncio.timeout(20):
            assert not isinstance(await asked, Response)
    assert "turns did not end" in caplog.text


async def test_a_peer_that_does_not_read_cannot_hold_up_a_connection_that_is_sent_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "CLEANUP_S", 0.01)
    monkeypatch.setattr(host_module, "CLEANUP_S", 0.01)
    async with one_peer() as (stack, peer):
        peer.inner.sink.readable.clear()
        await peer.create(input="talk")
        await until(lambda: stack.engine.log and not stack.engine.running)
        peer.inner.connection.shut_down()
        async with asyncio.timeout(20):
            assert (await peer.inner.ended()).reason == "drain"


async def test_a_half_closed_peer_may_read_as_slowly_as_it_likes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "CLEANUP_S", 0.0)
    async with one_peer() as (stack, peer):
        peer.inner.sink.readable.clear()
        await peer.create(input="talk")
        await peer.half_close()
        await until(lambda: not stack.services.running)
        for _ in range(50):
            await asyncio.sleep(0)
        peer.inner.sink.readable.set()
        assert status_of(response_of(await peer.finish())) == "completed"


async def test_a_cancel_from_elsewhere_returns_the_response_and_ends_the_stream() -> None:
    async with one_peer() as (stack, peer):
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.create(input="talk")
        response_id = await stack.engine.held(hold)
        api = UnaryApi(stack.services)
        ended = await api.cancel(response_id, tenant="default")
        assert isinstance(ended, Response) and status_of(ended) == "cancelled"
        assert response_of(await peer.finish()) == ended
        again = await api.cancel(response_id, tenant="default")
        assert isinstance(again, Response) and again.id == response_id


async def test_a_cancel_from_elsewhere_that_is_given_up_leaves_the_lane_alone() -> None:
    async with one_peer() as (stack, peer):
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.create(input="talk")
        response_id = await stack.engine.held(hold)
        await peer.create(input="next")  # it waits for the lane
        asked = asyncio.create_task(UnaryApi(stack.services).cancel(response_id, tenant="default"))
        await until(lambda: ("cancel", response_id) in stack.engine.log)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert status_of(response_of(await peer.finish())) == "cancelled"
        assert status_of(response_of(await peer.finish())) == "completed"
        assert not stack.services.running


async def test_a_cancel_from_elsewhere_of_another_tenant_finds_nothing() -> None:
    async with one_peer() as (stack, peer):
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.create(input="talk")
        response_id = await stack.engine.held(hold)
        answer = await UnaryApi(stack.services).cancel(response_id, tenant="somebody else")
        assert not isinstance(answer, Response)
        assert answer.code == "response_not_found"
        stack.engine.release(hold)
        assert status_of(response_of(await peer.finish())) == "completed"


async def test_one_turn_over_http_has_no_age_and_its_timers_rest() -> None:
    clock = ManualClock()
    settings = RuntimeSettings(connection_age_s=1.0, keepalive_s=30.0, heartbeat_s=30.0)
    async with running_stack(Parts(clock=clock, settings=settings)) as stack:
        hold = stack.engine.hold("talk")
        peer = MemoryPeer(stack.services, is_persistent=False)
        event = ClientEvent()
        event.response_create.model = "sim"
        event.response_create.input.text = "talk"
        await peer.send(event)
        await stack.engine.held(hold)
        await clock.until_sleeping()
        clock.advance(5.0)  # older than any connection may become
        wakes = 0
        for _ in range(100):
            before = clock.sleepers
            clock.advance(0.01)
            wakes += clock.sleepers < before
            await asyncio.sleep(0)
        assert wakes <= 1
        stack.engine.release(hold)
        await peer.close()


async def test_a_heartbeat_is_not_queued_behind_what_the_peer_does_not_read() -> None:
    class Beating(MemorySink):
        def heartbeat(self) -> bytes | None:
            return b""

        async def write(self, batch: Sequence[bytes]) -> None:
            writes.append(list(batch))
            await self.readable.wait()

    writes: list[list[bytes]] = []
    sink = Beating()
    outbox = Outbox(sink, OutboxSettings(), ManualClock())
    writer = asyncio.create_task(outbox.run())
    outbox.send_heartbeat()
    await until(lambda: writes)
    sink.readable.clear()
    outbox.send_heartbeat()
    await until(lambda: len(writes) == 2)
    for _ in range(10):
        outbox.send_heartbeat()
    sink.readable.set()
    outbox.close()
    await writer
    assert sum(map(len, writes)) <= 3
