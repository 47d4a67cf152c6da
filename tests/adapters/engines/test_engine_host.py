"""One engine process for several servers, with a child that runs no model."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from harness import fake_child
from harness.fake_child import BREAK, CANCELLED_KEYS, DIE, ECHO, HANG, PID
from harness.gguf_files import tiny_metadata, write_gguf
from turnwire_server.adapters.engines import engine_host
from turnwire_server.adapters.engines.child_frames import FrameReader, pack_frame
from turnwire_server.adapters.engines.engine_host import EngineHost
from turnwire_server.adapters.engines.openvino import OpenVinoEngine, OpenVinoSettings
from turnwire_server.ports.engine import EngineFailure, EngineRequest, Sampling
from turnwire_server.session.tokens import TokenIds

WAIT_S = 20.0
WEIGHTS = [("token_embd.weight", "Q8_0", (64, 128)), ("output_norm.weight", "F32", (64,))]
Make = Callable[..., OpenVinoEngine]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", tiny_metadata(), WEIGHTS)


@pytest.fixture
async def make_host(tmp_path: Path) -> AsyncIterator[Callable[[str], EngineHost]]:
    hosts: list[EngineHost] = []

    def make(how: str = "serve") -> EngineHost:
        hosts.append(EngineHost(command=(sys.executable, fake_child.__file__, how)))
        hosts[-1].start(tmp_path / "engines")
        return hosts[-1]

    yield make
    for host in hosts:
        async with asyncio.timeout(WAIT_S):
            await host.close()


@pytest.fixture
async def make_engine(model: Path, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[OpenVinoEngine] = []

    def make(**changes: Any) -> OpenVinoEngine:
        settings = OpenVinoSettings(**{"model_path": model, **changes})
        made.append(OpenVinoEngine(settings, host=tmp_path / "engines"))
        return made[-1]

    yield make
    for engine in made:
        async with asyncio.timeout(WAIT_S):
            await engine.close()


async def started(engine: OpenVinoEngine) -> OpenVinoEngine:
    async with asyncio.timeout(WAIT_S):
        await engine.start()
    return engine


async def said(engine: OpenVinoEngine, *ids: int) -> list[int]:
    """The ids that a prompt of these ids gets."""
    return await ids_of(engine.generate(request(*ids)))


async def ids_of(generation: Any) -> list[int]:
    async with asyncio.timeout(WAIT_S):
        return [token async for step in generation for token in step.ids]


def request(*ids: int) -> EngineRequest:
    return EngineRequest("resp_1", TokenIds(ids), Sampling(max_tokens=16))


async def ended(pid: int) -> None:
    """Wait for the end of a process."""
    descriptor = os.pidfd_open(pid)
    try:
        over = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, over.set)
        async with asyncio.timeout(WAIT_S):
            await over.wait()
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)


async def test_engines_share_one_process_and_their_generations_do_not_mix(make_host, make_engine):
    make_host()
    one, other = await asyncio.gather(started(make_engine()), started(make_engine()))
    assert await said(one, PID) == await said(other, PID) != [os.getpid()]
    # Their keys are the same.
    pairs = [
        (number, engine.generate(request(ECHO, number)))
        for index in range(20)
        for number, engine in ((index, one), (100 + index, other))
    ]
    assert [await ids_of(generation) for _, generation in pairs] == [[n] for n, _ in pairs]


async def test_other_settings_or_another_file_in_its_place_are_another_process(
    make_host, make_engine, model
):
    make_host()
    one = await started(make_engine())
    other = await started(make_engine(cache_gigabytes=2))
    same = await started(make_engine(default_temperature=0.5))
    write_gguf(model, tiny_metadata(), [*WEIGHTS, ("more.weight", "F32", (64,))])
    fresh = await started(make_engine())
    (pid,), (again,) = await said(one, PID), await said(same, PID)
    assert pid == again
    assert len({pid, *await said(other, PID), *await said(fresh, PID)}) == 3


async def test_a_cancel_reaches_the_generation_of_the_one_that_cancels(make_host, make_engine):
    make_host()
    one, other = await started(make_engine()), await started(make_engine())
    assert await said(one, ECHO, 5) == [5]
    hanging, cancelled = other.generate(request(HANG)), one.generate(request(HANG))
    cancelled.cancel()
    assert cancelled.key != hanging.key
    assert await said(one, CANCELLED_KEYS) == [cancelled.key]
    assert (other._running, one._running) == ({hanging.key: hanging}, {})


@pytest.mark.parametrize("way", ["closes", "dies"])
async def test_the_generations_of_one_that_goes_are_cancelled_and_the_others_go_on(
    make_host, make_engine, way
):
    make_host()
    one, other = await started(make_engine()), await started(make_engine())
    pid = await said(other, PID)
    keys = [one.generate(request(HANG)).key for _ in range(3)]
    assert await said(one, ECHO, 1) == [1]
    if way == "closes":
        await one.close()
    else:
        assert one._child is not None
        one._child.close()  # what the kernel does for a process that is killed
    async with asyncio.timeout(WAIT_S):
        while set(await said(other, CANCELLED_KEYS)) != set(keys):
            pass
    assert await said(other, PID) == pid


async def test_a_dead_process_fails_the_generations_of_all_and_comes_back_once(
    make_host, make_engine, caplog
):
    make_host()
    one, other = await started(make_engine()), await started(make_engine())
    (pid,) = await said(one, PID)
    hanging = [engine.generate(request(HANG)) for engine in (one, other)]
    os.kill(pid, signal.SIGKILL)
    for generation in hanging:
        with pytest.raises(EngineFailure, match="process ended"):
            await ids_of(generation)
    # They begin while there is none, and wait for the next one.
    (again,) = await said(one, PID)
    assert [again] == await said(other, PID)
    assert again != pid
    assert one.restarts + other.restarts == 1
    assert "a shared engine process ended (signal 9)" in caplog.text


async def test_one_that_breaks_fails_all_and_every_one_hears_why(make_host, make_engine, caplog):
    make_host()
    one, other = await started(make_engine()), await started(make_engine())
    hanging = other.generate(request(HANG))
    assert await said(other, ECHO, 1) == [1]
    for generation in (one.generate(request(BREAK)), hanging):
        with pytest.raises(EngineFailure, match="process ended"):
            await ids_of(generation)
    assert caplog.text.count("gives up: its cheese has melted") == 2
    assert await said(other, ECHO, 2) == [2]


async def test_it_ends_with_its_last_connection_and_the_next_one_starts_another(
    make_host, make_engine
):
    make_host()
    one, other = await started(make_engine()), await started(make_engine())
    (pid,) = await said(one, PID)
    await one.close()
    assert await said(other, PID) == [pid]
    ending = asyncio.create_task(ended(pid))
    await other.close()
    await ending
    last = await started(make_engine())
    assert await said(last, PID) != [pid]
    assert last.restarts == 0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("fail", r"^tiny\.gguf cannot be loaded by OpenVINO: its tensors are made of cheese$"),
        ("die", r"^The engine process ended \(exit status 5\) while loading tiny\.gguf\.$"),
    ],
)
async def test_one_that_cannot_load_tells_everybody_why(make_host, make_engine, how, message):
    make_host(how)
    for outcome in await asyncio.gather(
        *(started(make_engine()) for _ in range(3)), return_exceptions=True
    ):
        assert isinstance(outcome, EngineFailure)
        with pytest.raises(EngineFailure, match=message):
            raise outcome


async def test_a_process_that_cannot_be_run_is_said(make_engine, tmp_path):
    host = EngineHost(command=(str(tmp_path / "nothing"),))
    host.start(tmp_path / "engines")
    with pytest.raises(EngineFailure, match=r"its process cannot be started: .*No such file"):
        await started(make_engine())
    await host.close()


async def test_one_that_takes_too_long_is_ended_when_nobody_waits_any_more(make_host, make_engine):
    host = make_host("sleep")
    with pytest.raises(EngineFailure, match=r"was not loaded within 0\.3 s"):
        await started(make_engine(start_timeout_s=0.3))
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*host._tasks)
    assert list(host.engines) == []


async def test_without_a_host_the_failure_says_so(make_engine):
    with pytest.raises(EngineFailure, match="The engine process cannot be started"):
        await started(make_engine())


async def test_closing_the_host_ends_a_process_that_does_not_end(
    make_host, make_engine, monkeypatch
):
    monkeypatch.setattr(engine_host, "_STOP_S", 0.2)
    host = make_host("stubborn")
    engine = await started(make_engine())
    (pid,) = await said(engine, PID)
    ending = asyncio.create_task(ended(pid))
    await engine.close()
    async with asyncio.timeout(WAIT_S):
        await host.close()
    await ending


async def test_one_that_does_not_read_delays_nobody_and_is_let_go(
    make_host, make_engine, tmp_path, model
):
    make_host()
    engine = await started(make_engine())
    (pid,) = await said(engine, PID)
    loop, frames = asyncio.get_running_loop(), FrameReader()
    with socket.socket(socket.AF_UNIX) as raw:
        raw.setblocking(False)
        await loop.sock_connect(raw, str(tmp_path / "engines"))
        options = {
            **dict.fromkeys(("threads",)),
            "model_path": str(model),
            "chunk_tokens": 64,
            "cache_gigabytes": 1,
            "prefix_cache": True,
            "edition": (model.stat().st_mtime_ns, model.stat().st_size),
        }
        async with asyncio.timeout(WAIT_S):
            await loop.sock_sendall(raw, pack_frame("start", options))
            ((ready, _),) = frames.feed(await loop.sock_recv(raw, 1 << 16))
            assert ready == "ready"
            flood = array("I", [ECHO, *range(100_000)]).tobytes()
            with pytest.raises(OSError):  # it is closed in the middle of it
                for key in range(200):
                    await loop.sock_sendall(raw, pack_frame("generate", key, flood, {}))
                    assert await said(engine, ECHO, key) == [key]
    assert await said(engine, PID) == [pid]


def test_a_process_ends_when_its_host_was_killed_and_the_last_connection_with_it(model, tmp_path):
    script = f"""
import asyncio, sys
from pathlib import Path
from turnwire_server.adapters.engines.engine_host import EngineHost
async def main():
    host = EngineHost(command=(sys.executable, {fake_child.__file__!r}, "serve"))
    host.start(Path({str(tmp_path / "engines")!r}))
    print(flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""

    async def finish(host: subprocess.Popen[bytes]) -> None:
        engine = await started(OpenVinoEngine(OpenVinoSettings(model), host=tmp_path / "engines"))
        (pid,) = await said(engine, PID)
        host.kill()
        host.wait()
        # What runs may end in order.
        assert await said(engine, ECHO, 3) == [3]
        ending = asyncio.create_task(ended(pid))
        await engine.close()
        await ending

    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline()
        asyncio.run(finish(host))


async def test_what_is_no_engine_is_shown_the_door(make_host, make_engine, tmp_path):
    make_host()
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as raw:
        raw.setblocking(False)
        await loop.sock_connect(raw, str(tmp_path / "engines"))
        async with asyncio.timeout(WAIT_S):
            await loop.sock_sendall(raw, pack_frame("generate", 1, b"", {}))
            assert await loop.sock_recv(raw, 1) == b""
    assert await said(await started(make_engine()), ECHO, 4) == [4]


async def test_one_that_keeps_dying_is_asked_for_more_and_more_slowly(make_host, make_engine):
    make_host()
    one = await started(make_engine(restart_delay_s=0.01))
    for _ in range(3):
        with pytest.raises(EngineFailure):
            await said(one, DIE)
    assert await said(one, ECHO, 6) == [6]
    assert one.restarts == 3
