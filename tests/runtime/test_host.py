"""Sessions without a connection: what keeps them, what ends them, and what a look at them costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness.memory import MemoryPeer, MemorySink
from harness.peers import message_of
from harness.reading import arm_of
from harness.stack import Parts, Stack, running_stack
from harness.waiting import until
from interaction.scripts import SHELL, script
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.store import StoredResponse
from turnwire_server.runtime import host as host_module
from turnwire_server.runtime.event_log import EventLog
from turnwire_server.runtime.outbox import Outbox
from turnwire_server.runtime.settings import RuntimeSettings
from turnwire_server.session.events import Delta, Outgoing

START = {"type": "turnwire.session.start", "resume": True}


def event(members: dict[str, Any]) -> ClientEvent:
    return message_of(members)


def create(text: str, **more: Any) -> ClientEvent:
    return event({"type": "response.create", "model": "sim", "input": text, **more})


@asynccontextmanager
async def session(**parts: Any) -> AsyncIterator[tuple[Stack, MemoryPeer]]:
    """A peer whose session may be resumed."""
    async with running_stack(Parts(**parts)) as stack:
        peer = MemoryPeer(stack.services)
        await peer.send(event(START))
        assert arm_of(await peer.receive()) == "turnwire_session_started"
        try:
            yield stack, peer
        finally:
            peer.sink.readable.set()
            peer.connection.disconnect()
            await asyncio.wait((peer._run,))


async def two_iterations() -> None:
    """Let a new turn go first, and write; then what its client knows is forgotten."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_what_a_client_has_proved_to_know_is_kept_no_longer() -> None:
    async with session() as (stack, peer):

        def kept() -> list[str]:
            (host,) = stack.services.hosts
            events = host.missed([])
            assert isinstance(events, list)
            return [arm_of(one) for one in events if not isinstance(one, Delta)]

        async def until_tidy() -> None:
            (host,) = stack.services.hosts
            assert host._events is not None
            await two_iterations()
            left = len(host._events)
            host._events.tidy()
            assert len(host._events) == left

        async def until_arm(arm: str) -> Any:
            while arm_of(one := await peer.receive()) != arm:
                pass
            return getattr(one, arm)

        rollout = {"rollout": True, "tools": [SHELL], "metadata": script(tool_rounds=1)}
        await peer.send(create("Hi", **rollout))
        done = await until_arm("response_done")
        assert kept()[0] == "response_created"
        call_id = done.required_input[0].function_call_output.call_id
        output = {"type": "function_call_output", "call_id": call_id, "output": "x"}
        names = {"type": "response.append", "response_id": done.response_id}
        hold = stack.engine.hold("Hi", after_steps=0)
        await peer.send(event({**names, "input": [output]}))
        assert kept() == ["response_done"]
        stack.engine.release(hold)
        response = (await until_arm("response_completed")).response
        await peer.send(create("more", previous_response_id=response.id))
        await until_tidy()
        assert kept()[0] == "response_done"  # its own events stay until the next one is named
        following = (await until_arm("response_completed")).response
        await peer.send(create("on", previous_response_id=following.id))
        await until_tidy()
        assert kept()[0] == "response_created"


@pytest.mark.parametrize("was_lost", [True, False])
async def test_a_transport_that_is_cancelled_is_asked_how_its_peer_went(was_lost: bool) -> None:
    async with session() as (stack, peer):
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.send(create("talk"))
        await stack.engine.held(hold)
        peer.connection._was_lost = lambda: was_lost
        peer._run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await peer._run
        assert bool(stack.engine.running) is was_lost
        assert len(stack.services.hosts) == was_lost
        assert stack.services.sessions.waiting == was_lost


async def test_a_reader_that_has_the_last_word_is_heard_before_its_transport_ends() -> None:
    async with session() as (stack, peer):
        asked: list[bool] = []
        peer.connection._was_lost = lambda: asked.append(True) is None
        peer._run.cancel()
        asyncio.get_running_loop().call_soon(peer.connection.disconnect)
        with pytest.raises(asyncio.CancelledError):
            await peer._run
        assert not stack.services.hosts and not asked


async def test_a_plain_session_asks_nothing_and_ends_with_its_connection() -> None:
    async with running_stack() as stack:
        peer = MemoryPeer(stack.services)
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.send(create("talk"))
        response_id = await stack.engine.held(hold)
        asked: list[bool] = []
        peer.connection._was_lost = lambda: asked.append(True) is None
        peer.connection.vanish()
        assert stack.engine.log[-1] == ("cancel", response_id)
        await peer.close()
        assert not asked and not stack.services.hosts


async def test_a_write_that_fails_loses_the_connection_only() -> None:
    async with session() as (stack, peer):
        hold = stack.engine.hold("talk", after_steps=1)

        async def write(batch: object) -> None:
            raise ConnectionResetError

        await peer.send(create("talk"))
        await stack.engine.held(hold)
        peer.sink.write = write  # type: ignore[method-assign]
        stack.engine.release(hold)
        assert (await peer.ended()).reason == "lost"
        assert stack.services.sessions.waiting == 1


async def test_what_was_finished_and_not_read_is_kept_for_its_client() -> None:
    async with session() as (stack, peer):
        peer.sink.readable.clear()
        await peer.send(create("talk"))
        peer.half_close()
        await until(lambda: not stack.services.running)
        peer.connection.lose()
        await peer.ended()
        assert stack.services.sessions.waiting == 1


async def test_a_plain_session_is_not_logged_and_its_turns_write_to_the_outbox_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a plain session is logged")

    monkeypatch.setattr(EventLog, "add", never)
    async with running_stack() as stack:
        peer = MemoryPeer(stack.services)
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.send(create("talk"))
        await stack.engine.held(hold)
        ((_, run),) = stack.services.running.values()
        assert isinstance(run.outlet, Outbox)
        stack.engine.release(hold)
        await peer.close()


async def test_the_end_of_a_turn_is_logged_behind_its_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story: list[str] = []
    encode, add = MemorySink.encode, EventLog.add

    def noted(what: str, event: Outgoing) -> None:
        if not isinstance(event, Delta) and arm_of(event) == "response_completed":
            story.append(what)

    def sent(self: MemorySink, event: Outgoing) -> bytes:
        noted("sent", event)
        return encode(self, event)

    def logged(self: EventLog, event: Outgoing, response_id: str | None = None) -> None:
        noted("logged", event)
        add(self, event, response_id)

    monkeypatch.setattr(MemorySink, "encode", sent)
    monkeypatch.setattr(EventLog, "add", logged)
    async with session() as (_, peer):
        await peer.send(create("Hi"))
        while arm_of(await peer.receive()) != "response_completed":
            pass
    assert story == ["sent", "logged"]


async def test_turns_that_do_not_end_with_their_grace_are_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class StuckStore(MemoryResponseStore):
        async def put(self, record: StoredResponse) -> None:
            stuck.set()
            await asyncio.Event().wait()

    stuck = asyncio.Event()
    monkeypatch.setattr(host_module, "CLEANUP_S", 0.01)
    store = StuckStore(MemoryStoreSettings(), wall=lambda: 0)
    settings = RuntimeSettings(resume_grace_s=0.01)
    async with session(store=store, settings=settings) as (stack, peer):
        await peer.send(create("keep me"))
        async with asyncio.timeout(20):
            await stuck.wait()
        peer.connection.lose()
        await until(lambda: not stack.services.hosts)
        assert not stack.services.running
    assert "turns did not end" in caplog.text


async def test_a_server_that_closes_ends_the_sessions_that_wait() -> None:
    async with session() as (stack, peer):
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.send(create("talk"))
        response_id = await stack.engine.held(hold)
        peer.connection.lose()
        await peer.ended()
        async with asyncio.timeout(20):
            await stack.services.close()
        assert not stack.services.hosts and not stack.services.running
        assert stack.ledger.closed[response_id].status == "cancelled"


async def test_a_drain_waits_for_what_runs_without_a_connection() -> None:
    async with session() as (stack, peer):
        idle = MemoryPeer(stack.services)
        await idle.send(event(START))
        idle.connection.lose()
        await idle.ended()
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.send(create("talk"))
        await stack.engine.held(hold)
        peer.connection.lose()
        await peer.ended()
        draining = asyncio.create_task(stack.services.drain(60.0, asyncio.Event()))
        await until(lambda: len(stack.services.hosts) == 1)  # the idle one has gone
        assert not draining.done()
        stack.engine.release(hold)
        async with asyncio.timeout(20):
            await draining
        assert not stack.services.hosts
        assert ("cancel", hold.text) not in stack.engine.log


@pytest.mark.parametrize("how", ["hurry", "grace"])
async def test_a_drain_ends_with_its_grace_or_when_it_is_told_to_hurry(how: str) -> None:
    async with session() as (stack, peer):
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.send(create("talk"))
        await stack.engine.held(hold)
        hurry = asyncio.Event()
        grace_s = 3600.0 if how == "hurry" else 0.05
        draining = asyncio.create_task(stack.services.drain(grace_s, hurry))
        await asyncio.sleep(0)
        if how == "hurry":
            hurry.set()
        async with asyncio.timeout(20):
            await draining
        assert stack.engine.running  # `close` ends what is left


async def test_errors_and_answers_to_steers_have_no_place_in_the_sequence_of_a_turn() -> None:
    arms = ("error", "response_steer_failed", "response_steer_accepted", "response_created")
    events = [ServerEvent() for _ in arms]
    for one, arm in zip(events, arms, strict=True):
        getattr(one, arm).SetInParent()
    async with session() as (stack, _):
        (host,) = stack.services.hosts
        assert host._events is not None
        host.send_all_logged(events, "resp_1", at_once=False)
        for one in events:
            host.send_logged(one, "resp_1")
        (lane,) = host._events._lanes.values()
        assert [entry.response_id for entry in lane.entries] == [None, None, None, "resp_1"] * 2
