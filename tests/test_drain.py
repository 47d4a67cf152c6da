"""SIGTERM: nothing that runs is lost, nothing new begins, and the process ends with 0."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness.peers import ClosedError, Peer, WebSocketPeer
from harness.reading import arm_of, code_of, failure_of, response_of, status_of
from harness.resuming import start_session
from harness.served_process import ServedProcess, served
from interaction.pauses import append, round_of
from interaction.scripts import SHELL, script
from turnwire.v1.server_event_pb2 import ServerEvent

PATIENT = '[runtime]\ndrain_grace_s = 600\n[[models]]\nengine = "sim"\ntokens_per_second = 20\n'
FAST = '[runtime]\ndrain_grace_s = 600\n[[models]]\nengine = "sim"\ntokens_per_second = 2000\n'
"""For turns that wait for their client, which no speed ends."""
SHORT = '[runtime]\ndrain_grace_s = 0.3\n[[models]]\nengine = "sim"\ntokens_per_second = 20\n'
ENDLESS = script(tokens=100_000)
IDLE_ENDING = {"grpc": "UNAVAILABLE", "websocket": "1001"}
CUT_ENDING = {"grpc": "UNAVAILABLE", "websocket": "1012"}
PERSISTENT = pytest.mark.parametrize("wire", ["grpc", "websocket"])


async def paused(peer: Peer, **more: Any) -> ServerEvent:
    """Start a turn that waits for its client, and return what it waits with."""
    await peer.create(
        {"tools": [SHELL], "rollout": True, "metadata": script(tool_rounds=1)}, input="Hi", **more
    )
    done = (await round_of(peer, more.get("stream_id")))[-1]
    assert arm_of(done) == "response_done"
    return done


async def begun(peer: Peer, **more: Any) -> str:
    """Start a turn that talks; return its response's id."""
    await peer.create(input="talk", **more)
    created = await peer.until("response_created")
    return created.response_created.response.id


async def draining(server: ServedProcess) -> None:
    """Wait until the server says that it takes no new work."""
    async with asyncio.timeout(20):
        while (await server.get("/readyz"))[0] != 503:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.02)


@PERSISTENT
async def test_running_turns_finish_and_idle_connections_are_sent_away(
    tmp_path: Path, wire: Any
) -> None:
    async with served(tmp_path, FAST) as server:
        idle, busy = await server.connect(wire), await server.connect(wire)
        told = await server.connect(wire)
        await told.send({"type": "turnwire.session.start"})
        await told.until("turnwire_session_started")
        await start_session(busy)
        done = await paused(busy)
        also = await paused(busy, stream_id="b")
        server.signal(signal.SIGTERM)
        await draining(server)
        assert await idle.ended() == IDLE_ENDING[wire]
        assert await told.ended() == IDLE_ENDING[wire]
        (away,) = told.rest()
        assert away.turnwire_go_away.reason == "drain"
        assert 0 < away.turnwire_go_away.time_left_s <= 600
        # Others see the close codes; over gRPC everybody is told.
        assert [arm_of(one) for one in idle.rest()] == ["turnwire_go_away"] * (wire == "grpc")

        # What runs goes on, and nothing new begins.
        await busy.until("turnwire_go_away")
        await busy.create(input="more", stream_id="c", event_id="e1")
        (refused,) = await busy.finish("c")
        assert failure_of(refused) == ("server_is_overloaded", 503, None)
        assert refused.error.error.headers["retry-after"]
        for event, lane in ((done, None), (also, "b")):
            await append(busy, event)
            assert status_of(response_of(await busy.finish(lane))) == "completed"
        assert await busy.ended() == IDLE_ENDING[wire]
        with pytest.raises((ClosedError, OSError, aiohttp.ClientError)):
            late = await server.connect(wire)
            await late.receive()
        assert await server.exit_code() == 0
    response_id = done.response_done.response_id
    async with served(tmp_path, FAST) as again:  # what was finished is kept
        status, body = await again.get(f"/v1/responses/{response_id}")
        assert (status, body["status"]) == (200, "completed")


async def test_a_request_over_http_finishes(tmp_path: Path) -> None:
    async with served(tmp_path, PATIENT) as server:
        peer = await server.connect("http")
        await begun(peer, metadata=script(tokens=60))
        server.signal(signal.SIGTERM)
        await draining(server)
        other = await server.connect("http")
        await other.create(input="new")
        refused = await other.receive()
        assert failure_of(refused) == ("server_is_overloaded", 503, None)
        assert status_of(response_of(await peer.finish())) == "completed"
        assert await server.exit_code() == 0


@pytest.mark.parametrize("wire", ["grpc", "websocket", "http"])
async def test_what_has_not_finished_in_time_ends_with_its_terminal_event(
    tmp_path: Path, wire: Any
) -> None:
    async with served(tmp_path, SHORT) as server:
        peer = await server.connect(wire)
        response_id = await begun(peer, metadata=ENDLESS)
        await peer.until("response_output_text_delta")
        server.signal(signal.SIGTERM)
        response = response_of([one for one in await peer.finish() if arm_of(one) != "keepalive"])
        assert (response.id, status_of(response)) == (response_id, "cancelled")
        assert response.usage.output_tokens > 0
        if wire != "http":
            assert await peer.ended() == CUT_ENDING[wire]
        assert await server.exit_code() == 0
    async with served(tmp_path, SHORT) as again:
        _, body = await again.get(f"/v1/responses/{response_id}")
        assert body["status"] == "cancelled"
        assert body["usage"]["output_tokens"] == response.usage.output_tokens


@PERSISTENT
async def test_creates_that_wait_when_the_grace_is_over_are_refused(
    tmp_path: Path, wire: Any
) -> None:
    async with served(tmp_path, SHORT) as server:
        peer = await server.connect(wire)
        await begun(peer, metadata=ENDLESS)
        await peer.create(input="waits", event_id="e2")
        # Sent is not received: a create that comes after the signal has another answer.
        await peer.send({"type": "response.steer", "previous_response_id": "none", "input": "x"})
        await peer.until("response_steer_failed")
        server.signal(signal.SIGTERM)
        how = await peer.ended()
        ends = [one for one in peer.rest() if arm_of(one) in ("error", "response_incomplete")]
        assert {arm_of(one) for one in ends} == {"error", "response_incomplete"}
        (error,) = (one for one in ends if arm_of(one) == "error")
        assert (code_of(error), error.event_id) == ("server_error", "e2")
        assert how == CUT_ENDING[wire]
        assert await server.exit_code() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_a_second_signal_ends_the_grace_at_once(
    tmp_path: Path, second: signal.Signals
) -> None:
    async with served(tmp_path, PATIENT) as server:
        peer = await server.connect("grpc")
        await begun(peer, metadata=ENDLESS)
        server.signal(signal.SIGTERM)
        await peer.until("turnwire_go_away")
        assert not server.is_over
        server.signal(second)
        assert status_of(response_of(await peer.finish())) == "cancelled"
        assert await server.exit_code() == 0


async def test_an_interrupt_gives_no_grace(tmp_path: Path) -> None:
    async with served(tmp_path, PATIENT) as server:
        peer = await server.connect("websocket")
        await begun(peer, metadata=ENDLESS)
        server.signal(signal.SIGINT)
        assert status_of(response_of(await peer.finish())) == "cancelled"
        assert await peer.ended() == "1012"
        assert await server.exit_code() == 0


@pytest.mark.parametrize("is_drained_first", [False, True], ids=["before", "while it drains"])
async def test_a_turn_whose_client_is_lost_finishes_too_and_is_kept(
    tmp_path: Path, is_drained_first: bool
) -> None:
    async with served(tmp_path, PATIENT) as server:
        peer = await server.connect("websocket")
        assert isinstance(peer, WebSocketPeer)
        await start_session(peer)
        response_id = await begun(peer, metadata=script(tokens=60))
        if is_drained_first:
            server.signal(signal.SIGTERM)
            await draining(server)
            await peer.lose()
        else:
            await peer.lose()
            server.signal(signal.SIGTERM)
        assert await server.exit_code() == 0
    async with served(tmp_path, PATIENT) as again:
        _, body = await again.get(f"/v1/responses/{response_id}")
        assert body["status"] == "completed"


async def test_ten_that_talk_and_ten_that_wait_all_end_well(tmp_path: Path) -> None:
    async with served(tmp_path, PATIENT) as server:
        wires: list[Any] = ["grpc", "websocket"] * 5
        talking = [await server.connect(wire) for wire in wires]
        waiting = [await server.connect(wire) for wire in wires]
        for peer in talking:
            await begun(peer, metadata=script(tokens=40))
        server.signal(signal.SIGTERM)
        assert [await peer.ended() for peer in waiting] == [IDLE_ENDING[wire] for wire in wires]
        for peer in talking:
            assert status_of(response_of(await peer.finish())) == "completed"
            assert await peer.ended() == IDLE_ENDING[peer.wire]
        assert await server.exit_code() == 0
