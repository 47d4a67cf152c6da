"""Long connections: silence, age, and readers that are slow."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from harness.clock import ManualClock
from harness.peers import ClosedError, GrpcPeer, MemoryWirePeer, Peer
from harness.reading import arm_of, arms, code_of, response_of, status_of, text_of
from harness.waiting import until
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import said, script
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.runtime.settings import OutboxSettings


def _set(connect: Connect, **settings: object) -> None:
    connect.parts.settings = replace(connect.parts.settings, **settings)  # type: ignore[arg-type]


@requirement("silence.keepalive")
async def test_a_silent_turn_gives_signs_of_life_within_its_sequence(connect: Connect) -> None:
    _set(connect, keepalive_s=0.02)
    peer = await connect(keepalive="event")
    stack = await connect.start()
    hold = stack.engine.hold("think")
    await peer.create(input="think", metadata=said("At last."))
    for _ in range(3):
        await peer.until("keepalive")  # the checker counts its number
    stack.engine.release(hold)
    assert text_of(response_of(await peer.finish())) == "At last."


@requirement("silence.in_progress")
async def test_a_sign_of_life_may_be_in_progress_once_more(connect: Connect) -> None:
    _set(connect, keepalive_s=0.02)
    peer = await connect(keepalive="in_progress")
    stack = await connect.start()
    hold = stack.engine.hold("think", after_steps=1)
    await peer.create(input="think", metadata=script(tokens=50))
    for _ in range(3):
        await peer.until("response_in_progress")
    stack.engine.release(hold)
    assert status_of(response_of(await peer.finish())) == "completed"


@requirement("silence.off")
async def test_strict_clients_get_no_sign_of_life_that_they_did_not_ask_for(
    connect: Connect,
) -> None:
    _set(connect, keepalive_s=0.01)
    peer = await connect(keepalive="off")
    stack = await connect.start()
    hold = stack.engine.hold("think")
    witness = await connect("memory", keepalive="event")
    await peer.create(input="think")
    await witness.create(input="think")
    for _ in range(5):
        await witness.until("keepalive")  # five silences have passed for the other, too
    stack.engine.release(hold)
    assert "keepalive" not in arms(await peer.finish())


@requirement("silence.heartbeat")
async def test_a_silent_stream_gets_empty_frames_that_are_no_events(connect: Connect) -> None:
    _set(connect, heartbeat_s=0.02)
    peer = await connect()
    assert isinstance(peer, GrpcPeer)
    stack = await connect.start()
    hold = stack.engine.hold("think")
    await peer.create(input="think")
    await stack.engine.held(hold)
    await peer.until("response_in_progress")
    reading = asyncio.create_task(peer.finish())
    await until(lambda: peer.frames.count(0) >= 3)
    stack.engine.release(hold)
    assert status_of(response_of(await reading)) == "completed"


_AGE_ENDING = {"memory": "age", "grpc": "UNAVAILABLE", "websocket": "1001"}
_CUT_ENDING = {"memory": "age cut", "grpc": "UNAVAILABLE", "websocket": "1012"}


@requirement("age.idle")
async def test_an_old_idle_connection_gets_one_error_and_is_closed(connect: Connect) -> None:
    _set(connect, connection_age_s=0.05)
    peer = await connect()
    assert await peer.ended() == _AGE_ENDING[peer.wire]
    events = [event for event in peer.rest() if arm_of(event) != "turnwire_go_away"]
    assert [code_of(event) for event in events] == ["websocket_connection_limit_reached"]
    assert not events[0].HasField("stream_id")


@requirement("age.running")
async def test_a_running_turn_may_finish_within_the_grace(connect: Connect) -> None:
    _set(connect, connection_age_s=0.05, age_grace_s=5.0)
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk", stream_id="a", metadata=script(tokens=60))
    await stack.engine.held(hold)
    refused = await _wait_until_old(peer)
    stack.engine.release(hold)
    events = await peer.finish("a")
    assert status_of(response_of(events)) == "completed"
    assert await peer.ended() == _AGE_ENDING[peer.wire]
    assert refused > 0
    last = peer.rest()[-1]
    assert code_of(last) == "websocket_connection_limit_reached"
    assert not last.HasField("stream_id")


async def _wait_until_old(peer: Peer) -> int:
    """Send creates on another lane until one is refused for the connection's age."""
    sent = 0
    while True:
        sent += 1
        await peer.create(input="Hi", stream_id="b")
        events = await peer.finish("b")
        if arm_of(events[-1]) == "error":
            assert code_of(events[-1]) == "websocket_connection_limit_reached"
            assert events[-1].stream_id == "b"
            return sent


@requirement("age.cut")
async def test_a_turn_that_outlives_the_grace_is_cut_with_its_terminal_event(
    connect: Connect,
) -> None:
    _set(connect, connection_age_s=0.05, age_grace_s=0.05)
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk", metadata=script(tokens=60))
    await stack.engine.held(hold)
    assert await peer.ended() == _CUT_ENDING[peer.wire]
    rest = [event for event in peer.rest() if arm_of(event) != "turnwire_go_away"]
    assert status_of(response_of(rest[:-1])) == "cancelled"
    assert code_of(rest[-1]) == "websocket_connection_limit_reached"


@requirement("age.go_away")
@pytest.mark.parametrize("starts", [True, False], ids=["with a session", "without"])
async def test_clients_that_know_it_are_told_to_go_away_first(
    connect: Connect, starts: bool
) -> None:
    _set(connect, connection_age_s=0.2)
    peer = await connect()
    if starts:
        await peer.send({"type": "turnwire.session.start"})
    await peer.ended()
    told = [event for event in peer.rest() if arm_of(event) == "turnwire_go_away"]
    assert len(told) == (1 if starts or peer.wire == "grpc" else 0)
    if told:
        assert told[0].turnwire_go_away.reason == "age"


@requirement("slow.nothing_lost")
async def test_a_slow_reader_loses_nothing(connect: Connect) -> None:
    _set(connect, outbox=OutboxSettings(outbox_bytes=4_096))
    connect.parts.sim = SimSettings(step_tokens=1)
    peer = await connect()
    await peer.create(input="talk", metadata=script(tokens=3_000))
    await peer.until("response_in_progress")
    events: list[ServerEvent] = []
    while not events or not arm_of(events[-1]).startswith("response_completed"):
        events.append(await peer.receive())
        if len(events) % 50 == 0:
            for _ in range(100):  # reads in gulps: the engine fills the outbox in between
                await asyncio.sleep(0)
    response = response_of(events)
    assert response.usage.output_tokens == 3_001
    assert sum(arm_of(event).endswith("_delta") for event in events) > 100


@requirement("slow.bounded")
async def test_a_reader_that_stops_holds_back_the_engine_and_keeps_every_lane_in_order(
    connect: Connect,
) -> None:
    bound = 8_192
    _set(connect, outbox=OutboxSettings(outbox_bytes=bound))
    connect.parts.sim = SimSettings(step_tokens=1)
    peer = await connect()
    assert isinstance(peer, MemoryWirePeer)
    outbox = peer.inner.connection._outbox
    peer.inner.sink.readable.clear()
    lanes = [f"lane{number}" for number in range(4)]
    for lane in lanes:
        await peer.create(input="talk", stream_id=lane, metadata=script(tokens=400))
    engine = connect.stack.engine
    before = -1
    while before != len(engine.log):  # until nobody makes steps any more
        before = len(engine.log)
        for _ in range(50):
            await asyncio.sleep(0)
    waiting = outbox._bytes
    # Each lane may put the events of one step beyond the bound, and no more.
    assert bound <= waiting < bound + len(lanes) * 2_048
    assert len(engine.running) == len(lanes)
    peer.inner.sink.readable.set()
    for lane in lanes:
        response = response_of(await peer.finish(lane))
        assert response.usage.output_tokens == 401


@requirement("slow.overrun")
async def test_a_reader_that_falls_too_far_behind_gets_a_failure_and_never_a_gap(
    connect: Connect,
) -> None:
    _set(connect, outbox=OutboxSettings(outbox_bytes=2_048), max_pending_tokens=200)
    connect.parts.clock = clock = ManualClock()
    connect.parts.sim = SimSettings(tokens_per_second=100)
    peer = await connect()
    assert isinstance(peer, MemoryWirePeer)
    outbox = peer.inner.connection._outbox
    peer.inner.sink.readable.clear()
    await peer.create(input="talk", stream_id="a", metadata=script(tokens=5_000))
    while outbox._room.is_set():
        await clock.run_for(0.1)
    await clock.run_for(10)  # the engine goes on at its own pace
    peer.inner.sink.readable.set()
    events = await peer.finish("a")
    response = response_of(events)
    assert response.error.code == "slow_consumer"
    await peer.create(input="Hi", stream_id="a", metadata=said("x"))
    await clock.run_for(1)
    assert arms(await peer.finish("a"))[-1] == "response_completed"


@requirement("slow.gone")
async def test_a_reader_that_goes_away_while_the_outbox_is_full_ends_its_turns(
    connect: Connect,
) -> None:
    _set(connect, outbox=OutboxSettings(outbox_bytes=1_024))
    peer = await connect()
    await peer.create(input="talk", metadata=script(tokens=20_000))
    await peer.until("response_output_text_delta")
    await peer.disconnect()
    await until(lambda: not connect.stack.services.connection_count)
    assert not connect.stack.engine.running
    with pytest.raises(ClosedError):
        while True:
            await peer.receive()
