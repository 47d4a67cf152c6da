from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from harness.client_events import text_turn
from harness.client_wires import MemoryWire, memory_session
from turnwire._book import TurnBook
from turnwire._turn_state import TurnState
from turnwire.errors import ConnectionLost, Timeout


class Clock:
    """Stands in for the loop's timers: time passes in `pass_until` alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self, when, callback)
        self.timers.append(timer)
        return timer

    def pass_until(self, time: float) -> None:
        while due := [timer for timer in self.timers if timer.due <= time]:
            timer = min(due, key=lambda one: one.due)
            self.now = max(self.now, timer.due)
            self.timers.remove(timer)
            timer.callback()
        self.now = time


class Timer:
    def __init__(self, clock: Clock, due: float, callback: Callable[[], None]) -> None:
        self._clock, self.due, self.callback = clock, due, callback

    def when(self) -> float:
        return self.due

    def cancel(self) -> None:
        self._clock.timers.remove(self)


class Watched:
    """A book with a bound of ten seconds, and what it found silent when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr("turnwire._book.asyncio.get_running_loop", lambda: self.clock)
        self.silent: list[tuple[float, str]] = []
        self.book = TurnBook(10.0, self._on_silence)
        monkeypatch.undo()
        self._names = map(str, itertools.count(1))

    def _on_silence(self, state: TurnState) -> None:
        self.silent.append((self.clock.now, state.event_id))
        state.end(Timeout("silent"))

    def start(self, lane: str | None = None) -> TurnState:
        state = TurnState(next(self._names), lane, 1, 100)
        self.book.add(state)
        return state


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


async def test_a_silent_lane_is_told_when_its_time_is_over(watched: Watched) -> None:
    watched.start()
    watched.clock.pass_until(9.9)
    assert not watched.silent
    watched.clock.pass_until(30)
    assert watched.silent == [(10.0, "1")]
    assert not watched.clock.timers


async def test_each_lane_has_its_own_time(watched: Watched) -> None:
    watched.start("a")
    watched.clock.pass_until(4)
    watched.start("b")
    watched.clock.pass_until(7)
    watched.book.hear("a")
    watched.clock.pass_until(40)
    assert watched.silent == [(14.0, "2"), (17.0, "1")]


async def test_a_lane_that_is_heard_is_not_silent(watched: Watched) -> None:
    watched.start()
    for second in range(9, 60, 9):
        watched.clock.pass_until(second)
        watched.book.heard(None)
    assert not watched.silent
    watched.clock.pass_until(100)
    assert watched.silent == [(64.0, "1")]


async def test_turns_one_after_the_other_have_one_timer(watched: Watched) -> None:
    for second in range(1, 100):
        watched.clock.pass_until(second)
        state = watched.start()
        assert len(watched.clock.timers) == 1
        watched.book.remove(state)
    watched.start()
    watched.clock.pass_until(150)
    assert watched.silent == [(109.0, "100")]
    assert not watched.clock.timers


async def test_a_turn_behind_a_silent_one_has_the_rest_of_its_lanes_time(watched: Watched) -> None:
    watched.start("a")
    watched.clock.pass_until(12)
    watched.start("b")
    watched.start("a")
    watched.clock.pass_until(50)
    assert watched.silent == [(10.0, "1"), (20.0, "3"), (22.0, "2")]


async def test_a_closed_book_has_no_timer(watched: Watched) -> None:
    state = watched.start()
    state.lose(ConnectionLost("gone"))
    watched.book.remove(state)
    watched.book.close()
    watched.book.close()
    assert not watched.clock.timers


async def test_a_closed_session_has_no_timer() -> None:
    wire = MemoryWire(lambda event: text_turn(event, "resp_1", "Hello"))
    async with asyncio.timeout(20), memory_session(wire) as session:
        await session.create("Hi").response()
        book = session._connection._book
        assert book._timer is not None
    assert book._timer is None


async def test_the_timer_of_a_real_loop_is_let_go() -> None:
    told = asyncio.Event()
    book = TurnBook(0.01, lambda state: told.set())
    book.add(TurnState("1", None, 1, 100))
    async with asyncio.timeout(20):
        await told.wait()
    book.close()
