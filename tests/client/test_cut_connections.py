"""Agent runs against the real server, over connections that are cut at every event boundary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import pytest

import turnwire
from harness.cutting_proxy import Cut, CuttingProxy, cutting_proxy
from harness.server import RunningServer, running_server
from harness.waiting import until
from turnwire import _connect
from turnwire._recovery import RecoverySettings
from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.runtime.settings import RuntimeSettings
from turnwire_server.transports.grpc import GrpcSettings

WIRES = ("grpc", "websocket")
ONE_BY_ONE = GrpcSettings(max_frame_bytes=1)
"""Sends each event by itself."""
THREE_CALLS = {"turnwire.sim": json.dumps({"tool_rounds": 3})}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dial again sooner than the default: these tests do it hundreds of times."""
    monkeypatch.setattr(_connect, "RecoverySettings", partial(RecoverySettings, first_delay_s=0.01))


@dataclass
class Run:
    """What one agent run came to."""

    text: str = ""
    calls: list[str] = field(default_factory=list)
    """Ids of the calls of which the tool ran."""
    numbers: list[int | None] = field(default_factory=list)
    error: turnwire.TurnwireError | None = None
    reconnects: int = 0
    is_resumable: bool = False


@asynccontextmanager
async def cuttable(wire: str) -> AsyncIterator[tuple[RunningServer, CuttingProxy]]:
    """Run a server behind a proxy."""
    async with (
        asyncio.timeout(60),
        running_server(grpc=ONE_BY_ONE) as server,
        cutting_proxy(port_of(server, wire), wire=wire) as proxy,
    ):
        yield server, proxy


def port_of(server: RunningServer, wire: str) -> int:
    return server.grpc_port if wire == "grpc" else server.http_port


def url_of(proxy: CuttingProxy, wire: str) -> str:
    return f"{'grpc' if wire == 'grpc' else 'ws'}://127.0.0.1:{proxy.port}"


async def agent_run(
    url: str,
    *,
    resume: bool,
    store: bool = False,
    watch: bool = True,
    rollout: bool = False,
    run: Run | None = None,
) -> Run:
    """Let an agent call a tool three times and answer.

    Args:
        url: The server.
        resume: Whether the session may be resumed.
        store: Whether responses are stored.
        watch: Whether somebody sees the output as it comes.
        rollout: Whether the run is one response.
        run: What it comes to is put in there while it runs.
    """
    run = run or Run()

    def look(**arguments: object) -> str:
        return "found"

    tool = turnwire.tool(look, parameters={"type": "object", "properties": {}})

    def on_event(event: turnwire.Event) -> None:
        run.numbers.append(event.sequence_number)

    async with turnwire.connect(url, model="sim", resume=resume, reconnect_s=10) as session:
        try:
            result = await session.run(
                "Look at it.",
                tools=[tool],
                store=store,
                rollout=rollout,
                metadata=THREE_CALLS,
                on_event=on_event if watch else None,
                on_tool_output=lambda call, _: run.calls.append(call.call_id),
            )
            run.text = result.output_text
        except turnwire.TurnwireError as error:
            run.error = error
        run.reconnects = session.reconnects
        run.is_resumable = session.is_resumable
    return run


@pytest.mark.parametrize("rollout", [False, True])
@pytest.mark.parametrize("side", ["server", "client"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_run_that_resumes_is_the_same_wherever_its_connection_is_cut(
    wire: str, side: Literal["server", "client"], rollout: bool
) -> None:
    async with cuttable(wire) as (_, proxy):
        url = url_of(proxy, wire)
        whole = await agent_run(url, resume=True, rollout=rollout)
        assert len(set(whole.calls)) == 3 and whole.text and whole.error is None
        for frame in range(1, 100):
            proxy.arm(Cut(side, frame))
            run = await agent_run(url, resume=True, rollout=rollout)
            if proxy.cut is not None:
                break  # The run has no such frame.
            assert run.error is None, (frame, run.error)
            assert len(run.calls) == len(set(run.calls)) == 3, frame
            assert run.text == whole.text, frame
            assert run.numbers == whole.numbers, frame
            # A cut of the very last frame may not be noticed any more.
            assert run.reconnects == 1 or side == "server", frame
    assert proxy.cuts >= (4 if side == "client" else len(whole.numbers))


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_run_that_nobody_watches_needs_no_resume(wire: str, store: bool) -> None:
    async with cuttable(wire) as (_, proxy):
        url = url_of(proxy, wire)
        whole = await agent_run(url, resume=False, store=store, watch=False)
        for side in ("server", "client"):
            for frame in range(1, 100):
                proxy.arm(Cut(side, frame))  # type: ignore[arg-type]
                run = await agent_run(url, resume=False, store=store, watch=False)
                if proxy.cut is not None:
                    break
                assert run.error is None, (side, frame, run.error)
                assert len(run.calls) == len(set(run.calls)) == 3, (side, frame)
                assert (run.text, run.is_resumable) == (whole.text, False)
    assert proxy.cuts > 20


async def _seen(run: Run, events: int) -> None:
    """Give the client some time to see so many events."""
    for _ in range(2000):
        if len(run.numbers) >= events:
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize("wire", WIRES)
async def test_without_resume_a_run_whose_output_was_seen_is_never_told_otherwise(
    wire: str,
) -> None:
    lost = 0
    async with cuttable(wire) as (_, proxy):
        url = url_of(proxy, wire)
        whole = await agent_run(url, resume=False)
        for frame in range(1, 100):
            run = Run()
            proxy.arm(Cut("server", frame))
            # A reset takes away what the client has not read yet.
            proxy.before_cut = partial(_seen, run, frame)
            await agent_run(url, resume=False, run=run)
            if proxy.cut is not None:
                break
            assert len(run.calls) == len(set(run.calls)) <= 3
            if run.error is None:
                assert (len(run.calls), run.text) == (3, whole.text), frame
            else:
                lost += 1
                assert isinstance(run.error, turnwire.OutputLost), (frame, run.error)
                # The events are those of the whole run, up to where it was cut.
                assert run.numbers == whole.numbers[: len(run.numbers)]
    assert 0 < lost < proxy.cuts


@pytest.mark.parametrize("kept", ["nothing", "store", "lost store"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_run_goes_on_at_another_server_wherever_the_first_one_vanishes(
    wire: str, kept: str
) -> None:
    store = kept != "nothing"
    memory = MemoryResponseStore(MemoryStoreSettings(), wall=SystemClock().wall)
    async with (
        asyncio.timeout(60),
        running_server(grpc=ONE_BY_ONE, store=memory) as first,
        running_server(grpc=ONE_BY_ONE, store=memory if kept == "store" else None) as second,
        cutting_proxy(port_of(first, wire), wire=wire) as proxy,
    ):
        url = url_of(proxy, wire)
        whole = await agent_run(url, resume=True, store=store, watch=False)

        def vanish() -> None:
            proxy.upstream_port = port_of(second, wire)

        proxy.on_cut = vanish
        for frame in range(1, 100):
            proxy.upstream_port = port_of(first, wire)
            proxy.arm(Cut("server", frame))
            run = await agent_run(url, resume=True, store=store, watch=False)
            if proxy.cut is not None:
                break
            assert run.error is None, (frame, run.error)
            assert len(run.calls) == len(set(run.calls)) == 3, frame
            assert run.text == whole.text, frame
    assert proxy.cuts > 20


# One at a time.


@pytest.mark.parametrize("wire", WIRES)
async def test_a_half_dead_connection_is_noticed_by_the_next_turn(wire: str) -> None:
    async with cuttable(wire) as (_, proxy):
        async with turnwire.connect(
            url_of(proxy, wire), model="sim", ping_after_idle_s=0, ping_timeout_s=0.2
        ) as session:
            parent = await session.create("Hi", store=False).response()
            proxy.stall()
            turn = session.create("And?", previous_response_id=parent.id, store=False)
            assert (await turn.response()).status == "completed"
            assert session.reconnects == 1
            # The session went on: it knew the parent, which nobody had stored.
            assert (await turn.response()).previous_response_id == parent.id
    assert proxy.connections == 2


@pytest.mark.parametrize("wire", WIRES)
async def test_the_answer_to_a_ping_is_heard(wire: str, server: RunningServer) -> None:
    async with asyncio.timeout(20), turnwire.connect(server.url(wire), model="sim") as session:
        await session._wire.ping()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("wire", WIRES)
async def test_the_age_limit_of_connections_is_invisible(wire: str, resume: bool) -> None:
    runtime = RuntimeSettings(connection_age_s=0.3, age_grace_s=5.0)
    async with (
        asyncio.timeout(30),
        running_server(runtime=runtime) as server,
        turnwire.connect(server.url(wire), model="sim", resume=resume) as session,
    ):
        parent = None
        while session.reconnects < 2:
            turn = session.create("And?", previous_response_id=parent, store=False)
            response = await turn.response()
            assert response.status == "completed"
            parent = response.id
        assert session.is_resumable is resume


@pytest.mark.parametrize("wire", WIRES)
async def test_turns_of_a_draining_server_end_there_and_the_next_goes_elsewhere(wire: str) -> None:
    slow = SimSettings(tokens_per_second=100)
    async with (
        asyncio.timeout(30),
        running_server(sim=slow) as first,
        running_server() as second,
        cutting_proxy(port_of(first, wire), wire=wire) as proxy,
        turnwire.connect(url_of(proxy, wire), model="sim") as session,
    ):
        parent = await session.create("Hi", store=False, max_output_tokens=1).response()
        turn = session.create("And?", previous_response_id=parent.id, store=False)
        while not (await anext(turn)).delta:
            pass
        proxy.upstream_port = port_of(second, wire)
        draining = asyncio.create_task(first.services.drain(20.0, asyncio.Event()))
        await until(lambda: session._connection.keeper.is_retiring)
        following = session.create("Beside", stream_id="b", store=False)
        response = await turn.response()
        assert response.status == "completed"
        assert (await following.response()).status == "completed"
        await draining
        child = session.create("More", previous_response_id=response.id, store=False)
        assert (await child.response()).status == "completed"
        assert session.reconnects == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_leaving_tells_the_server_and_nothing_is_kept_for_the_grace(wire: str) -> None:
    slow = SimSettings(tokens_per_second=20)
    async with asyncio.timeout(20), running_server(sim=slow) as server:
        async with turnwire.connect(server.url(wire), model="sim") as session:
            turn = session.create("Hi")
            while not (await anext(turn)).delta:
                pass
            queued = session.create("Ho")
            assert session.is_resumable
        for one in (turn, queued):
            with pytest.raises(turnwire.SessionClosed):
                await one.response()
        await until(lambda: not server.services.running)
        await until(lambda: not server.services.hosts)


async def test_a_grpc_call_that_is_cancelled_under_a_turn_is_a_loss_like_any_other() -> None:
    async with (
        asyncio.timeout(20),
        running_server(sim=SimSettings(tokens_per_second=200)) as server,
        turnwire.connect(server.grpc_url, model="sim", resume=False) as session,
    ):
        turn = session.create("Hi", store=False, max_output_tokens=20)
        await turn.started()
        session._wire._call.cancel()  # type: ignore[attr-defined]
        assert (await turn.response()).output_text
        assert session.reconnects == 1
    async with (
        asyncio.timeout(20),
        running_server(sim=SimSettings(tokens_per_second=20)) as server,
        turnwire.connect(server.grpc_url, model="sim", reconnect_s=0) as session,
    ):
        turn = session.create("Hi", store=False)
        await turn.started()
        await session._wire._channel.close()  # type: ignore[attr-defined]
        with pytest.raises(turnwire.ConnectionLost):
            await turn.response()
        with pytest.raises(turnwire.ConnectionLost):
            await session.models()
