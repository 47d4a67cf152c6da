"""The ledger beside a turn: settled once before the end is told, closed later, never in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.memory import MemorySink
from harness.peers import MemoryWirePeer, Wire
from harness.reading import arm_of, arms, failure_of, response_of, status_of
from harness.scripted_screen import ScriptedScreen
from harness.stack import Parts, Stack, one_peer, running_stack
from harness.usage import HeldTable, StrictLedger
from harness.waiting import until
from turnwire.v1 import response_pb2
from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.engines.sim import SimEngine, SimSettings
from turnwire_server.adapters.ledgers.exporting import Claim, Exporter
from turnwire_server.adapters.ledgers.journal import InstanceJournal
from turnwire_server.adapters.ledgers.journaled import JournaledLedger
from turnwire_server.adapters.ledgers.settings import UsageSettings
from turnwire_server.adapters.renderers.sim_chatml import SimParser
from turnwire_server.adapters.stores.memory import MemoryResponseStore
from turnwire_server.ports.ledger import Ledger, UsageRecord
from turnwire_server.ports.screen import Verdict
from turnwire_server.ports.store import StoredResponse
from turnwire_server.session.events import Outgoing

LONG = {"turnwire.sim": '{"tokens": 200}'}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
ONCE = ("open", "settle", "close")
"""What a ledger is told of each response, in order."""
TERMINAL = {"response_completed", "response_incomplete", "response_failed"}


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> StrictLedger:
    """A ledger whose story has the events that clients are sent too."""
    ledger, encode = StrictLedger(), MemorySink.encode

    def noted(self: MemorySink, event: Outgoing) -> bytes:
        if not hasattr(event, "part"):
            ledger.told.append(("sent", arm_of(event)))
        return encode(self, event)

    monkeypatch.setattr(MemorySink, "encode", noted)
    return ledger


def without_noise(told: Sequence[tuple[str, str]]) -> list[str]:
    """Return what matters of a story, without ids."""
    kept = {*TERMINAL, "response_created", "response_done"}
    return [
        which if what == "sent" else what for what, which in told if what != "sent" or which in kept
    ]


def told_its_client(record: UsageRecord, usage: response_pb2.Usage) -> bool:
    return (
        record.input_tokens,
        record.cached_tokens,
        record.output_tokens,
        record.reasoning_tokens,
    ) == (
        usage.input_tokens,
        usage.input_tokens_details.cached_tokens,
        usage.output_tokens,
        usage.output_tokens_details.reasoning_tokens,
    )


# Every way in which a turn can end. Each returns its last events, or nothing if nobody saw any.

Ending = Callable[[Stack, MemoryWirePeer, pytest.MonkeyPatch], Awaitable[Any]]


async def completed(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    return await peer.turn(input="Hi")


async def not_stored(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    return await peer.turn(input="Hi", store=False)


async def warmed_up(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    return await peer.turn(input="Hi", generate=False)


async def too_long(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    return await peer.turn(input="Hi", max_output_tokens=2)


async def cancelled(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    hold = stack.engine.hold("talk", after_steps=2)
    await peer.create(input="talk", metadata=LONG)
    response_id = await stack.engine.held(hold)
    await peer.send({"type": "response.cancel", "response_id": response_id})
    return await peer.finish()


async def steered(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    hold = stack.engine.hold("talk", after_steps=2)
    said = {"turnwire.sim": '{"text": "one two three four five", "calls": [{"name": "f"}]}'}
    await peer.create(input="talk", tools=[TOOL], metadata=said)
    response_id = await stack.engine.held(hold)
    event = {"type": "response.steer", "previous_response_id": response_id, "input": "Stop."}
    await peer.send(event)
    await peer.until("response_steer_accepted")
    stack.engine.release(hold)
    events = await peer.finish()
    await peer.finish()  # what follows it
    return events


async def engine_broken(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    def broken(*_: object) -> None:
        raise RuntimeError("no engine")

    monkeypatch.setattr(SimEngine, "generate", broken)
    return await peer.turn(input="Hi")


async def parser_broken(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    def broken(*_: object) -> None:
        raise RuntimeError("no parser")

    monkeypatch.setattr(SimParser, "finish", broken)
    return await peer.turn(input="Hi")


async def not_kept(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    async def broken(*_: object) -> None:
        raise RuntimeError("no store")

    monkeypatch.setattr(MemoryResponseStore, "put", broken)
    return await peer.turn(input="Hi")


async def not_encoded(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    encode = MemorySink.encode

    def broken(self: MemorySink, event: Outgoing) -> bytes:
        if not hasattr(event, "part") and arm_of(event) == "response_completed":
            raise RuntimeError("no encoder")
        return encode(self, event)

    monkeypatch.setattr(MemorySink, "encode", broken)
    await peer.create(input="Hi")
    await until(lambda: stack.engine.requests and not stack.services.running)


async def disconnected(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    hold = stack.engine.hold("talk", after_steps=2)
    await peer.create(input="talk", metadata=LONG)
    await stack.engine.held(hold)
    await peer.disconnect()
    await until(lambda: not stack.services.running)


async def shut_down(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    hold = stack.engine.hold("talk", after_steps=2)
    await peer.create(input="talk", metadata=LONG)
    await stack.engine.held(hold)
    closing = asyncio.ensure_future(stack.services.close())
    events = await peer.finish()
    await closing
    return events


async def rolled_out(stack: Stack, peer: MemoryWirePeer, monkeypatch: pytest.MonkeyPatch) -> Any:
    await peer.create(input="Hi", rollout=True, tools=[TOOL], tool_choice="required")
    done = (await peer.until("response_done")).response_done
    [record] = stack.ledger.open_records
    call_id = done.required_input[0].function_call_output.call_id
    output = {"type": "function_call_output", "call_id": call_id, "output": "x"}
    await peer.send({"type": "response.append", "response_id": done.response_id, "input": [output]})
    assert record == done.response_id
    return await peer.finish()


ENDINGS: dict[Ending, str] = {
    completed: "completed",
    not_stored: "completed",
    warmed_up: "completed",
    too_long: "incomplete",
    cancelled: "cancelled",
    steered: "incomplete",
    engine_broken: "failed",
    parser_broken: "failed",
    not_kept: "failed",
    not_encoded: "completed",
    disconnected: "cancelled",
    shut_down: "cancelled",
    rolled_out: "completed",
}


@pytest.mark.parametrize(
    ("ending", "status"), ENDINGS.items(), ids=lambda x: getattr(x, "__name__", None)
)
async def test_however_a_turn_ends_it_is_settled_once_before_its_client_is_told(
    ending: Ending, status: str, ledger: StrictLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = SimSettings(step_tokens=1)
    async with asyncio.timeout(20), one_peer(ledger=ledger, sim=sim) as (stack, peer):
        peer.is_checked = False  # some responses have no end
        events = await ending(stack, peer, monkeypatch)
        await stack.services.afterwork.finish(5)
    response_id = next(which for what, which in ledger.told if what == "open")
    own = [(what, which) for what, which in ledger.told if what == "sent" or which == response_id]
    record = ledger.closed[response_id]
    assert record.status == status
    assert [what for what, _ in own if what in ONCE] == list(ONCE)
    assert not ledger.open_records and not ledger.settled
    if events:
        response = response_of(events)
        assert (response.id, status_of(response)) == (response_id, status)
        assert told_its_client(record, response.usage)
        story = [what for what in without_noise(own) if what in TERMINAL or what == "settle"]
        assert story[0] == "settle" and story[1] in TERMINAL


@pytest.mark.parametrize("ending", ["refuse", "fail"])
async def test_a_turn_that_the_screen_ends_is_settled_once(
    ending: Any, ledger: StrictLedger
) -> None:
    screen = ScriptedScreen()
    async with asyncio.timeout(20), one_peer(ledger=ledger, screen=screen) as (stack, peer):
        await peer.create(input="Hi")
        check = await screen.checked()
        check.answer.set_result(Verdict(allowed=False, refusal="No.", ending=ending))
        response = response_of(await peer.finish())
        await stack.services.afterwork.finish(5)
    [record] = ledger.closed.values()
    assert record.status == status_of(response)
    assert told_its_client(record, response.usage)
    assert [what for what, _ in ledger.told if what in ONCE] == list(ONCE)


async def test_a_create_that_is_refused_has_no_record(ledger: StrictLedger) -> None:
    async with asyncio.timeout(20), one_peer(ledger=ledger) as (_, peer):
        [error] = await peer.turn(input="Hi", previous_response_id="resp_missing")
        assert failure_of(error)[0] == "previous_response_not_found"
    assert [what for what, _ in ledger.told if what != "sent"] == []


async def test_what_a_pause_tells_is_noted_before_it_is_told(
    ledger: StrictLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[UsageRecord] = []
    progress = ledger.progress

    def note(record: UsageRecord) -> None:
        noted.append(record)
        progress(record)

    monkeypatch.setattr(ledger, "progress", note)
    async with asyncio.timeout(20), one_peer(ledger=ledger) as (_, peer):
        await peer.create(input="Hi", rollout=True, tools=[TOOL], tool_choice="required")
        done = (await peer.until("response_done")).response_done
        [record] = noted
        assert told_its_client(record, done.usage) and record.response_id == done.response_id
        assert without_noise(ledger.told) == [
            *("response_created", "open", "progress", "response_done"),
        ]


async def test_a_turn_whose_task_is_cut_off_is_settled_with_what_it_had_used(
    ledger: StrictLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = SimSettings(step_tokens=1)
    async with asyncio.timeout(20), one_peer(ledger=ledger, sim=sim) as (stack, peer):
        hold = stack.engine.hold("talk", after_steps=3)
        await peer.create(input="talk", metadata=LONG)
        response_id = await stack.engine.held(hold)
        [task] = [
            task
            for task in asyncio.all_tasks()
            if getattr(task.get_coro(), "__name__", "") == "run_turn"
        ]
        task.cancel()
        await asyncio.wait((task,))
        await stack.services.afterwork.finish(5)
        record = ledger.closed[response_id]
        assert (record.status, record.output_tokens) == ("cancelled", 3)
        assert [what for what, _ in ledger.told if what != "sent"] == ["open", "settle", "close"]
        peer.is_checked = False


async def test_a_ledger_that_cannot_write_harms_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = HeldTable()
    journal = InstanceJournal.create(tmp_path / "instances", "me", database="db")
    ledger = JournaledLedger(journal, table, clock=SystemClock(), settings=UsageSettings())

    def full(line: bytes) -> None:
        raise OSError(28, "No space left on device")

    async with asyncio.timeout(20), one_peer(ledger=ledger) as (stack, peer):
        monkeypatch.setattr(journal, "append", full)
        response = response_of(await peer.turn(input="Hi"))
        assert status_of(response) == "completed"
        await until(lambda: table.records)
        levels = stack.services.levels().usage
        assert levels is not None and levels.journal_failures == 4
    assert told_its_client(table.records[response.id], response.usage)
    assert "journal cannot be written" in caplog.text


# After work: by order of events, on the wires that carry more than one turn.


class BlockedSink:
    """A sink that takes forever, until it is let."""

    name = "file"
    batch = 10
    patience_s = 10.0

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.ready = asyncio.Event()
        self.arrived: list[str] = []

    async def deliver(self, records: Sequence[UsageRecord]) -> Sequence[str]:
        self.asked.set()
        await self.ready.wait()
        self.arrived += [record.response_id for record in records]
        return [record.response_id for record in records]

    async def close(self) -> None:
        pass


class MemoryQueue(HeldTable):
    """A table whose records are to be exported, each once."""

    def __init__(self) -> None:
        super().__init__()
        self._given: set[str] = set()

    async def claim(self, sink: str, *, limit: int, **_: int) -> Sequence[Claim]:
        new = [each for each in self.records.values() if each.response_id not in self._given]
        self._given.update(each.response_id for each in new[:limit])
        return [Claim(each, 0) for each in new[:limit]]

    async def note(self, sink: str, delivered: Sequence[str], failed: object) -> None:
        assert not failed

    async def waiting(self, sink: str) -> tuple[int, int | None]:
        return 0, None


@pytest.mark.parametrize("wire", ["memory", "grpc", "websocket"])
async def test_the_next_turn_of_a_lane_is_over_while_the_export_of_the_first_is_blocked(
    wire: Wire, tmp_path: Path
) -> None:
    queue, sink, clock = MemoryQueue(), BlockedSink(), SystemClock()
    settings = UsageSettings()
    journal = InstanceJournal.create(tmp_path / "instances", "me", database="db")
    exporter = Exporter(sink, queue, clock=clock, settings=settings)
    ledger: Ledger = JournaledLedger(
        journal, queue, clock=clock, settings=settings, exporters=[exporter]
    )
    async with asyncio.timeout(30), running_stack(Parts(ledger=ledger)) as stack:
        peer = await stack.connect(wire)
        first = response_of(await peer.turn(input="one", stream_id="a"))
        await sink.asked.wait()  # the sink has the first record, and does not let go of it
        queue.ready.clear()  # from now on the database is blocked too
        texts = ("two", "three", "four")
        more = [response_of(await peer.turn(input=text, stream_id="a")) for text in texts]
        assert [status_of(each) for each in (first, *more)] == ["completed"] * 4
        assert sink.arrived == [] and list(queue.records) == [first.id]
        queue.ready.set()
        sink.ready.set()
        await until(lambda: len(sink.arrived) == 4, within_s=20)
        assert sink.arrived == [each.id for each in (first, *more)]
        assert all(told_its_client(queue.records[each.id], each.usage) for each in (first, *more))


async def test_a_turn_that_was_begun_is_open_before_its_client_knows_of_it(
    ledger: StrictLedger,
) -> None:
    async with asyncio.timeout(20), one_peer(ledger=ledger) as (stack, peer):
        sink = peer.inner.sink
        sink.readable.clear()  # nothing leaves
        hold = stack.engine.hold("talk")
        await peer.create(input="talk")
        response_id = await stack.engine.held(hold)
        assert list(ledger.open_records) == [response_id]
        assert sink.events.empty()
        sink.readable.set()
        stack.engine.release(hold)
        assert arms(await peer.finish())[-1] == "response_completed"


async def test_what_a_stored_response_used_is_noted_before_it_can_be_fetched(
    ledger: StrictLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = MemoryResponseStore.put

    async def noted(self: MemoryResponseStore, record: StoredResponse) -> None:
        ledger.told.append(("store", record.response_id))
        await put(self, record)

    monkeypatch.setattr(MemoryResponseStore, "put", noted)
    async with asyncio.timeout(20), one_peer(ledger=ledger) as (stack, peer):
        await peer.turn(input="Hi")
        await stack.services.afterwork.finish(5)
    assert [what for what, _ in ledger.told if what != "sent"] == [
        *("open", "progress", "store", "settle", "close"),
    ]
