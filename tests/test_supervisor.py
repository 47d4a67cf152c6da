"""The parent of the workers: what it does when they do not do what they should."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.gguf_files import tiny_metadata, write_gguf
from turnwire_server import supervisor as module
from turnwire_server.adapters.engines.openvino import OpenVinoEngine
from turnwire_server.app import StartFailure, make_services
from turnwire_server.config import Address, WorkerPlace, load_config
from turnwire_server.supervisor import Plan, ReservedPorts, Supervisor, supervise

READY = "import os, sys; print('{\"pid\": %d}' % os.getpid(), flush=True); "
OBEYING = READY + "sys.exit(0 if os.read(0, 1) else 9)"
"""Ends in order after any order, and not when its parent is gone."""


def plan(code: Callable[[int], str], count: int = 2) -> Plan:
    return Plan(count, lambda number: (sys.executable, "-c", code(number)), grace_s=1.0)


async def outcome(it: Supervisor, on_ready: Callable[[list[dict[str, Any]]], None]) -> str:
    """How it ends: the failure's text, or nothing."""
    async with asyncio.timeout(60):
        try:
            await it.run(on_ready)
        except StartFailure as failure:
            return str(failure)
    return ""


@pytest.mark.parametrize("order", ["drain", "stop"])
async def test_all_are_announced_once_and_an_order_ends_all(order: str) -> None:
    it = Supervisor(plan(lambda _: OBEYING))
    announced: list[list[dict[str, Any]]] = []

    def on_ready(said: list[dict[str, Any]]) -> None:
        announced.append(said)
        getattr(it, order)()

    assert await outcome(it, on_ready) == ""
    ((one, other),) = announced
    assert one["pid"] != other["pid"]


async def test_an_order_before_all_are_ready_ends_those_that_run() -> None:
    silent = "import os; os.read(0, 1); raise SystemExit(9)"
    it = Supervisor(plan(lambda number: OBEYING if number == 0 else silent))
    announced: list[Any] = []
    running = asyncio.create_task(outcome(it, announced.append))
    async with asyncio.timeout(30):
        while it._workers[1].process is None:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)
    it.stop()
    assert await running == "Worker 1 ended with 9."
    assert announced == []


async def test_one_that_does_not_start_ends_the_others_and_is_named() -> None:
    it = Supervisor(plan(lambda number: OBEYING if number == 0 else "raise SystemExit(3)"))
    announced: list[Any] = []
    assert await outcome(it, announced.append) == "Worker 1 did not start (exit code 3)."
    assert announced == []


async def test_when_the_first_does_not_start_no_other_is_tried() -> None:
    tried: list[int] = []

    def code(number: int) -> str:
        tried.append(number)
        return "raise SystemExit(3)"

    assert "Worker 0 did not start" in await outcome(Supervisor(plan(code)), lambda _: None)
    assert tried == [0]


async def test_a_worker_that_dies_is_started_again_and_its_end_is_no_failure() -> None:
    starts = [0, 0]
    stopping: list[asyncio.Future[None]] = []

    def dying(number: int) -> str:
        starts[number] += 1
        if starts[number] == 3:
            stopping.append(asyncio.ensure_future(stop_soon()))
        return OBEYING if starts[number] == 3 else READY + "os.read(0, 1); os.abort()"

    async def stop_soon() -> None:
        while it._workers[0].said is None:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)
        it.stop()

    codes: list[Callable[[int], str]] = [dying, lambda _: OBEYING]
    it = Supervisor(plan(lambda number: codes[number](number)))

    def poke() -> None:
        worker = it._workers[0]
        if worker.said is not None and starts[0] < 3:
            worker.order(0)
        asyncio.get_running_loop().call_later(0.02, poke)

    assert await outcome(it, lambda _: poke()) == ""
    assert starts[0] == 3


async def test_when_all_fail_again_and_again_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(module, "_MOST_FAILURES", 2)
    hurry = asyncio.Event()

    def code(number: int) -> str:
        if hurry.is_set():
            return "raise SystemExit(4)"
        return READY + "os.read(0, 1); sys.exit(4)"

    it = Supervisor(plan(code))

    def on_ready(said: list[dict[str, Any]]) -> None:
        hurry.set()
        for worker in it._workers:
            worker.order(0)

    text = await outcome(it, on_ready)
    assert text.startswith("No worker stays alive: each ended 2 times in a row")
    assert "exit code 4" in text


async def test_one_that_does_not_end_in_order_is_a_failure() -> None:
    it = Supervisor(plan(lambda number: READY + "os.read(0, 1); sys.exit(5)", count=1))
    assert await outcome(it, lambda _: it.drain()) == "Worker 0 ended with 5."


async def test_one_that_does_not_end_at_all_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STOP_S", 0.05)
    code = READY + "import signal\nwhile True: signal.pause()"
    it = Supervisor(plan(lambda _: code, count=1))
    assert await outcome(it, lambda _: it.stop()) == "Worker 0 ended with -9."


async def test_the_workers_find_the_engines_that_they_share_and_these_end_last(
    tmp_path: Path,
) -> None:
    place = tmp_path / "engines"
    code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(place)!r}); {OBEYING}"
    seen: list[list[dict[str, Any]]] = []

    def on_ready(said: list[dict[str, Any]]) -> None:
        seen.append(said)
        os.kill(os.getpid(), signal.SIGTERM)

    async with asyncio.timeout(60):
        await supervise(replace(plan(lambda _: code), engines=place), on_ready=on_ready)
    assert len(seen[0]) == 2
    assert os.listdir(tmp_path) == []


async def test_a_place_that_cannot_be_had_ends_the_start(tmp_path: Path) -> None:
    for place in (tmp_path / "none" / "engines", tmp_path / ("long" * 50)):
        with pytest.raises(StartFailure, match="The workers' directory cannot be used"):
            await supervise(
                replace(plan(lambda _: OBEYING), engines=place), on_ready=lambda _: None
            )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_reserved_port_can_be_listened_on_by_several(host: str) -> None:
    ports = ReservedPorts()
    address = ports.reserve("HTTP", Address(host, 0))
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("127.0.0.1", address.port))
            each.listen()
    ports.close()


def test_a_port_that_others_share_among_themselves_is_taken() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(StartFailure, match=f"gRPC cannot listen on {address}: Address"):
            ReservedPorts().reserve("gRPC", address)


def test_a_host_that_is_none_of_this_machine_is_named() -> None:
    with pytest.raises(StartFailure, match=r"HTTP cannot listen on 192\.0\.2\.1:80"):
        ReservedPorts().reserve("HTTP", Address("192.0.2.1", 80))


@pytest.mark.parametrize(
    ("given", "is_shared"),
    [({}, True), ({"engine_process": "shared"}, True), ({"engine_process": "per_worker"}, False)],
)
def test_the_engine_of_a_worker_is_the_parents_unless_each_shall_have_its_own(
    tmp_path: Path, given: dict[str, str], is_shared: bool
) -> None:
    pytest.importorskip("openvino_genai")
    path = write_gguf(tmp_path / "tiny.gguf", tiny_metadata())
    options = {"models": [{"path": str(path), **given}], "data_dir": str(tmp_path)}
    alone = load_config(environment={}, options=options)
    place = WorkerPlace(tmp_path, 1)
    for config, host in ((alone, None), (alone.of_worker(place), place.engines)):
        (model,) = make_services(config).models.models
        assert isinstance(model.engine, OpenVinoEngine)
        assert model.engine.host == (host if is_shared else None)
