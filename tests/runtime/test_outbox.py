from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from harness.clock import ManualClock
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.runtime.outbox import Outbox
from turnwire_server.runtime.settings import OutboxSettings
from turnwire_server.session.events import Delta, Outgoing, Part

PART = Part("response_output_text_delta", "msg_1", 0, 0, None)
NEVER_S = 60.0
"""A window that no test lives to see the end of."""


class Wire:
    """A sink that remembers its writes, and whose peer may stop to read or go away."""

    def __init__(self) -> None:
        self.writes = 0
        self.encoded = 0
        self.beat: bytes | None = b"beat"
        self.is_gone = False
        self._written: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._gate: asyncio.Semaphore | None = None
        self._is_stuck = asyncio.Event()

    def encode(self, event: Outgoing) -> bytes:
        self.encoded += 1
        return event.text.encode() if isinstance(event, Delta) else b"event"

    async def write(self, batch: Sequence[bytes]) -> None:
        if self._gate is not None:
            self._is_stuck.set()
            await self._gate.acquire()
        if self.is_gone:
            raise ConnectionError
        self.writes += 1
        self._written.put_nowait(list(batch))

    def heartbeat(self) -> bytes | None:
        return self.beat

    def stop_reading(self) -> None:
        """Let no write pass."""
        self._gate = asyncio.Semaphore(0)

    def read(self, writes: int = 1) -> None:
        """Let so many more writes pass."""
        assert self._gate is not None
        self._is_stuck.clear()
        for _ in range(writes):
            self._gate.release()

    def let_others_pass(self) -> asyncio.Semaphore:
        """Let all further writes pass; return what lets those pass that wait."""
        gate, self._gate = self._gate, None
        assert gate is not None
        return gate

    async def until_stuck(self) -> None:
        """Wait until a write waits for the peer."""
        async with asyncio.timeout(20):
            await self._is_stuck.wait()

    async def next_batch(self) -> list[bytes]:
        """Wait for the next write and return what it had."""
        async with asyncio.timeout(20):
            return await self._written.get()


class PromptWire(Wire):
    """A sink that writes at once while its peer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt_writes = 0

    def write_now(self, batch: Sequence[bytes]) -> bool:
        if self._gate is not None or self.is_gone:
            return False
        self.writes += 1
        self.prompt_writes += 1
        self._written.put_nowait(list(batch))
        return True


class Rig:
    kind: type[Wire] = Wire

    def __init__(self, **settings: float) -> None:
        self.wire = self.kind()
        self.clock = ManualClock()
        self.outbox = Outbox(self.wire, OutboxSettings(**settings), self.clock)
        self.run = asyncio.create_task(self.outbox.run())

    def send(self, text: str | None = None) -> bool:
        return self.outbox.send(ServerEvent() if text is None else Delta(PART, 0, text))

    def send_all(self, *texts: str | None, at_once: bool = True) -> bool:
        events = [ServerEvent() if text is None else Delta(PART, 0, text) for text in texts]
        return self.outbox.send_all(events, at_once=at_once)

    async def speed_up(self, gap_s: float) -> None:
        """Let deltas come every `gap_s` for so long that the outbox knows the rate."""
        for _ in range(100):
            self.send(".")
            self.clock.advance(gap_s)
        self.outbox.flush()
        await self.wire.next_batch()
        await self.settle()

    async def settle(self) -> None:
        """Let everything that is ready run."""
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture(autouse=True, params=[Wire, PromptWire], ids=["awaited", "prompt"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Wire]:
    """Each test runs over sinks of both kinds."""
    monkeypatch.setattr(Rig, "kind", request.param)
    return request.param


@asynccontextmanager
async def rig(**settings: float) -> AsyncIterator[Rig]:
    made = Rig(**settings)
    try:
        yield made
    finally:
        made.outbox.break_off()
        if made.wire._gate is not None:
            made.wire.read(1_000)
        async with asyncio.timeout(20):
            await made.run


async def test_the_first_delta_goes_at_once():
    async with rig(fast_window_s=NEVER_S, fastest_window_s=NEVER_S) as r:
        assert r.send("a")
        assert await r.wire.next_batch() == [b"a"]


async def test_what_is_ready_together_shares_one_write_in_order():
    async with rig() as r:
        for text in ("a", None, "b", "c"):
            r.send(text)
        assert await r.wire.next_batch() == [b"a", b"event", b"b", b"c"]


async def test_what_needs_no_waiting_wakes_no_task():
    async with rig() as r:
        for text in ("a", "b"):
            r.send(text)
            assert await r.wire.next_batch() == [text.encode()]
        if isinstance(r.wire, PromptWire):
            assert r.wire.prompt_writes == r.wire.writes


async def test_what_is_sent_at_once_leaves_in_the_same_call_where_nobody_must_be_waited_for():
    async with rig() as r:
        r.send("a")
        assert r.send_all("b", None)
        assert r.wire.writes == (1 if isinstance(r.wire, PromptWire) else 0)
        assert await r.wire.next_batch() == [b"a", b"b", b"event"]
        await r.settle()
        assert r.wire.writes == 1
        r.send("c")
        assert await r.wire.next_batch() == [b"c"]


async def test_events_that_are_together_leave_with_all_else_of_the_same_tick():
    async with rig() as r:
        r.send_all("a", None, at_once=False)
        r.send_all("b", "c", at_once=False)
        assert r.wire.writes == 0
        assert await r.wire.next_batch() == [b"a", b"event", b"b", b"c"]


async def test_what_is_sent_at_once_takes_along_what_waits_for_company():
    async with rig(fast_window_s=NEVER_S, fastest_window_s=NEVER_S) as r:
        await r.speed_up(0.001)
        r.send("a")
        r.send_all("b", None)
        assert await r.wire.next_batch() == [b"a", b"b", b"event"]
        await r.settle()
        assert r.wire.writes == 2
        r.send("c")  # the wait of the first one is over and ends no other's
        await r.settle()
        assert r.wire.writes == 2


async def test_what_is_sent_at_once_does_not_overtake_a_write_that_waits():
    async with rig() as r:
        r.wire.stop_reading()
        r.send("a")
        await r.wire.until_stuck()
        gate = r.wire.let_others_pass()
        r.send_all("b", "c")
        await r.settle()
        gate.release()
        assert await r.wire.next_batch() == [b"a"]
        assert await r.wire.next_batch() == [b"b", b"c"]


async def test_what_is_sent_at_once_to_a_peer_that_does_not_read_waits_for_it():
    async with rig(outbox_bytes=4) as r:
        r.wire.stop_reading()
        assert not r.send_all("ab", "cd")
        await r.wire.until_stuck()
        drained = asyncio.create_task(r.outbox.drain())
        await r.settle()
        assert not drained.done()
        r.wire.read(10)
        assert await r.wire.next_batch() == [b"ab", b"cd"]
        async with asyncio.timeout(20):
            await drained
        assert r.send_all("e", "f")


async def test_there_is_room_when_all_that_was_too_much_has_left_at_once():
    async with rig(outbox_bytes=4) as r:
        assert r.send_all("ab", "cd") == isinstance(r.wire, PromptWire)
        async with asyncio.timeout(20):
            await r.outbox.drain()
        assert await r.wire.next_batch() == [b"ab", b"cd"]
        assert r.send("e")


async def test_what_cannot_be_encoded_does_not_keep_what_was_sent_before_it(
    monkeypatch: pytest.MonkeyPatch,
):
    async with rig() as r:

        def encode(event: Outgoing) -> bytes:
            assert isinstance(event, Delta)
            return event.text.encode()

        monkeypatch.setattr(r.wire, "encode", encode)
        with pytest.raises(AssertionError):
            r.send_all("a", None)
        assert await r.wire.next_batch() == [b"a"]


async def test_what_stands_before_an_event_that_cannot_be_encoded_counts_for_the_bound(
    monkeypatch: pytest.MonkeyPatch,
):
    async with rig(outbox_bytes=4) as r:

        def encode(event: Outgoing) -> bytes:
            assert isinstance(event, Delta)
            return event.text.encode()

        monkeypatch.setattr(r.wire, "encode", encode)
        r.wire.stop_reading()
        with pytest.raises(AssertionError):
            r.send_all("aaaa", "bbbb", None)
        assert r.outbox.is_crowded
        assert not r.send("c")
        r.wire.read(10)
        async with asyncio.timeout(20):
            await r.outbox.drain()
        assert not r.outbox.is_crowded
        assert await r.wire.next_batch() == [b"aaaa", b"bbbb", b"c"]


@pytest.mark.parametrize(
    ("texts", "has_room", "is_crowded"),
    [(("aaa",), True, False), (("aa", "bb"), False, False), (("aaaa", "b", "ccc"), False, True)],
    ids=["below the bound", "at the bound", "at twice the bound"],
)
async def test_events_that_are_together_are_held_to_the_bound_as_single_ones_are(
    texts, has_room, is_crowded
):
    async with rig(outbox_bytes=4) as r:
        r.wire.stop_reading()
        assert r.send_all(*texts) == has_room
        assert r.outbox.is_crowded == is_crowded
        drained = asyncio.create_task(r.outbox.drain())
        await r.wire.until_stuck()
        await r.settle()
        assert drained.done() == has_room
        r.wire.read(10)
        async with asyncio.timeout(20):
            await drained
        assert not r.outbox.is_crowded


async def test_no_events_are_no_write():
    async with rig() as r:
        assert r.send_all()
        await r.settle()
        assert r.wire.writes == 0


async def test_nothing_is_written_at_once_when_the_peer_is_gone_or_the_outbox_is_closed():
    async with rig() as r:
        r.outbox.close()
        async with asyncio.timeout(20):
            await r.run
        r.send_all("a", "b")
        r.outbox.break_off()
        assert r.send_all("c", "d")
        await r.settle()
        assert r.wire.writes == 0


async def test_nothing_overtakes_a_write_that_waits():
    async with rig() as r:
        r.wire.stop_reading()
        r.send("a")
        await r.wire.until_stuck()
        gate = r.wire.let_others_pass()
        r.send("b")
        await r.settle()
        gate.release()
        assert await r.wire.next_batch() == [b"a"]
        assert await r.wire.next_batch() == [b"b"]


async def test_what_becomes_ready_during_a_write_shares_the_next():
    async with rig() as r:
        r.wire.stop_reading()
        r.send("a")
        await r.wire.until_stuck()
        r.send("b")
        r.send("c")
        r.wire.read(10)
        assert await r.wire.next_batch() == [b"a"]
        assert await r.wire.next_batch() == [b"b", b"c"]


async def test_slow_deltas_do_not_wait_for_company():
    async with rig(fast_window_s=NEVER_S, fastest_window_s=NEVER_S) as r:
        await r.speed_up(0.010)
        r.send("a")
        assert await r.wire.next_batch() == [b"a"]


async def test_fast_deltas_wait_for_company_until_anything_else_comes():
    async with rig(fast_window_s=NEVER_S, fastest_window_s=NEVER_S) as r:
        await r.speed_up(0.001)
        r.send("a")
        r.send("b")
        await r.settle()
        assert r.wire.writes == 1
        r.send()
        assert await r.wire.next_batch() == [b"a", b"b", b"event"]


@pytest.mark.parametrize(
    ("gap_s", "fast_window_s", "fastest_window_s"),
    [(0.001, 0.001, NEVER_S), (0.0001, NEVER_S, 0.001)],
)
async def test_the_wait_for_company_ends_after_the_window_of_the_rate(
    gap_s, fast_window_s, fastest_window_s
):
    async with rig(fast_window_s=fast_window_s, fastest_window_s=fastest_window_s) as r:
        await r.speed_up(gap_s)
        r.send("a")
        await r.settle()
        r.send("b")
        assert await r.wire.next_batch() == [b"a", b"b"]


async def test_after_a_quiet_spell_the_next_delta_goes_at_once():
    async with rig(fast_window_s=NEVER_S, fastest_window_s=NEVER_S) as r:
        await r.speed_up(0.0001)
        r.clock.advance(0.020)
        r.send("a")
        assert await r.wire.next_batch() == [b"a"]


async def test_a_full_outbox_says_so_and_drains():
    async with rig(outbox_bytes=4) as r:
        r.wire.stop_reading()
        assert r.send("ab")
        await r.wire.until_stuck()
        assert r.send("c")
        assert not r.send("d")  # what is in flight counts too
        drained = asyncio.create_task(r.outbox.drain())
        await r.settle()
        assert not drained.done()
        r.wire.read(10)
        async with asyncio.timeout(20):
            await drained
        assert r.send("e")
        assert await r.wire.next_batch() == [b"ab"]
        assert await r.wire.next_batch() == [b"c", b"d"]
        assert await r.wire.next_batch() == [b"e"]


async def test_there_is_room_only_when_what_waits_fits_again():
    async with rig(outbox_bytes=4) as r:
        r.wire.stop_reading()
        r.send("a")
        await r.wire.until_stuck()
        r.send("b" * 10)
        drained = asyncio.create_task(r.outbox.drain())
        r.wire.read(1)
        await r.wire.until_stuck()  # in the second write, which is too much alone
        assert not drained.done()
        r.wire.read(1)
        async with asyncio.timeout(20):
            await drained


async def test_draining_an_outbox_with_room_returns_at_once():
    async with rig() as r, asyncio.timeout(20):
        await r.outbox.drain()


async def test_draining_lets_what_waits_for_company_go():
    async with rig(fast_window_s=NEVER_S, fastest_window_s=NEVER_S) as r:
        await r.speed_up(0.001)
        r.send("a")
        await r.outbox.drain()
        assert await r.wire.next_batch() == [b"a"]


async def test_draining_can_be_cancelled():
    async with rig(outbox_bytes=1) as r:
        r.wire.stop_reading()
        r.send("a")
        drained = asyncio.create_task(r.outbox.drain())
        await r.wire.until_stuck()
        drained.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drained
        r.wire.read(10)
        assert await r.wire.next_batch() == [b"a"]


async def test_closing_writes_the_rest_and_ends_the_writer():
    async with rig(fast_window_s=NEVER_S, fastest_window_s=NEVER_S) as r:
        await r.speed_up(0.001)
        r.send("a")
        r.outbox.close()
        async with asyncio.timeout(20):
            await r.run
        assert await r.wire.next_batch() == [b"a"]


async def test_what_is_sent_during_the_last_write_is_written_too():
    async with rig() as r:
        r.wire.stop_reading()
        r.send("a")
        await r.wire.until_stuck()
        r.outbox.close()
        r.send("b")
        r.wire.read(10)
        async with asyncio.timeout(20):
            await r.run
        assert await r.wire.next_batch() == [b"a"]
        assert await r.wire.next_batch() == [b"b"]


async def test_an_empty_outbox_closes_without_a_write():
    async with rig() as r:
        r.outbox.close()
        async with asyncio.timeout(20):
            await r.run
        assert r.wire.writes == 0


async def test_a_peer_that_is_gone_ends_the_writer_and_nobody_waits_for_it():
    async with rig(outbox_bytes=1) as r:
        r.wire.is_gone = True
        r.wire.stop_reading()
        assert not r.send("a")
        drained = asyncio.create_task(r.outbox.drain())
        await r.wire.until_stuck()
        r.send("b")
        r.wire.read(10)
        async with asyncio.timeout(20):
            await r.run
            await drained
        assert r.outbox.is_broken
        encoded = r.wire.encoded
        assert r.send("c")
        assert r.wire.encoded == encoded
        assert r.wire.writes == 0


async def test_breaking_off_drops_what_waits():
    async with rig() as r:
        r.send("a")
        r.outbox.break_off()
        async with asyncio.timeout(20):
            await r.run
        assert r.wire.writes == 0


async def test_nobody_waits_for_a_write_to_a_peer_that_is_gone():
    async with rig(outbox_bytes=1) as r:
        r.wire.stop_reading()
        r.send("a")
        await r.wire.until_stuck()
        drained = asyncio.create_task(r.outbox.drain())
        await r.settle()
        assert not drained.done()
        r.outbox.break_off()
        async with asyncio.timeout(20):
            await drained


async def test_a_write_is_noted_with_its_time():
    async with rig() as r:
        started = r.outbox.last_write_at
        r.clock.advance(7)
        r.send("a")
        await r.wire.next_batch()
        await r.settle()
        assert r.outbox.last_write_at == started + 7


async def test_a_heartbeat_is_written_when_nothing_else_is():
    async with rig() as r:
        r.outbox.send_heartbeat()
        assert await r.wire.next_batch() == [b"beat"]


async def test_a_wire_may_have_no_heartbeat():
    async with rig() as r:
        r.wire.beat = None
        r.outbox.send_heartbeat()
        await r.settle()
        assert r.wire.writes == 0


async def test_heartbeats_do_not_pile_up_before_a_peer_that_does_not_read():
    async with rig() as r:
        r.wire.stop_reading()
        r.outbox.send_heartbeat()
        r.outbox.send_heartbeat()
        await r.wire.until_stuck()
        r.outbox.send_heartbeat()
        r.wire.read(10)
        assert await r.wire.next_batch() == [b"beat"]
        await r.settle()
        assert r.wire.writes == 1


async def test_a_broken_outbox_has_no_heartbeat():
    async with rig() as r:
        r.outbox.break_off()
        r.outbox.send_heartbeat()
        async with asyncio.timeout(20):
            await r.run
        assert r.wire.writes == 0


async def test_a_peer_that_asks_and_does_not_read_makes_it_crowded_until_it_reads():
    async with rig(outbox_bytes=10) as r:
        r.wire.stop_reading()
        r.send("a" * 12)
        await r.wire.until_stuck()
        assert not r.outbox.is_crowded
        r.send("b" * 8)
        assert r.outbox.is_crowded
        calm = asyncio.create_task(r.outbox.calm())
        await r.settle()
        assert not calm.done()
        r.wire.read(10)
        async with asyncio.timeout(20):
            await calm
        assert not r.outbox.is_crowded


async def test_a_reader_that_waits_for_calm_is_let_go_when_the_peer_is_gone():
    async with rig(outbox_bytes=1) as r:
        r.wire.stop_reading()
        r.send("aa")
        calm = asyncio.create_task(r.outbox.calm())
        await r.settle()
        r.outbox.break_off()
        async with asyncio.timeout(20):
            await calm


async def test_an_idle_outbox_holds_nothing_of_what_it_wrote() -> None:
    wire = Wire()
    outbox = Outbox(wire, OutboxSettings(), ManualClock())
    running = asyncio.create_task(outbox.run())
    async with asyncio.timeout(20):
        outbox.send(ServerEvent())
        await wire._written.get()
        await asyncio.sleep(0)
        frame = running.get_coro().cr_frame
        held = [value for value in frame.f_locals.values() if isinstance(value, list)]
        assert [outbox._queue, *held] == [[]]
        outbox.close()
        await running
