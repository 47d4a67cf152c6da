"""Ids that are handed over while the reader sleeps."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness.clock import ManualClock
from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.engines.sim import SimEngine, SimGeneration, SimSettings
from turnwire_server.ports.engine import EngineRequest, EngineStep, Sampling, TurnOutline
from turnwire_server.session.tokens import TokenIds

TOKENS = 20
"""Of a script, beside the one that ends the turn."""


async def begun(
    clock: ManualClock | SystemClock, *, rate: float = 10.0, pending: int = 65_536, **script: Any
) -> SimGeneration:
    engine = SimEngine(SimSettings(tokens_per_second=rate), clock)
    await engine.start()
    return engine.generate(
        EngineRequest(
            request_id="resp_1",
            ids=TokenIds(range(100)),
            sampling=Sampling(max_tokens=1_000),
            max_pending_tokens=pending,
            outline=TurnOutline(script=json.dumps({"tokens": TOKENS, **script})),
        )
    )


class Listener:
    """Notes what it is handed."""

    def __init__(self, do: Callable[[], bool] = lambda: True) -> None:
        self.batches: list[list[int]] = []
        self._do = do

    def take(self, ids: Sequence[int]) -> bool:
        self.batches.append(list(ids))
        return self._do()

    @property
    def lengths(self) -> list[int]:
        return [len(batch) for batch in self.batches]


@asynccontextmanager
async def reading(
    generation: SimGeneration, listener: Listener
) -> AsyncIterator[asyncio.Task[EngineStep]]:
    """Read the first step, listen, and wait for the next one."""
    async with asyncio.timeout(20):
        assert (await anext(generation)).finish is None
        generation.listen(listener.take)
        task = asyncio.ensure_future(anext(generation))
        await asyncio.sleep(0)
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_tokens_are_handed_over_while_the_reader_sleeps_to_the_end(
    clock: ManualClock,
) -> None:
    listener = Listener()
    generation = await begun(clock)
    async with reading(generation, listener) as step:
        await clock.run_for(0.55)
        assert listener.lengths == [1] * 5
        assert not step.done()
        await clock.run_for(60)
        last = await step
        assert (len(last.ids), last.finish) == (1, "stop")
        assert listener.lengths == [1] * (TOKENS - 1)


async def test_the_same_ids_come_as_without_a_listener(clock: ManualClock) -> None:
    listener = Listener()
    async with reading(await begun(clock), listener) as step:
        await clock.run_for(60)
        heard = [token for batch in listener.batches for token in batch] + list((await step).ids)
    alone = await begun(clock)
    await anext(alone)
    clock.advance(60)
    assert heard == list((await anext(alone)).ids)


async def test_what_is_late_is_handed_over_together(clock: ManualClock) -> None:
    listener = Listener()
    async with reading(await begun(clock), listener):
        clock.advance(0.75)
        await clock.run_for(0.1)
        assert listener.lengths == [7, 1]


async def test_one_that_has_no_room_is_handed_nothing_until_the_reader_asks(
    clock: ManualClock,
) -> None:
    listener = Listener(lambda: False)
    generation = await begun(clock)
    async with reading(generation, listener) as step:
        await clock.run_for(1)
        assert await step == EngineStep()
        assert listener.lengths == [1]
        assert await anext(generation) == EngineStep()
        assert listener.lengths == [1, 9]


async def test_what_a_listener_raises_is_the_readers(clock: ManualClock) -> None:
    def fail() -> bool:
        raise LookupError("of the listener")

    listener = Listener(fail)
    async with reading(await begun(clock), listener) as step:
        await clock.run_for(1)
        with pytest.raises(LookupError, match="of the listener"):
            await step
        assert listener.lengths == [1]


async def test_one_that_cancels_hears_no_more(clock: ManualClock) -> None:
    generation = await begun(clock)

    def cancel() -> bool:
        generation.cancel()
        return True

    listener = Listener(cancel)
    async with reading(generation, listener) as step:
        await clock.run_for(1)
        assert (await step).finish == "cancelled"
        assert listener.lengths == [1]


async def test_a_cancelled_generation_ends_at_once(clock: ManualClock) -> None:
    listener = Listener()
    generation = await begun(clock)
    async with reading(generation, listener) as step:
        await clock.run_for(0.25)
        generation.cancel()
        last = await step
        assert (last.ids, last.finish) == ([], "cancelled")
        await clock.run_for(10)
        assert listener.lengths == [1, 1]
        assert clock.sleepers == 0


async def test_nothing_is_handed_over_behind_a_reader_that_went_away(clock: ManualClock) -> None:
    listener = Listener()
    async with reading(await begun(clock), listener) as step:
        await clock.run_for(0.15)
        step.cancel()
        await asyncio.wait([step])
        await clock.run_for(60)
        assert listener.lengths == [1]
        assert clock.sleepers == 0


async def test_more_than_may_wait_is_an_overrun_of_the_readers(clock: ManualClock) -> None:
    listener = Listener()
    async with reading(await begun(clock, pending=5), listener) as step:
        clock.advance(0.75)
        last = await step
        assert (len(last.ids), last.finish) == (5, "overrun")
        assert not listener.batches


async def test_a_silence_is_kept(clock: ManualClock) -> None:
    listener = Listener()
    script: dict[str, Any] = {"silent_after": 3, "silent_s": 10.0}
    async with reading(await begun(clock, **script), listener):
        await clock.run_for(9)
        assert listener.lengths == [1, 1]
        await clock.run_for(1.35)
        assert listener.lengths == [1] * 3


async def test_the_step_in_which_a_script_fails_is_the_readers(clock: ManualClock) -> None:
    listener = Listener()
    async with reading(await begun(clock, fail_after=2), listener) as step:
        await clock.run_for(60)
        assert len((await step).ids) == 1
        assert not listener.batches


async def test_a_pace_that_the_reader_sets_is_that_of_the_loop(clock: ManualClock) -> None:
    listener = Listener()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    try:
        async with reading(await begun(clock, rate=0.0, tokens=320), listener) as step:
            assert (await step).finish == "stop"
            assert listener.lengths == [32] * 9
            assert turns > 9
    finally:
        counting.cancel()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_generation_that_is_over_is_no_cycle_with_who_listened(
    *, is_cancelled: bool
) -> None:
    generation = await begun(SystemClock(), rate=100.0)
    listener = Listener()
    listener.generation = generation  # type: ignore[attr-defined]  # as a turn has it
    async with reading(generation, listener) as step:
        if is_cancelled:  # by a turn that was given up, which reads no more
            step.cancel()
            await asyncio.wait([step])
            generation.cancel()
        else:
            await step
    gone = weakref.ref(generation)
    gc.disable()
    try:
        del generation, listener, step
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_one_that_was_over_before_keeps_nobody(*, is_cancelled: bool) -> None:
    rate = 0.1 if is_cancelled else 0.0
    generation = await begun(SystemClock(), rate=rate)
    listener = Listener()
    async with asyncio.timeout(20):
        step = await anext(generation)
    if is_cancelled:
        generation.cancel()
    else:
        assert step.finish == "stop"
    generation.listen(listener.take)
    gone = weakref.ref(listener)
    gc.disable()
    try:
        del listener
        assert gone() is None
    finally:
        gc.enable()


async def test_what_a_listener_raised_is_no_cycle() -> None:
    generation = await begun(SystemClock(), rate=100.0)

    def fail() -> bool:
        raise LookupError

    listener = Listener(fail)
    gc.disable()
    try:
        async with reading(generation, listener) as step:
            await asyncio.wait([step])
        assert isinstance(step.exception(), LookupError)
        gone = weakref.ref(generation)
        generation.cancel()
        del generation, step, listener
        assert gone() is None
    finally:
        gc.enable()


async def test_a_pace_beyond_all_measure_waits() -> None:
    listener = Listener()
    generation = await begun(SystemClock(), rate=1e-310)
    async with reading(generation, listener) as step:
        for _ in range(5):
            await asyncio.sleep(0)
        assert not step.done()
        generation.cancel()
        assert (await step).finish == "cancelled"
