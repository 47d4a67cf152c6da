from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from harness.clock import ManualClock
from turnwire_server.runtime.tidying import Tidying


class Process:
    """A process whose work, sessions and giving back the test says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.worked = 5.0
        self.takes_s = 0.0
        self.given_back = 0
        self.resting = 0
        self.rest_takes_s = 0.0
        self.is_due = False
        self.tidying = self.make(self.rest_one)

    def make(self, rest_one: Callable[[], bool]) -> Tidying:
        return Tidying(
            self.clock, lambda: self.worked, rest_one, lambda: self.is_due, self.give_back
        )

    def rest_one(self) -> bool:
        self.resting -= 1
        self.clock.advance(self.rest_takes_s)
        return self.resting >= 0

    def give_back(self) -> None:
        self.given_back += 1
        self.clock.advance(self.takes_s)

    def spend(self, seconds: float, *, work: float) -> int:
        """Let time pass, look, and return how often it has given back by now."""
        self.clock.advance(seconds)
        self.worked += work
        self.tidying.look()
        return self.given_back


async def run_for(process: Process, seconds: float) -> None:
    running = asyncio.create_task(process.tidying.run())
    await asyncio.sleep(0)
    await process.clock.run_for(seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_memory_is_given_back_once_when_it_is_quiet_after_work() -> None:
    process = Process()
    assert process.spend(1.0, work=0.9) == 0
    assert process.spend(1.0, work=0.01) == 1
    assert process.spend(1.0, work=0.01) == 1


def test_nothing_is_given_back_while_it_works() -> None:
    process = Process()
    assert [process.spend(1.0, work=0.5) for _ in range(10)] == [0] * 10


def test_next_to_no_work_is_not_worth_it() -> None:
    process = Process()
    assert process.spend(10.0, work=0.05) == 0
    assert process.spend(10.0, work=0.06) == 1


def test_without_work_it_is_worth_it_once_most_of_what_was_served_is_gone() -> None:
    process = Process()
    process.is_due = True
    assert process.spend(1.0, work=0.5) == 0
    assert process.spend(1.0, work=0.0) == 1


def test_what_takes_long_comes_rarely() -> None:
    process = Process()
    process.takes_s = 0.02  # so four seconds must pass
    process.spend(1.0, work=1.0)
    assert process.spend(1.0, work=0.0) == 1
    process.spend(1.0, work=1.0)
    assert process.spend(1.0, work=0.0) == 1
    assert process.spend(2.1, work=0.0) == 2


async def test_sessions_that_rest_are_compressed_and_what_that_frees_is_given_back() -> None:
    process = Process()
    process.resting = 3
    await run_for(process, 2.5)
    assert process.resting < 0
    assert process.given_back == 1


async def test_a_busy_process_compresses_nothing() -> None:
    process = Process()
    process.resting = 3
    process.worked += 0.9
    await run_for(process, 1.5)
    assert process.resting == 3


async def test_sessions_are_compressed_a_few_at_a_time() -> None:
    process = Process()
    process.resting, process.rest_takes_s = 1_000, 0.001
    await run_for(process, 2.0)
    assert 840 < process.resting < 900


async def test_a_failure_is_logged_and_the_next_look_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process()
    rest_one, failures = process.rest_one, [MemoryError("content")]

    def fails_once() -> bool:
        if failures:
            raise failures.pop()
        return rest_one()

    process.tidying = process.make(fails_once)
    process.resting = 3
    await run_for(process, 5.0)
    assert process.resting < 0
    assert "memory was not tidied up" in caplog.text
    assert "content" not in caplog.text
