"""When the events of a turn leave, and what has happened by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from harness.memory import MemoryPeer, MemorySink
from harness.peers import message_of
from harness.reading import arm_of
from harness.stack import Stack, running_stack
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import ServerEvent

START = {"type": "turnwire.session.start", "resume": True}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


def create(text: str, **more: object) -> ClientEvent:
    members = {"type": "response.create", "model": "sim", "input": text, "store": False, **more}
    return message_of(members)


@dataclass(frozen=True)
class Write:
    """One write and what was so when it was made."""

    arms: tuple[str, ...]
    by_turn: bool
    """Whether a turn made it itself, not a callback of the loop."""
    settled: int
    """How many responses had their usage settled."""


class PromptSink(MemorySink):
    """A sink that never makes anybody wait and notes each write."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self._stack = stack
        self.writes: list[Write] = []
        self.on_event: Callable[[ServerEvent], None] = lambda event: None
        """Called in the middle of the write of each event."""

    def write_now(self, batch: Sequence[bytes]) -> bool:
        events = [ServerEvent.FromString(encoded) for encoded in batch]
        task = asyncio.current_task()
        self.writes.append(
            Write(
                tuple(map(arm_of, events)),
                by_turn=task is not None and "run_turn" in repr(task.get_coro()),
                settled=len(self._stack.ledger.settled),
            )
        )
        for event in events:
            self.events.put_nowait(event)
            self.on_event(event)
        return True


@asynccontextmanager
async def prompt_peer(
    monkeypatch: pytest.MonkeyPatch, *, is_resumable: bool = False
) -> AsyncIterator[tuple[Stack, MemoryPeer, PromptSink]]:
    async with running_stack() as stack, asyncio.timeout(20):
        sink = PromptSink(stack)
        monkeypatch.setattr("harness.memory.MemorySink", lambda: sink)
        peer = MemoryPeer(stack.services)
        if is_resumable:
            await peer.send(message_of(START))
            assert arm_of(await peer.receive()) == "turnwire_session_started"
            sink.writes.clear()
        yield stack, peer, sink
        await peer.close()


async def until_over(peer: MemoryPeer, turns: int = 1) -> None:
    while turns:
        turns -= arm_of(await peer.receive()) == "response_completed"


@pytest.mark.parametrize("is_resumable", [False, True], ids=["plain", "resumable"])
async def test_the_end_of_the_only_turn_leaves_by_itself_when_all_it_promises_is_so(
    monkeypatch: pytest.MonkeyPatch, is_resumable: bool
) -> None:
    async with prompt_peer(monkeypatch, is_resumable=is_resumable) as (_, peer, sink):
        await peer.send(create("talk"))
        await until_over(peer)
        last = sink.writes[-1]
        assert last.arms[-1] == "response_completed"
        assert (last.by_turn, last.settled) == (True, 1)


@pytest.mark.parametrize("is_resumable", [False, True], ids=["plain", "resumable"])
async def test_the_first_word_of_the_only_turn_leaves_with_its_beginning_in_one_write(
    monkeypatch: pytest.MonkeyPatch, is_resumable: bool
) -> None:
    async with prompt_peer(monkeypatch, is_resumable=is_resumable) as (stack, peer, sink):
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.send(create("talk"))
        await stack.engine.held(hold)
        (first,) = sink.writes
        stack.engine.release(hold)
        await until_over(peer)
        assert first.by_turn
        assert first.arms == (
            "response_created",
            "response_in_progress",
            "response_output_item_added",
            "response_content_part_added",
            "response_output_text_delta",
        )


async def test_what_the_model_says_last_leaves_with_the_end_in_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with prompt_peer(monkeypatch) as (_, peer, sink):
        await peer.send(create("talk", tools=[TOOL]))  # it calls the only tool
        await until_over(peer)
        assert sink.writes[-1].arms[-3:] == (
            "response_function_call_arguments_done",
            "response_output_item_done",
            "response_completed",
        )


async def test_turns_side_by_side_share_the_writes_of_a_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with prompt_peer(monkeypatch) as (stack, peer, sink):
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.send(create("talk", stream_id="a"))
        await stack.engine.held(hold)
        sink.writes.clear()
        await peer.send(create("walk", stream_id="b"))
        await until_over(peer)
        assert not any(write.by_turn for write in sink.writes)
        stack.engine.release(hold)
        await until_over(peer)
        assert sink.writes[-1].by_turn


async def test_the_end_of_a_turn_does_not_wait_for_the_next_one_on_its_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with prompt_peer(monkeypatch) as (stack, peer, sink):
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.send(create("talk"))
        await stack.engine.held(hold)
        await peer.send(create("walk"))
        stack.engine.release(hold)
        await until_over(peer, turns=2)
        ends = [write for write in sink.writes if write.arms[-1] == "response_completed"]
        assert [end.by_turn for end in ends] == [True, True]


@pytest.mark.parametrize("is_resumable", [False, True], ids=["plain", "resumable"])
async def test_a_create_finds_the_response_before_it_however_fast_it_follows_the_end(
    monkeypatch: pytest.MonkeyPatch, is_resumable: bool
) -> None:
    async with prompt_peer(monkeypatch, is_resumable=is_resumable) as (stack, peer, sink):
        (host,) = stack.services.hosts

        def continue_it(event: ServerEvent) -> None:
            if arm_of(event) == "response_completed":
                sink.on_event = lambda event: None
                parent = event.response_completed.response.id
                host.receive(create("walk", previous_response_id=parent), 100)

        sink.on_event = continue_it
        await peer.send(create("talk"))
        await until_over(peer, turns=2)
        assert host.session.is_idle
