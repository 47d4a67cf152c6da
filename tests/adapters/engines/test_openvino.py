"""The engine's side of the pipe, with children that run no model."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import fake_child
from harness.clock import ManualClock
from harness.fake_child import CANCELLED_KEYS, COUNT, DIE, ECHO, FLOOD, HANG, OPTIONS
from harness.gguf_files import tiny_metadata, write_gguf
from turnwire_server.adapters.engines.openvino import (
    OpenVinoEngine,
    OpenVinoSettings,
    _edition,
)
from turnwire_server.adapters.engines.openvino_files import model_problem
from turnwire_server.adapters.renderers.gguf import read_gguf
from turnwire_server.ports.engine import (
    Constraint,
    EngineFailure,
    EngineRequest,
    EngineStep,
    Sampling,
)
from turnwire_server.session.tokens import TokenIds

WEIGHTS = [("token_embd.weight", "Q8_0", (64, 128)), ("output_norm.weight", "F32", (64,))]


@pytest.fixture
def model(tmp_path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", tiny_metadata(), WEIGHTS)


@pytest.fixture
async def make_engine(model):
    made = []

    def make(how: str = "serve", *, clock: ManualClock | None = None, **changes) -> OpenVinoEngine:
        settings = OpenVinoSettings(**{"model_path": model, "stop_timeout_s": 5.0, **changes})
        command = (sys.executable, fake_child.__file__, how)
        made.append(OpenVinoEngine(settings, clock=clock, command=command))
        return made[-1]

    yield make
    for engine in made:
        async with asyncio.timeout(20):
            await engine.close()


@pytest.fixture
async def engine(make_engine):
    made = make_engine()
    async with asyncio.timeout(20):
        await made.start()
    return made


def request(*ids: int, **changes) -> EngineRequest:
    sampling = changes.pop("sampling", Sampling(max_tokens=16))
    return EngineRequest("resp_1", TokenIds(ids), sampling, **changes)


async def steps_of(generation) -> list[EngineStep]:
    async with asyncio.timeout(20):
        return [step async for step in generation]


async def ids_of(generation) -> list[int]:
    return [token for step in await steps_of(generation) for token in step.ids]


def child_pid(engine: OpenVinoEngine) -> int:
    assert engine._child is not None
    assert engine._child._process is not None
    return engine._child._process.pid


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_ids_and_the_end_come_through(engine):
    steps = await steps_of(engine.generate(request(COUNT)))
    assert [token for step in steps for token in step.ids] == [7, 8, 9]
    assert steps[-1].finish == "length"
    assert [step.finish for step in steps[:-1]] == [None] * (len(steps) - 1)
    assert [step.cached_tokens for step in steps] == [0] + [None] * (len(steps) - 1)


async def test_generations_run_side_by_side(engine):
    generations = [engine.generate(request(ECHO, number)) for number in range(20)]
    results = await asyncio.gather(*map(ids_of, generations))
    assert results == [[number] for number in range(20)]


async def test_what_it_is_is_known_after_start(engine, make_engine):
    assert (engine.info.name, engine.info.simulated) == ("openvino", False)
    assert engine.info.context_length == 512
    with pytest.raises(RuntimeError, match="not been started"):
        _ = make_engine().info


async def test_the_context_can_be_limited_further(make_engine):
    engine = make_engine(context_length=100)
    await engine.start()
    assert engine.info.context_length == 100
    # 98 prompt tokens leave room for two.
    assert (await ids_of(engine.generate(request(OPTIONS, *range(97)))))[0] == 2


async def test_a_prompt_that_fills_the_context_ends_by_length_at_once(engine):
    steps = await steps_of(engine.generate(request(*range(512))))
    assert steps == [EngineStep(ids=[], finish="length", cached_tokens=0)]


async def test_settings_reach_the_child(engine):
    sampling = Sampling(max_tokens=3, temperature=0.7, seed=11)
    assert await ids_of(engine.generate(request(OPTIONS, sampling=sampling))) == [3, 11, 7, 10, 1]
    assert await ids_of(engine.generate(request(OPTIONS))) == [16, 0, 0, 10, 1]
    warm = request(OPTIONS, sampling=Sampling(max_tokens=0), prefill_only=True)
    assert (await ids_of(engine.generate(warm)))[0] == 1


async def test_circles_are_looked_for_where_an_answer_may_end_anywhere(make_engine):
    engine = make_engine(repetition_penalty=1.1)
    await engine.start()
    free, held = request(OPTIONS), request(OPTIONS, constraint=Constraint("json_object", ""))
    assert (await ids_of(engine.generate(free)))[3:] == [11, 1]
    assert (await ids_of(engine.generate(held)))[3:] == [11, 0]
    engine = make_engine(loop_stop=False)
    await engine.start()
    assert (await ids_of(engine.generate(free)))[3:] == [10, 0]


async def test_a_cancel_ends_the_generation_and_reaches_the_child(engine):
    generation = engine.generate(request(HANG))
    generation.cancel()
    generation.cancel()
    assert await steps_of(generation) == [EngineStep(ids=[], finish="cancelled")]
    assert await ids_of(engine.generate(request(CANCELLED_KEYS))) == [generation.key]
    generation.cancel()
    assert await steps_of(generation) == []


async def test_ids_that_were_ready_come_with_the_cancelled_step(engine):
    generation = engine.generate(request(FLOOD))
    async with asyncio.timeout(20):
        first = await anext(generation)
        assert first.ids == list(range(100))
        generation.take([5, 6], None, None)
        generation.cancel()
        generation.take([7], "stop", None)  # was on its way: too late
        last = await anext(generation)
    assert (last.ids, last.finish) == ([5, 6], "cancelled")


async def test_a_generation_that_nobody_reads_ends_by_overrun(engine):
    generation = engine.generate(request(FLOOD, max_pending_tokens=50))
    # Whatever the child said before this answer has been taken in.
    await ids_of(engine.generate(request(ECHO, 1)))
    steps = await steps_of(generation)
    assert [step.finish for step in steps] == ["overrun"]
    assert await ids_of(engine.generate(request(CANCELLED_KEYS))) == [generation.key]


async def test_a_wait_that_is_cancelled_loses_nothing(engine):
    generation = engine.generate(request(HANG))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(generation)
    generation.take([1], "stop", 0)
    assert [step.ids for step in await steps_of(generation)] == [[1]]


async def test_a_child_that_does_not_read_blocks_nobody(engine):
    os.kill(child_pid(engine), signal.SIGSTOP)
    try:
        # Each prompt is larger than any socket buffer.
        long = [engine.generate(request(ECHO, *range(500))) for _ in range(500)]
        cancelled = engine.generate(request(HANG, *range(500)))
        cancelled.cancel()
    finally:
        os.kill(child_pid(engine), signal.SIGCONT)
    for result in await asyncio.gather(*map(ids_of, long)):
        assert result == list(range(500))
    assert await ids_of(engine.generate(request(CANCELLED_KEYS))) == [cancelled.key]


async def test_a_dead_child_fails_its_generations_and_is_replaced(engine):
    before = child_pid(engine)
    hanging = engine.generate(request(HANG))
    os.kill(before, signal.SIGKILL)
    with pytest.raises(EngineFailure, match="process ended"):
        await steps_of(hanging)
    assert await steps_of(hanging) == []
    # It begins while there is no child, and waits for the next one.
    assert await ids_of(engine.generate(request(ECHO, 42))) == [42]
    assert child_pid(engine) != before


async def test_a_child_that_keeps_dying_is_restarted_more_and_more_slowly(make_engine):
    clock = ManualClock()
    engine = make_engine(clock=clock, restart_delay_s=1.0)
    await engine.start()
    for _ in range(2):
        with pytest.raises(EngineFailure):
            await steps_of(engine.generate(request(DIE)))
    waiting = engine.generate(request(ECHO, 1))
    await clock.until_sleeping()
    clock.advance(0.9)
    assert clock.sleepers == 1
    clock.advance(0.1)
    assert await ids_of(waiting) == [1]


async def test_a_generation_that_waits_for_a_child_can_be_cancelled(engine):
    hanging = engine.generate(request(HANG))
    os.kill(child_pid(engine), signal.SIGKILL)
    with pytest.raises(EngineFailure):
        await steps_of(hanging)
    held = engine.generate(request(ECHO, 1))
    held.cancel()
    assert [step.finish for step in await steps_of(held)] == ["cancelled"]
    assert await ids_of(engine.generate(request(ECHO, 2))) == [2]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("fail", r"^tiny\.gguf cannot be loaded by OpenVINO: its tensors are made of cheese$"),
        ("die", r"^The engine process ended \(exit status 5\) while loading tiny\.gguf\.$"),
    ],
)
async def test_a_child_that_cannot_load_says_why(make_engine, how, message):
    engine = make_engine(how)
    with pytest.raises(EngineFailure, match=message):
        async with asyncio.timeout(20):
            await engine.start()


async def test_loading_has_a_time_limit(make_engine):
    engine = make_engine("sleep", start_timeout_s=0.2)
    with pytest.raises(EngineFailure, match=r"was not loaded within 0\.2 s"):
        async with asyncio.timeout(20):
            await engine.start()


async def test_close_ends_generations_and_the_child(engine):
    pid = child_pid(engine)
    generation = engine.generate(request(HANG))
    async with asyncio.timeout(20):
        await engine.close()
        await engine.close()
    assert [step.finish for step in await steps_of(generation)] == ["cancelled"]
    assert not is_running(pid)
    with pytest.raises(EngineFailure, match="not running"):
        await steps_of(engine.generate(request(ECHO)))


async def test_close_kills_a_child_that_does_not_end(make_engine):
    engine = make_engine("stubborn", stop_timeout_s=0.2)
    await engine.start()
    pid = child_pid(engine)
    async with asyncio.timeout(20):
        await engine.close()
    assert not is_running(pid)


async def test_signals_for_the_terminals_group_pass_the_child_by(engine):
    assert os.getpgid(child_pid(engine)) != os.getpgid(0)


def test_the_child_ends_with_its_parent(model):
    script = f"""
import asyncio, os, sys
from pathlib import Path
from turnwire_server.adapters.engines.openvino import OpenVinoEngine, OpenVinoSettings
async def main():
    command = (sys.executable, {fake_child.__file__!r}, "serve")
    engine = OpenVinoEngine(OpenVinoSettings(Path({str(model)!r})), command=command)
    await engine.start()
    print(engine._child._process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        descriptor = os.pidfd_open(pid)
        parent.kill()
    try:
        poll = select.poll()
        poll.register(descriptor, 1)
        assert poll.poll(5_000), "the child outlived its parent"
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("chunk", [0, 65])
def test_a_chunk_that_would_delay_cancels_is_refused(model, chunk):
    with pytest.raises(ValueError, match="1 to 64"):
        OpenVinoEngine(OpenVinoSettings(model, chunk_tokens=chunk))


@pytest.mark.parametrize(
    ("changes", "tensors", "words"),
    [
        (
            {},
            [*WEIGHTS, ("blk.0.attn_k.weight", "Q5_0", (64, 64))],
            ["blk.0.attn_k.weight", "Q5_0"],
        ),
        ({}, [("output.weight", "F32", (64, 64))], ["output.weight", "F32"]),
        ({}, [("x.weight", "type 99", (64, 64))], ["x.weight", "type 99"]),
        ({"general.architecture": "gemma3"}, WEIGHTS, ["gemma3", "llama"]),
        ({}, [], ["no tensors"]),
    ],
)
async def test_a_model_that_cannot_run_is_named_with_the_reason(tmp_path, changes, tensors, words):
    path = write_gguf(tmp_path / "odd.gguf", {**tiny_metadata(), **changes}, tensors)
    problem = model_problem(read_gguf(path))
    engine = OpenVinoEngine(OpenVinoSettings(path))
    with pytest.raises(EngineFailure) as failed:
        await engine.start()
    assert str(failed.value) == problem
    for word in ["odd.gguf", *words]:
        assert word in problem


async def test_a_file_that_is_not_there_is_named(tmp_path):
    engine = OpenVinoEngine(OpenVinoSettings(tmp_path / "none.gguf"))
    with pytest.raises(EngineFailure, match=r"no model file at .*none\.gguf"):
        await engine.start()


def test_a_folder_whose_model_was_written_anew_is_another_edition(tmp_path: Path) -> None:
    model = tmp_path / "openvino_model.bin"
    model.write_bytes(b"a" * 100)
    before = _edition(tmp_path)
    assert _edition(tmp_path) == before
    model.write_bytes(b"b" * 200)
    assert _edition(tmp_path) != before
