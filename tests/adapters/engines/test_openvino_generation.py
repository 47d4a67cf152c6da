"""The parent's side of a generation, without a child."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest

from turnwire_server.adapters.engines.openvino_generation import OpenVinoGeneration
from turnwire_server.ports.engine import EngineFailure, EngineRequest, EngineStep, Sampling
from turnwire_server.session.tokens import TokenIds

Heard = list[list[int]]


async def listened(heard: Heard, *, has_room: bool = True) -> OpenVinoGeneration:
    """Return a generation whose first step was read and that is listened to."""
    request = EngineRequest("resp_1", TokenIds([1]), Sampling(max_tokens=10), max_pending_tokens=3)
    generation = OpenVinoGeneration(1, request, lambda _: None)
    generation.take([2], None, 0)
    assert await anext(generation) == EngineStep([2], None, 0)

    def take(ids: Sequence[int]) -> bool:
        heard.append(list(ids))
        return has_room

    generation.listen(take)
    return generation


async def asked(generation: OpenVinoGeneration) -> asyncio.Task[EngineStep]:
    """Return a reader that waits for the next step."""
    reader = asyncio.ensure_future(anext(generation))
    await asyncio.sleep(0)
    return reader


async def test_ids_go_past_a_reader_that_waits_and_the_end_does_not() -> None:
    heard: Heard = []
    generation = await listened(heard)
    reader = await asked(generation)
    for token in range(3, 9):
        generation.take([token], None, None)
    generation.take([9], "stop", None)
    async with asyncio.timeout(20):
        assert await reader == EngineStep([9], "stop")
    assert heard == [[3], [4], [5], [6], [7], [8]]


async def test_ids_wait_for_a_reader_that_is_busy() -> None:
    heard: Heard = []
    generation = await listened(heard)
    generation.take([3], None, None)
    generation.take([4], None, None)
    async with asyncio.timeout(20):
        assert await anext(generation) == EngineStep([3, 4])
    assert heard == []


async def test_a_listener_without_room_wakes_the_reader_and_what_follows_waits() -> None:
    heard: Heard = []
    generation = await listened(heard, has_room=False)
    reader = await asked(generation)
    generation.take([3], None, None)
    generation.take([4], None, None)
    async with asyncio.timeout(20):
        assert await reader == EngineStep([4])
    assert heard == [[3]]
    reader = await asked(generation)
    generation.take([5], None, None)
    async with asyncio.timeout(20):
        assert await reader == EngineStep([])
    assert heard == [[3], [5]]


async def test_what_a_listener_raises_is_the_readers() -> None:
    generation = await listened([])
    generation.listen(lambda ids: 1 // 0)
    reader = await asked(generation)
    generation.take([3], None, None)
    generation.take([4], None, None)
    async with asyncio.timeout(20):
        with pytest.raises(ZeroDivisionError):
            await reader


@pytest.mark.parametrize("how", ["cancel", "fail", "end"])
async def test_one_that_is_over_hands_nothing_over_and_is_no_cycle(how: str) -> None:
    heard: Heard = []
    generation = await listened(heard)
    reader = await asked(generation)
    if how == "cancel":
        generation.cancel()
    elif how == "fail":
        generation.fail("the child died")
    else:
        generation.take([], "length", None)
    generation.take([3], None, None)
    async with asyncio.timeout(20):
        if how == "fail":
            with pytest.raises(EngineFailure):
                await reader
        else:
            assert (await reader).finish == ("cancelled" if how == "cancel" else "length")
    assert heard == []
    if how == "fail":  # its traceback holds it
        return
    heard.append(generation)  # type: ignore[arg-type]  # as a turn has it
    gone = weakref.ref(generation)
    gc.disable()
    try:
        del generation, reader, heard
        assert gone() is None
    finally:
        gc.enable()


async def test_one_that_was_over_before_keeps_nobody() -> None:
    heard: Heard = []
    generation = await listened(heard)
    generation.cancel()
    generation.listen(heard.append)  # type: ignore[arg-type]  # never called
    assert generation._listener is None


async def test_a_listener_that_cancels_and_raises_leaves_its_reader_the_cancel() -> None:
    generation = await listened([])

    def take(ids: Sequence[int]) -> bool:
        generation.cancel()
        raise LookupError(ids)

    generation.listen(take)
    reader = await asked(generation)
    generation.take([3], None, None)
    async with asyncio.timeout(20):
        assert (await reader).finish == "cancelled"


async def test_what_a_listener_raised_is_no_cycle() -> None:
    generation = await listened([])
    generation.listen(lambda ids: 1 // 0)
    reader = await asked(generation)
    gc.disable()
    try:
        generation.take([3], None, None)
        async with asyncio.timeout(20):
            await asyncio.wait([reader])
        assert isinstance(reader.exception(), ZeroDivisionError)
        gone = weakref.ref(generation)
        generation.cancel()
        del generation, reader
        assert gone() is None
    finally:
        gc.enable()
