from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.ticks import Ticks, TickTimer

CallLater = Callable[[float, Callable[[], object]], TickTimer]


class Loop:
    """A loop whose time is set by hand, to what it is told to wait for."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.timers: list[Handle] = []
        self.failures: list[BaseException] = []

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> Handle:
        self.timers.append(Handle(self.now + seconds, partial(callback, *args)))
        return self.timers[-1]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context["exception"])

    def run_until(self, now: float) -> None:
        while live := sorted((each for each in self.timers if each.is_live), key=lambda e: e.at):
            if live[0].at > now:
                break
            self.now = max(self.now, live[0].at)
            live[0].is_live = False
            live[0].callback()
        self.now = now


class Handle:
    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at, self.callback, self.is_live = at, callback, True

    def cancel(self) -> None:
        self.is_live = False


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def ticks(loop: Loop) -> Ticks:
    return Ticks(loop, lambda: loop.now)  # type: ignore[arg-type]  # all that it uses of one


@pytest.fixture
def call_later(loop: Loop, ticks: Ticks) -> CallLater:
    def start(seconds: float, callback: Callable[[], object]) -> TickTimer:
        timer = TickTimer(ticks, callback)
        timer.start(loop.now + seconds)
        return timer

    return start


def test_what_is_due_in_one_millisecond_is_one_timer_of_the_loop(
    loop: Loop, call_later: CallLater
) -> None:
    told: list[int] = []
    for number in range(100):
        call_later(0.005 + number * 0.000_004, partial(told.append, number))
    assert len(loop.timers) == 1
    loop.run_until(1_000.004)
    assert told == []
    loop.run_until(1_000.006)
    assert told == list(range(100))


def test_calls_come_in_the_order_of_their_times(loop: Loop, call_later: CallLater) -> None:
    told: list[tuple[float, float]] = []

    def tell(wait: float) -> None:
        told.append((wait, loop.now))

    for wait in (0.03, 0.01, 0.02, 0.01):
        call_later(wait, partial(tell, wait))
    loop.run_until(1_000.1)
    assert [wait for wait, _ in told] == [0.01, 0.01, 0.02, 0.03]
    assert all(abs(at - 1_000 - wait) <= 0.001 for wait, at in told)


def test_a_cancelled_call_does_not_come_and_may_be_cancelled_when_it_has_come(
    loop: Loop, call_later: CallLater
) -> None:
    told: list[str] = []
    never = call_later(0.01, lambda: told.append("never"))
    once = call_later(0.01, lambda: told.append("once"))
    never.cancel()
    loop.run_until(1_000.1)
    once.cancel()
    never.cancel()
    assert told == ["once"]


def test_what_is_asked_for_in_a_call_comes_in_a_later_millisecond(
    loop: Loop, call_later: CallLater
) -> None:
    told: list[float] = []

    def again() -> None:
        told.append(loop.now)
        if len(told) < 5:
            call_later(0.000_1, again)

    call_later(0.01, again)
    loop.run_until(1_000.1)
    assert len(told) == 5
    assert all(later - sooner >= 0.000_9 for sooner, later in pairwise(told))
    assert told[-1] <= 1_000.016


def test_an_earlier_one_is_not_kept_waiting_by_a_later_one(
    loop: Loop, call_later: CallLater
) -> None:
    told: list[str] = []
    call_later(30.0, lambda: told.append("late"))
    call_later(0.01, lambda: told.append("soon"))
    loop.run_until(1_000.02)
    assert told == ["soon"]
    call_later(0.01, lambda: told.append("next"))
    loop.run_until(1_000.04)
    assert told == ["soon", "next"]
    loop.run_until(1_031)
    assert told == ["soon", "next", "late"]


def test_one_that_fails_keeps_no_other_waiting(loop: Loop, call_later: CallLater) -> None:
    told: list[str] = []

    def leave() -> None:
        raise asyncio.CancelledError

    call_later(0.01, lambda: 1 // 0)
    call_later(0.01, leave)
    call_later(0.01, lambda: told.append("other"))
    call_later(0.02, lambda: told.append("later"))
    loop.run_until(1_000.1)
    assert told == ["other", "later"]
    assert [type(failure) for failure in loop.failures] == [
        ZeroDivisionError,
        asyncio.CancelledError,
    ]


async def test_the_timers_of_a_clock_share_those_of_its_loop() -> None:
    clock, loop = SystemClock(), asyncio.get_running_loop()
    done: list[asyncio.Future[float]] = [loop.create_future() for _ in range(20)]

    def resolve(number: int) -> None:
        done[number].set_result(clock.monotonic())

    began = clock.monotonic()
    for number in range(len(done)):
        clock.timer(loop, partial(resolve, number)).start(began + number / 1_000)
    async with asyncio.timeout(20):
        times = [await each for each in done]
    assert times == sorted(times)


async def test_each_loop_has_its_own() -> None:
    clock = SystemClock()
    stopped = asyncio.new_event_loop()
    clock.timer(stopped, lambda: None).start(0.0)
    stopped.close()
    loop = asyncio.get_running_loop()
    called = loop.create_future()
    clock.timer(loop, lambda: called.set_result(True)).start(0.0)
    async with asyncio.timeout(20):
        assert await called


def test_a_timer_is_started_again_and_only_the_newest_start_counts(
    loop: Loop, ticks: Ticks
) -> None:
    told: list[float] = []
    timer = TickTimer(ticks, lambda: told.append(round(loop.now - 1_000, 2)))
    for due in (1_000.01, 1_000.02, 1_000.02, 1_000.03):
        timer.start(due)
    loop.run_until(1_000.1)
    assert told == [0.03]
    timer.start(1_000.11)
    timer.cancel()
    timer.start(1_000.11)
    loop.run_until(1_000.2)
    assert told == [0.03, 0.11]


def test_one_that_is_cancelled_by_another_of_its_millisecond_does_not_come(
    loop: Loop, call_later: CallLater
) -> None:
    told: list[str] = []
    call_later(0.01, lambda: second.cancel())
    second = call_later(0.01, lambda: told.append("second"))
    call_later(0.01, lambda: told.append("third"))
    loop.run_until(1_000.1)
    assert told == ["third"]


def test_a_cancelled_timer_keeps_nothing_alive(call_later: CallLater) -> None:
    class Said:
        def say(self) -> None: ...

    said = Said()
    timer = call_later(30.0, said.say)
    kept = weakref.ref(said)
    timer.cancel()
    del said, timer
    assert kept() is None


def test_what_is_never_due_is_waited_for(loop: Loop, call_later: CallLater) -> None:
    call_later(float("inf"), lambda: None)
    loop.run_until(2_000.0)
    assert not loop.failures


def test_a_timer_that_is_started_again_is_due_at_the_new_time_alone(
    loop: Loop, ticks: Ticks
) -> None:
    told: list[float] = []
    timer = TickTimer(ticks, lambda: told.append(loop.now))
    timer.start(1_000.005)
    timer.start(1_000.010)
    loop.run_until(1_000.007)
    assert told == []
    loop.run_until(1_000.1)
    assert told == [1_000.010]
    timer.start(1_000.2)
    timer.start(1_000.2)
    timer.cancel()
    assert not any(timer in tick for _, tick in ticks.waiting.values())
