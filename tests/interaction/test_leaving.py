"""Going away: disconnects cancel at once, a half-close finishes what is queued."""

from __future__ import annotations

import pytest

from harness.peers import Peer, WebSocketPeer
from harness.reading import arm_of, response_of, status_of, text_of
from harness.waiting import until
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import said, script
from turnwire_server.adapters.engines.sim import SimSettings


async def _until_idle(connect: Connect) -> None:
    """Wait until no generation runs any more; each end is an entry of the log."""
    await until(lambda: not connect.stack.engine.running)


async def _settle(connect: Connect, peer: Peer) -> None:
    """Wait until the connection's own records are gone too."""
    services = connect.stack.services
    await until(lambda: not services.running and not services.connection_count)
    await services.afterwork.finish(5)


@requirement("leave.disconnect")
@pytest.mark.parametrize("after_steps", [0, 1, 4], ids=["in prefill", "at first", "mid-stream"])
async def test_a_disconnect_cancels_the_generation_wherever_it_is(
    connect: Connect, after_steps: int
) -> None:
    connect.parts.sim = SimSettings(step_tokens=2)
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=after_steps)
    await peer.create(input="talk", metadata=script(tokens=100))
    response_id = await stack.engine.held(hold)
    await peer.disconnect()
    await _until_idle(connect)
    log = [what for what, one in stack.engine.log if one == response_id]
    # Nothing was generated after the cancel but the step that says that it is over.
    assert log == ["generate", *["step"] * after_steps, "cancel", "step", "end"]
    await _settle(connect, peer)
    (record,) = stack.ledger.closed.values()
    assert (record.status, record.output_tokens) == ("cancelled", 2 * after_steps)


@requirement("leave.disconnect_many")
async def test_a_disconnect_cancels_every_lane_and_drops_what_waits(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    lanes = [f"lane{number}" for number in range(5)]
    for lane in lanes:
        await peer.create(input="talk", stream_id=lane, metadata=script(tokens=100))
        await peer.create(input="waits", stream_id=lane)
    ids = {await stack.engine.held(hold) for _ in lanes}
    await peer.disconnect()
    await _until_idle(connect)
    await _settle(connect, peer)
    assert {one for what, one in stack.engine.log if what == "cancel"} == ids
    assert len(stack.engine.requests) == len(lanes)


@requirement("leave.disconnect_others")
async def test_a_disconnect_leaves_other_connections_alone(connect: Connect) -> None:
    peer, other = await connect(), await connect()
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk")
    gone = await stack.engine.held(hold)
    await other.create(input="talk")
    await stack.engine.held(hold)
    await peer.disconnect()
    await until(lambda: gone not in stack.engine.running)
    stack.engine.release(hold)
    assert status_of(response_of(await other.finish())) == "completed"


@requirement("leave.deadline")
async def test_an_expired_deadline_cancels_the_generation(connect: Connect) -> None:
    stack = await connect.start()
    peer = await stack.with_deadline(1.0)
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk", metadata=script(tokens=100))
    response_id = await stack.engine.held(hold)
    await _until_idle(connect)
    log = [what for what, one in stack.engine.log if one == response_id]
    assert log == ["generate", "step", "cancel", "step", "end"]
    assert await peer.ended() == "DEADLINE_EXCEEDED"
    await _settle(connect, peer)
    (record,) = stack.ledger.closed.values()
    assert record.status == "cancelled"


@requirement("leave.close")
@pytest.mark.parametrize("code", [1000, 1001, 1011, 1012, 4000])
async def test_a_close_cancels_the_generation(connect: Connect, code: int) -> None:
    peer = await connect()
    assert isinstance(peer, WebSocketPeer)
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk", metadata=script(tokens=100))
    response_id = await stack.engine.held(hold)
    await peer.socket.close(code=code)
    await _until_idle(connect)
    log = [what for what, one in stack.engine.log if one == response_id]
    assert log == ["generate", "step", "cancel", "step", "end"]
    await _settle(connect, peer)
    assert not stack.services.hosts


@requirement("leave.same_call")
async def test_every_engine_is_told_before_the_disconnect_returns(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    holds = [stack.engine.hold("early"), stack.engine.hold("late", after_steps=1)]
    await peer.create(input="early", stream_id="a")
    await peer.create(input="late", stream_id="b")
    ids = [await stack.engine.held(hold) for hold in holds]
    stack.engine.log.clear()
    await peer.disconnect()  # in memory: the call itself, without a turn of the loop
    assert sorted(stack.engine.log) == sorted([("cancel", one) for one in ids])


@requirement("leave.half_close")
async def test_a_half_close_finishes_what_is_queued(connect: Connect) -> None:
    peer = await connect()
    for number in range(3):
        await peer.create(input=f"turn {number}", metadata=said(f"answer {number}"))
    await peer.create(input="side", stream_id="a", metadata=said("side answer"))
    await peer.half_close()
    texts = [text_of(response_of(await peer.finish())) for _ in range(3)]
    assert texts == ["answer 0", "answer 1", "answer 2"]
    assert text_of(response_of(await peer.finish("a"))) == "side answer"
    assert await peer.ended() == {"memory": "finished", "grpc": "OK"}[peer.wire]
    assert peer.rest() == []


@requirement("leave.half_close")
async def test_a_half_close_of_an_idle_connection_ends_it(connect: Connect) -> None:
    peer = await connect()
    await peer.turn(input="Hi")
    await peer.half_close()
    assert await peer.ended() == {"memory": "finished", "grpc": "OK"}[peer.wire]


@requirement("leave.half_close_error")
async def test_a_half_close_waits_for_errors_too(connect: Connect) -> None:
    peer = await connect()
    await peer.create(input="x", previous_response_id="resp_missing")
    await peer.half_close()
    await peer.ended()
    (error,) = peer.rest()
    assert arm_of(error) == "error"
