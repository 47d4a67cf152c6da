from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import turnwire
from harness.client_events import text_turn
from harness.client_wires import MemoryWire, memory_session
from harness.waiting import until
from turnwire._create import Create
from turnwire._link import Link
from turnwire._wire import Arrival
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate


class Ends:
    """What a link tells its session."""

    def __init__(self) -> None:
        self.routed: list[Arrival] = []
        self.errors: list[Exception] = []
        self.told = asyncio.Event()

    def route(self, arrival: Arrival) -> None:
        self.routed.append(arrival)
        self.told.set()

    def lost(self, link: Link, error: Exception) -> None:
        self.errors.append(error)
        self.told.set()


@asynccontextmanager
async def linked(wire: MemoryWire) -> AsyncIterator[tuple[Link, Ends]]:
    ends = Ends()
    link = Link(wire, route=ends.route, sent=lambda state, size: None, lost=ends.lost)
    try:
        async with asyncio.timeout(20):
            yield link, ends
    finally:
        await link.drop()


async def test_a_reader_that_is_cancelled_under_the_link_is_told_as_a_loss() -> None:
    class Cancelled(MemoryWire):
        async def receive(self):  # type: ignore[no-untyped-def]
            raise asyncio.CancelledError

    async with linked(Cancelled()) as (_, ends):
        await ends.told.wait()
        (error,) = ends.errors
    assert isinstance(error, turnwire.ConnectionLost)


async def test_what_the_server_said_last_tells_more_than_a_broken_writer() -> None:
    class Deaf(MemoryWire):
        async def send(self, event: ClientEvent) -> int:
            self.lose(turnwire.ConnectionLost("going", close_code=1001))
            raise turnwire.ConnectionLost("broken pipe")

    async with linked(Deaf()) as (link, ends):
        link.send(ClientEvent())
        await ends.told.wait()
    assert [getattr(error, "close_code", None) for error in ends.errors] == [1001]


async def test_a_broken_writer_is_a_loss_though_the_server_says_nothing() -> None:
    class Deaf(MemoryWire):
        async def send(self, event: ClientEvent) -> int:
            raise turnwire.ConnectionLost("broken pipe")

    async with linked(Deaf()) as (link, ends):
        link.send(ClientEvent())
        await ends.told.wait()
    assert [str(error) for error in ends.errors] == ["broken pipe"]


async def test_a_link_that_was_left_takes_and_gives_nothing_and_cancels_no_read() -> None:
    wire = MemoryWire()
    async with linked(wire) as (link, ends):
        link.send(ClientEvent(event_id="1"))
        await wire.sent_count(1)
        link.leave()
        link.send(ClientEvent(event_id="2"))
        wire.push(*text_turn(ClientEvent(), "resp_1", "x"))
        await until(wire._inbox.empty)
        assert not link._reader.done()
        assert (ends.routed, ends.errors) == ([], [])
    assert [event.event_id for event in wire.sent] == ["1"]


async def test_closing_sends_what_waits_first() -> None:
    wire = MemoryWire()
    async with linked(wire) as (link, ends):
        link.send(ClientEvent(event_id="1"))
        await link.close()
        assert [event.event_id for event in wire.sent] == ["1"]
        assert wire.closed and ends.routed == []


async def test_closing_over_a_broken_writer_does_not_wait() -> None:
    class Deaf(MemoryWire):
        async def send(self, event: ClientEvent) -> int:
            raise turnwire.ConnectionLost("broken pipe")

    wire = Deaf()
    async with linked(wire) as (link, _):
        link.send(ClientEvent())
        link.send(ClientEvent())
        await link.close()
    assert not wire.closed and wire.aborted


class Slow(MemoryWire):
    """Takes what is sent once `taken` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = asyncio.Event()
        self.begun: list[str] = []
        self.was_cancelled = False

    async def send(self, event: ClientEvent) -> int:
        self.begun.append(event.event_id)
        try:
            await self.taken.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return await super().send(event)


async def idle(link: Link) -> None:
    """Wait until the link's writer waits for something to write."""
    await until(lambda: link._is_idle)


async def test_what_nothing_is_before_leaves_at_once() -> None:
    wire = MemoryWire()
    async with linked(wire) as (link, _):
        await idle(link)
        for name in ("1", "2"):
            link.send(ClientEvent(event_id=name))
            assert wire.sent[-1].event_id == name


async def test_what_a_write_is_before_waits_for_it() -> None:
    wire = Slow()
    async with linked(wire) as (link, _):
        await idle(link)
        for name in ("1", "2", "3"):
            link.send(ClientEvent(event_id=name))
        assert wire.begun == ["1"]
        for _ in range(3):
            await asyncio.sleep(0)
        assert wire.begun == ["1"]
        wire.taken.set()
        await wire.sent_count(3)
        await idle(link)
        link.send(ClientEvent(event_id="4"))
        await wire.sent_count(4)
        assert [event.event_id for event in wire.sent] == ["1", "2", "3", "4"]


async def test_what_waits_for_a_write_does_not_leave_once_the_link_was_left() -> None:
    wire = Slow()
    async with linked(wire) as (link, _):
        await idle(link)
        link.send(ClientEvent(event_id="1"))
        link.send(ClientEvent(event_id="2"))
        link.leave()
        wire.taken.set()
        await idle(link)
    assert wire.begun == ["1"]


async def test_a_write_that_began_at_once_is_cut_with_its_link() -> None:
    wire = Slow()
    async with linked(wire) as (link, _):
        await idle(link)
        link.send(ClientEvent())
        await asyncio.sleep(0)
        await link.drop()
        assert wire.was_cancelled
    assert not wire.sent


async def test_a_write_that_is_cut_as_it_could_go_on_sees_the_cut() -> None:
    wire = Slow()
    async with linked(wire) as (link, _):
        await idle(link)
        link.send(ClientEvent())
        await asyncio.sleep(0)
        wire.taken.set()
        await link.drop()
        assert wire.was_cancelled
    assert not wire.sent


async def test_a_write_that_fails_at_once_is_a_loss_and_not_the_senders_error() -> None:
    class Deaf(MemoryWire):
        async def send(self, event: ClientEvent) -> int:
            raise turnwire.ConnectionLost("broken pipe")

    async with linked(Deaf()) as (link, ends):
        await idle(link)
        link.send(ClientEvent())
        link.send(ClientEvent())
        assert not ends.errors
        await ends.told.wait()
    assert [str(error) for error in ends.errors] == ["broken pipe"]


async def test_a_write_whose_stream_was_cut_is_a_loss_and_cancels_nobody_else() -> None:
    class Cut(MemoryWire):
        async def send(self, event: ClientEvent) -> int:
            raise asyncio.CancelledError

    async with linked(Cut()) as (link, ends):
        await idle(link)
        link.send(ClientEvent())
        await ends.told.wait()
    (error,) = ends.errors
    assert isinstance(error, turnwire.ConnectionLost)


def a_create(text: str) -> Create:
    settings = ClientEvent(response_create=ResponseCreate(model="m")).SerializeToString()
    made = Create(settings, text, None, None, generate=None, rollout=None)
    made.event_id = text
    return made


async def test_a_create_without_a_message_becomes_one_on_a_wire_that_needs_it() -> None:
    wire = Slow()
    creates = [a_create("1"), a_create("2")]
    async with linked(wire) as (link, _):
        await asyncio.sleep(0)
        for each in creates:
            link.send(each)
        wire.taken.set()
        await wire.sent_count(2)
    assert wire.sent == [each.whole for each in creates]


async def test_a_create_without_a_message_is_sent_as_it_is_on_a_wire_that_can() -> None:
    class Json(Slow):
        def __init__(self) -> None:
            super().__init__()
            self.creates: list[Create] = []

        async def send_create(self, create: Create) -> int:
            await self.taken.wait()
            self.creates.append(create)
            return 1

    wire = Json()
    creates = [a_create("1"), a_create("2")]
    async with linked(wire) as (link, _):
        await asyncio.sleep(0)
        for each in creates:
            link.send(each)
        wire.taken.set()
        link.send(ClientEvent(event_id="3"))
        await wire.sent_count(1)
    assert wire.creates == creates
    assert [event.event_id for event in wire.sent] == ["3"]


async def test_only_websocket_sessions_make_creates_without_a_message() -> None:
    for name, is_late in (("websocket", True), ("grpc", False)):
        wire = MemoryWire(lambda event: text_turn(event, f"resp_{event.event_id}", "x"), name=name)  # type: ignore[arg-type]
        async with asyncio.timeout(20), memory_session(wire) as session:
            for number in range(2):
                turn = session.create("Hi", instructions="Be brief.", event_id=f"evt_{number}")
                await turn.response()
        assert isinstance(turn._state.delivery.asked, Create) is is_late
        first, second = wire.sent
        assert first.response_create == second.response_create
        assert second.event_id == "evt_1"
