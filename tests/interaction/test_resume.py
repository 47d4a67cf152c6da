"""Sessions that outlive their connection: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace

import pytest
from aiohttp import WSMsgType

from harness.clock import ManualClock
from harness.peers import GrpcPeer, MemoryWirePeer, Peer, WebSocketPeer, Wire, lane_of
from harness.reading import arm_of, arms, code_of, failure_of, response_of, status_of, text_of
from harness.resuming import Ticket, anonymous, resume_event, start_session
from harness.waiting import until
from interaction.conftest import Connect
from interaction.pauses import append, outputs_for, round_of, steer
from interaction.requirements import requirement
from interaction.scripts import SHELL, said, script
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.runtime.settings import RuntimeSettings

_LONG_S = 3600.0
_TEXT = "Nothing is lost on the way."


def _set(connect: Connect, **settings: object) -> None:
    connect.parts.settings = replace(connect.parts.settings, **settings)  # type: ignore[arg-type]


async def _losable(connect: Connect, wire: Wire | None = None) -> tuple[Peer, Ticket]:
    """Open a peer with a session that may be resumed."""
    stack = await connect.start()
    peer = await stack.losable(wire or connect.wire)
    return peer, await start_session(peer)


async def _lose(connect: Connect, peer: Peer) -> None:
    """Lose the connection and wait until the server knows."""
    services = connect.stack.services
    before = services.sessions.waiting
    await peer.lose()
    await until(lambda: services.sessions.waiting > before)


async def _leave(peer: Peer) -> None:
    """Say that the client goes."""
    if isinstance(peer, WebSocketPeer):
        await peer.socket.close(code=1000)
    else:
        await peer.disconnect()


async def _resume(
    connect: Connect, ticket: Ticket, old: Peer | None = None, wire: Wire | None = None
) -> Peer:
    """Take the session up on a new connection, whose events go on where the old one's ended."""
    stack = await connect.start()
    peer = await stack.losable(wire or connect.wire)
    if old is not None:
        peer.checker = old.checker  # what is missing, or comes twice, breaks its rules
    await peer.send(resume_event(ticket))
    resumed = await peer.until("turnwire_session_resumed")
    body = resumed.turnwire_session_resumed
    assert (body.session_id, body.resume_token) == (ticket.session_id, ticket.token)
    return peer


async def _some(peer: Peer, count: int) -> list[ServerEvent]:
    return [await peer.receive() for _ in range(count)]


async def _finish(peer: Peer, events: list[ServerEvent], lane: str | None = None) -> None:
    """Add the rest of a turn to its events, if any is missing."""
    ends = {"response_completed", "response_incomplete", "response_failed", "error"}
    if not events or arm_of(events[-1]) not in ends:
        events += await peer.finish(lane)


@requirement("resume.start")
async def test_who_asks_for_resume_gets_a_token_and_a_grace(connect: Connect) -> None:
    _set(connect, resume_grace_s=45.0)
    peer = await connect()
    await peer.send({"type": "turnwire.session.start", "resume": True})
    started = (await peer.until("turnwire_session_started")).turnwire_session_started
    assert started.resume_grace_s == 45.0 and len(started.resume_token) > 40
    other = await connect()
    await other.send({"type": "turnwire.session.start"})
    plain = (await other.until("turnwire_session_started")).turnwire_session_started
    assert not plain.HasField("resume_token") and plain.resume_grace_s == 0


@requirement("resume.start")
async def test_a_server_without_a_grace_says_that_it_does_not_resume(connect: Connect) -> None:
    _set(connect, resume_grace_s=0.0)
    peer = await connect()
    await peer.send({"type": "turnwire.session.start", "resume": True})
    assert failure_of(await peer.receive()) == ("unsupported_value", 400, "resume")
    assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"


@requirement("resume.start")
async def test_metadata_and_header_are_equal_to_a_start(connect: Connect) -> None:
    stack = await connect.start()
    if connect.wire == "memory":
        return  # it has neither
    server = await stack._serving()
    peer: Peer
    if connect.wire == "grpc":
        peer = GrpcPeer(server.grpc_target, metadata=(("turnwire-resume", "1"),))
    else:
        peer = WebSocketPeer(server.websocket_url, headers={"Turnwire-Resume": "1"})
    await peer.open()
    try:
        started = (await peer.until("turnwire_session_started")).turnwire_session_started
        assert started.resume_token
    finally:
        await peer.close()


async def _uncut(connect: Connect) -> list[ServerEvent]:
    peer = await connect()
    events = await peer.turn(input="talk", event_id="e1", metadata=said(_TEXT))
    assert text_of(response_of(events)) == _TEXT
    return events


@requirement("resume.exactly")
@pytest.mark.parametrize("where", ["over there", "on the same wire"])
async def test_wherever_the_connection_is_lost_the_events_are_those_of_an_uncut_turn(
    connect: Connect, where: str
) -> None:
    connect.parts.sim = SimSettings(step_tokens=3)
    crossed: dict[Wire, Wire] = {"memory": "grpc", "grpc": "websocket", "websocket": "grpc"}
    other = crossed[connect.wire] if where == "over there" else connect.wire
    uncut = await _uncut(connect)
    for boundary in range(len(uncut) + 1):
        peer, ticket = await _losable(connect)
        await peer.create(input="talk", event_id="e1", metadata=said(_TEXT))
        events = await _some(peer, boundary)
        ticket.see(events)
        await _lose(connect, peer)
        resumed = await _resume(connect, ticket, peer, other)
        await _finish(resumed, events)
        assert anonymous(events) == anonymous(uncut)
        # Nothing of the old turn comes any more, and the lane goes on.
        following = await resumed.turn(
            input="and?", previous_response_id=response_of(events).id, metadata=said("Fine.")
        )
        assert text_of(response_of(following)) == "Fine."
        assert resumed.rest() == []
        await resumed.close()


@requirement("resume.live")
@pytest.mark.parametrize("times", [1, 3])
async def test_behind_what_was_missed_the_turn_goes_on(connect: Connect, times: int) -> None:
    connect.parts.sim = SimSettings(step_tokens=3)
    uncut = await _uncut(connect)
    stack = await connect.start()
    holds = [stack.engine.hold("talk", after_steps=step + 1) for step in range(times)]
    peer, ticket = await _losable(connect)
    await peer.create(input="talk", event_id="e1", metadata=said(_TEXT))
    events = await _some(peer, 2)
    for hold in holds:
        await stack.engine.held(hold)
        ticket.see(events)
        await _lose(connect, peer)
        peer = await _resume(connect, ticket, peer)
        stack.engine.release(hold)
        events.append(await peer.receive())
    await _finish(peer, events)
    assert anonymous(events) == anonymous(uncut)
    assert stack.engine.log.count(("cancel", response_of(events).id)) == 0


@requirement("resume.live")
async def test_a_turn_goes_on_and_ends_while_nobody_is_there(connect: Connect) -> None:
    stack = await connect.start()
    hold = stack.engine.hold("talk")
    peer, ticket = await _losable(connect)
    await peer.create(input="talk", metadata=said(_TEXT))
    response_id = await stack.engine.held(hold)
    await _lose(connect, peer)
    stack.engine.release(hold)
    await until(lambda: not stack.services.running)
    assert ("cancel", response_id) not in stack.engine.log
    await stack.services.afterwork.finish(5)
    assert stack.ledger.closed[response_id].status == "completed"
    peer = await _resume(connect, ticket, peer)
    assert text_of(response_of(await peer.finish())) == _TEXT


@requirement("resume.lanes")
async def test_each_lane_goes_on_where_its_client_stopped(connect: Connect) -> None:
    peer, ticket = await _losable(connect)
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    seen = {lane: 2 + number for number, lane in enumerate(("a", "b", None))}
    for lane in seen:
        place = {} if lane is None else {"stream_id": lane}
        await peer.create(input="talk", metadata=said(_TEXT), **place)
        await peer.create(input="more", metadata=said("More."), **place)
    for _ in seen:
        await stack.engine.held(hold)
    got: dict[str | None, list[ServerEvent]] = {lane: [] for lane in seen}
    for lane, count in seen.items():
        got[lane] = [await peer._next_on(lane) for _ in range(count)]
    for event in peer.rest():  # they came while another lane's were wanted
        got[lane_of(event)].append(event)
    for events in got.values():
        ticket.see(events)
    await _lose(connect, peer)
    stack.engine.release(hold)
    peer = await _resume(connect, ticket, peer)
    for lane, events in got.items():
        assert text_of(response_of([*events, *await peer.finish(lane)])) == _TEXT
        assert text_of(response_of(await peer.finish(lane))) == "More."
    assert peer.rest() == []


@requirement("resume.errors")
async def test_an_error_that_nobody_saw_is_sent_again_in_order(connect: Connect) -> None:
    peer, ticket = await _losable(connect)
    stack = await connect.start()
    hold = stack.engine.hold("talk")
    await peer.create(input="talk", metadata=said(_TEXT))
    await peer.create(input="x", previous_response_id="resp_missing", event_id="e2")
    await peer.create(input="after", metadata=said("After."))
    await stack.engine.held(hold)
    ticket.see(await _some(peer, 2))
    await _lose(connect, peer)
    stack.engine.release(hold)
    peer = await _resume(connect, ticket, peer)
    assert text_of(response_of(await peer.finish())) == _TEXT
    (error,) = await peer.finish()
    assert (code_of(error), error.event_id) == ("previous_response_not_found", "e2")
    assert text_of(response_of(await peer.finish())) == "After."


@requirement("resume.errors")
async def test_an_error_of_the_session_itself_is_sent_again_too(connect: Connect) -> None:
    peer, ticket = await _losable(connect)
    stack = await connect.start()
    hold = stack.engine.hold("talk")
    await peer.create(input="talk", metadata=said(_TEXT))
    await stack.engine.held(hold)
    ticket.see(await _some(peer, 2))
    await peer.create(input="waits", event_id="e2")
    await peer.send({"type": "response.cancel", "event_id": "e2"})
    (error,) = await peer.finish()  # it came, but say the client did not read it
    await _lose(connect, peer)
    peer = await _resume(connect, ticket, peer)
    assert await peer.receive() == error
    stack.engine.release(hold)
    assert text_of(response_of(await peer.finish())) == _TEXT


@requirement("resume.errors")
async def test_an_error_within_a_rollout_hides_nothing_that_follows_it(connect: Connect) -> None:
    connect.parts.sim = SimSettings(context_length=600)
    peer, ticket = await _losable(connect)
    create = {"tools": [SHELL], "rollout": True, "metadata": script(tool_rounds=1)}
    await peer.create(create, input="Hi")
    events = await round_of(peer)
    ticket.see(events)
    await append(peer, events[-1], outputs_for(events[-1], "long " * 1000), event_id="a1")
    (error,) = await peer.finish()
    assert code_of(error) == "context_length_exceeded"
    await _lose(connect, peer)
    peer = await _resume(connect, ticket, peer)
    assert await peer.receive() == error
    await append(peer, events[-1], outputs_for(events[-1], "short"), event_id="a1")
    events = [await peer.receive() for _ in range(3)]
    ticket.see(events)
    await _lose(connect, peer)
    peer = await _resume(connect, ticket, peer)
    assert status_of(response_of(await peer.finish())) == "completed"


@requirement("repeat.over")
async def test_an_answer_to_a_repeated_create_is_no_event_that_can_be_missed(
    connect: Connect,
) -> None:
    peer, ticket = await _losable(connect)
    first = await peer.turn(input="talk", event_id="e1", metadata=said(_TEXT))
    second = await peer.turn(input="more", metadata=said("More."))
    ticket.see([*first, *second])
    peer.is_checked = False
    await peer.create(input="talk", event_id="e1")
    assert await peer.receive() == first[-1]
    await _lose(connect, peer)
    peer = await _resume(connect, ticket)
    third = await peer.turn(input="on", metadata=said("On."))
    assert text_of(response_of(third)) == "On."
    assert peer.rest() == []


@requirement("resume.rollout")
@pytest.mark.parametrize("when", ["before the pause was seen", "after it", "after the append"])
async def test_a_paused_rollout_survives_a_lost_connection(connect: Connect, when: str) -> None:
    peer, ticket = await _losable(connect)
    stack = await connect.start()
    hold = stack.engine.hold("Hi", after_steps=1)
    create = {"tools": [SHELL], "rollout": True, "metadata": script(tool_rounds=1)}
    await peer.create(create, input="Hi")
    await stack.engine.held(hold)
    events = await _some(peer, 2)
    if when == "before the pause was seen":
        ticket.see(events)
        await _lose(connect, peer)
        stack.engine.release(hold)
        await until(lambda: any(turn.is_paused for turn in _turns(connect)))
        peer = await _resume(connect, ticket, peer)
        events += await round_of(peer)
    else:
        stack.engine.release(hold)
        events += await round_of(peer)
    ticket.see(events)
    done = events[-1]
    assert arm_of(done) == "response_done"
    if when == "after it":
        await _lose(connect, peer)
        peer = await _resume(connect, ticket, peer)
    await append(peer, done, event_id="a1")
    if when == "after the append":
        await until(lambda: not any(turn.is_paused for turn in _turns(connect)))
        await _lose(connect, peer)
        peer = await _resume(connect, ticket, peer)
        await append(peer, done, event_id="a1")  # the client cannot know that it arrived
    assert status_of(response_of(await peer.finish())) == "completed"
    assert peer.rest() == []


def _turns(connect: Connect) -> list[object]:
    return [turn for host in connect.stack.services.hosts for turn in host.session.running]


@requirement("resume.rollout")
async def test_steers_survive_a_lost_connection(connect: Connect) -> None:
    connect.parts.sim = SimSettings(step_tokens=2)
    peer, ticket = await _losable(connect)
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk", metadata=script(text="One two three four.", reasoning="Hm."))
    target = await stack.engine.held(hold)
    ticket.see(await _some(peer, 2))
    await steer(peer, target, "Stop!")
    await until(lambda: any(run.turn.steers for _, run in stack.services.running.values()))
    await _lose(connect, peer)
    stack.engine.release(hold)
    peer = await _resume(connect, ticket, peer)
    events = await peer.finish()
    assert "response_steer_accepted" in arms(events)
    assert response_of(events).incomplete_details.reason == "steered"
    assert status_of(response_of(await peer.finish())) == "completed"


@requirement("resume.input")
async def test_what_the_lost_connection_brought_is_not_lost(connect: Connect) -> None:
    peer, ticket = await _losable(connect)
    stack = await connect.start()
    hold = stack.engine.hold("first")
    await peer.create(input="first", event_id="e1", metadata=said("1"))
    await peer.create(input="second", event_id="e2", metadata=said("2"))
    await stack.engine.held(hold)
    await until(lambda: any(host.session.queued for host in stack.services.hosts))
    await _lose(connect, peer)
    peer = await _resume(connect, ticket, peer)
    # The client does not know what has arrived, so it sends all again.
    await peer.create(input="first", event_id="e1", metadata=said("1"))
    await peer.create(input="second", event_id="e2", metadata=said("2"))
    await peer.create(input="third", event_id="e3", metadata=said("3"))
    await until(lambda: any(host.session.queued == 2 for host in stack.services.hosts))
    stack.engine.release(hold)
    assert [text_of(response_of(await peer.finish())) for _ in range(3)] == ["1", "2", "3"]
    assert len(stack.engine.requests) == 3


@requirement("resume.announced")
async def test_a_client_that_says_that_it_goes_cancels_at_once(connect: Connect) -> None:
    peer, ticket = await _losable(connect)
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk", metadata=script(tokens=100))
    response_id = await stack.engine.held(hold)
    ticket.see(await _some(peer, 2))
    await _leave(peer)
    await until(lambda: not stack.engine.running)
    assert ("cancel", response_id) in stack.engine.log
    await until(lambda: not stack.services.hosts)
    assert len(stack.services.sessions) == 0
    other = await connect()
    await other.send(resume_event(ticket))
    assert code_of(await other.receive()) == "session_not_found"


@requirement("resume.announced")
async def test_the_way_a_client_goes_decides(connect: Connect) -> None:
    stack = await connect.start()
    codes = {1001: True, 1011: True, 1012: True, 1000: False, 1008: False, 4000: False, 0: False}
    if connect.wire == "memory":
        return  # it has no codes, nor deadlines
    if connect.wire == "grpc":
        peer = await stack.with_deadline(1.0)
        await start_session(peer)
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.create(input="talk")
        await stack.engine.held(hold)
        await until(lambda: not stack.services.hosts)  # its own deadline is no loss
        assert await peer.ended() == "DEADLINE_EXCEEDED"
        return
    for code, is_kept in codes.items():
        peer, _ = await _losable(connect)
        assert isinstance(peer, WebSocketPeer)
        if code:
            await peer.socket.close(code=code)
        else:
            await peer.socket.send_frame(b"", WSMsgType.CLOSE)  # without a code
        await until(lambda: not stack.services.connection_count)
        assert (len(stack.services.sessions), len(stack.services.hosts)) == (is_kept, is_kept), code
        stack.services.sessions.close()
        await until(lambda: not stack.services.hosts)


@requirement("resume.announced")
async def test_a_client_may_hang_up_with_its_last_word(connect: Connect) -> None:
    stack = await connect.start()
    for _ in range(10):
        peer, _ = await _losable(connect)
        if isinstance(peer, WebSocketPeer):
            connection = peer.socket._conn
            assert connection is not None and connection.transport is not None
            await peer.socket.send_frame((1000).to_bytes(2, "big"), WSMsgType.CLOSE)
            connection.transport.close()  # it waits for no answer
        else:
            await peer.disconnect()
        await until(lambda: not stack.services.connection_count)
        await until(lambda: not stack.services.hosts)
        await peer.close()


@requirement("resume.half_close")
async def test_a_half_close_finishes_what_is_queued_and_ends_the_session(connect: Connect) -> None:
    peer, _ = await _losable(connect)
    for number in range(2):
        await peer.create(input=f"turn {number}", metadata=said(str(number)))
    await peer.half_close()
    assert [text_of(response_of(await peer.finish())) for _ in range(2)] == ["0", "1"]
    assert await peer.ended() == {"memory": "finished", "grpc": "OK"}[peer.wire]
    await until(lambda: not connect.stack.services.hosts)
    assert len(connect.stack.services.sessions) == 0


@requirement("resume.half_close")
async def test_a_half_closed_session_that_is_lost_can_be_resumed(connect: Connect) -> None:
    peer, ticket = await _losable(connect)
    stack = await connect.start()
    hold = stack.engine.hold("talk")
    await peer.create(input="talk", metadata=said(_TEXT))
    await stack.engine.held(hold)
    await peer.half_close()
    ticket.see(await _some(peer, 2))
    await _lose(connect, peer)
    stack.engine.release(hold)
    peer = await _resume(connect, ticket, peer)
    events = await peer.finish()
    assert text_of(response_of(events)) == _TEXT
    following = await peer.turn(input="more", previous_response_id=response_of(events).id)
    assert status_of(response_of(following)) == "completed"


@requirement("resume.refused")
async def test_whatever_is_wrong_with_a_resume_is_one_error(connect: Connect) -> None:
    clock = ManualClock()
    connect.parts.clock = clock
    _set(connect, keepalive_s=_LONG_S, heartbeat_s=_LONG_S, connection_age_s=10 * _LONG_S)
    peer, ticket = await _losable(connect)
    await _lose(connect, peer)
    other, answers = await connect(), []
    for changes in ({"token": "wrong"}, {"token": ""}, {"session_id": "sess_x"}, {"token": "é"}):
        await other.send(resume_event(ticket, **changes))
        answers.append(await other.receive())
    await clock.until_sleeping(2)  # the grace, and the new connection's own timer
    clock.advance(61.0)
    await until(lambda: not connect.stack.services.sessions.waiting)
    await other.send(resume_event(ticket))
    answers.append(await other.receive())
    assert {failure_of(one) for one in answers} == {("session_not_found", 404, "session_id")}
    assert len({one.error.error.message for one in answers}) == 1
    assert status_of(response_of(await other.turn(input="Hi"))) == "completed"


@requirement("resume.tenant")
async def test_another_tenant_cannot_resume(connect: Connect) -> None:
    peer, ticket = await _losable(connect)
    await _lose(connect, peer)
    services = connect.stack.services
    thief = MemoryWirePeer(services, tenant="somebody else")
    await thief.send(resume_event(ticket))
    assert failure_of(await thief.receive()) == ("session_not_found", 404, "session_id")
    await thief.close()
    assert services.sessions.waiting == 1
    await _resume(connect, ticket, peer)


@requirement("resume.again")
async def test_after_a_refused_resume_another_session_can_be_opened(connect: Connect) -> None:
    peer, ticket = await _losable(connect)
    await _lose(connect, peer)
    second = await connect()
    await second.send(resume_event(ticket, token="wrong", event_id="r1"))
    assert (await second.receive()).event_id == "r1"
    await second.send(resume_event(ticket))
    await second.until("turnwire_session_resumed")
    third = await connect()
    await third.send(resume_event(ticket, session_id="sess_x"))
    assert code_of(await third.receive()) == "session_not_found"
    assert (await start_session(third)).session_id != ticket.session_id
    await third.send(resume_event(ticket))  # in place of one that was only started
    await third.until("turnwire_session_resumed")
    await third.send(resume_event(ticket))
    assert failure_of(await third.receive()) == ("invalid_value", 400, "type")


@requirement("resume.grace")
async def test_when_nobody_comes_in_time_everything_is_cancelled_and_forgotten(
    connect: Connect,
) -> None:
    clock = ManualClock()
    connect.parts.clock = clock
    _set(connect, keepalive_s=_LONG_S, heartbeat_s=_LONG_S, connection_age_s=10 * _LONG_S)
    peer, _ = await _losable(connect)
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk", metadata=script(tokens=100))
    await peer.create(input="queued")
    response_id = await stack.engine.held(hold)
    await _lose(connect, peer)
    await until(lambda: not stack.services.connection_count)
    await clock.until_sleeping()
    clock.advance(59.0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert response_id in stack.engine.running
    clock.advance(1.5)
    await until(lambda: not stack.services.hosts)
    assert ("cancel", response_id) in stack.engine.log
    await stack.services.afterwork.finish(5)
    assert stack.ledger.closed[response_id].status == "cancelled"
    assert len(stack.engine.requests) == 1
    assert not stack.services.running and not len(stack.services.sessions)


@requirement("resume.gap")
async def test_events_that_are_no_longer_kept_are_a_gap_and_the_session_is_over(
    connect: Connect,
) -> None:
    _set(connect, resume_buffer_bytes=4096)
    peer, ticket = await _losable(connect)
    stack = await connect.start()
    hold = stack.engine.hold("talk")
    behind = stack.engine.hold("other", after_steps=1)
    await peer.create(input="talk", metadata=script(tokens=400))
    await peer.create(input="other", stream_id="b", metadata=script(tokens=100))
    await stack.engine.held(hold)
    other_id = await stack.engine.held(behind)
    ticket.see([await peer._next_on(None) for _ in range(2)])
    await _lose(connect, peer)
    stack.engine.release(hold)
    await until(lambda: len(stack.services.running) == 1)
    second = await connect()
    await second.send(resume_event(ticket))
    assert failure_of(await second.receive()) == ("resume_gap", 409, "last_seen")
    assert ("cancel", other_id) in stack.engine.log
    await until(lambda: not stack.services.running)
    await second.send(resume_event(ticket))
    assert code_of(await second.receive()) == "session_not_found"
    assert status_of(response_of(await second.turn(input="Hi"))) == "completed"


@requirement("resume.gap")
async def test_what_was_seen_needs_no_room(connect: Connect) -> None:
    _set(connect, resume_buffer_bytes=4096)
    peer, ticket = await _losable(connect)
    events = await peer.turn(input="talk", metadata=script(tokens=400))
    ticket.see(events)
    await _lose(connect, peer)
    peer = await _resume(connect, ticket, peer)
    following = await peer.turn(
        input="more", previous_response_id=response_of(events).id, metadata=said("More.")
    )
    assert text_of(response_of(following)) == "More."


@requirement("resume.taken_over")
async def test_the_newest_connection_wins_and_the_older_one_is_told(connect: Connect) -> None:
    peer, ticket = await _losable(connect)
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk", metadata=said(_TEXT))
    await stack.engine.held(hold)
    ticket.see(await _some(peer, 2))
    newer = await _resume(connect, ticket)
    how = {"memory": "taken_over", "grpc": "ABORTED", "websocket": "1000"}
    assert await peer.ended() == how[peer.wire]
    last = peer.rest()[-1]
    assert failure_of(last) == ("session_taken_over", 409, None)
    stack.engine.release(hold)
    newer.checker = peer.checker
    newer.is_checked = False  # it has what the older one got too
    assert text_of(response_of(await newer.finish())) == _TEXT
    await until(lambda: stack.services.connection_count == 1)
    assert len(stack.services.hosts) == 1


_AGE_ENDING = {"memory": "age", "grpc": "UNAVAILABLE", "websocket": "1001"}


@requirement("resume.age")
async def test_a_resumable_session_outlives_the_age_of_its_connection(connect: Connect) -> None:
    clock = ManualClock()
    connect.parts.clock = clock
    _set(connect, keepalive_s=_LONG_S, heartbeat_s=_LONG_S, connection_age_s=100, age_grace_s=10)
    peer, ticket = await _losable(connect)
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk", event_id="e1", metadata=said(_TEXT))
    response_id = await stack.engine.held(hold)
    await clock.run_for(105.0)
    await peer.create(input="next", event_id="e2", metadata=said("Next."))
    await until(lambda: any(host.session.queued for host in stack.services.hosts))
    await clock.run_for(10.0)
    assert await peer.ended() == _AGE_ENDING[peer.wire]
    events = peer.rest()
    away = [one for one in events if arm_of(one) == "turnwire_go_away"]
    assert [one.turnwire_go_away.reason for one in away] == ["age"]
    assert code_of(events[-1]) == "websocket_connection_limit_reached"
    ticket.see(events)
    assert response_id in stack.engine.running
    peer = await _resume(connect, ticket, peer)
    await peer.create(input="next", event_id="e2", metadata=said("Next."))
    await peer.create(input="new", event_id="e3", metadata=said("New."))
    await until(lambda: any(host.session.queued == 2 for host in stack.services.hosts))
    stack.engine.release(hold)
    texts = [text_of(response_of(await peer.finish())) for _ in range(3)]
    assert texts == [_TEXT, "Next.", "New."]


@requirement("resume.room")
async def test_one_session_too_many_ends_the_one_that_has_waited_longest(connect: Connect) -> None:
    _set(connect, max_detached_sessions=2)
    lost = [await _losable(connect) for _ in range(3)]
    for peer, _ in lost:
        await peer.lose()
    await until(lambda: len(connect.stack.services.hosts) == 2)
    refused = await connect()
    await refused.send(resume_event(lost[0][1]))
    assert code_of(await refused.receive()) == "session_not_found"
    for _, ticket in lost[1:]:
        await _resume(connect, ticket)


@requirement("resume.room")
async def test_without_room_a_lost_session_ends_at_once(connect: Connect) -> None:
    _set(connect, max_detached_sessions=0)
    peer, _ = await _losable(connect)
    hold = connect.stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk")
    response_id = await connect.stack.engine.held(hold)
    await peer.lose()
    assert connect.stack.engine.log[-1] == ("cancel", response_id)
    await until(lambda: not connect.stack.services.hosts)


@requirement("resume.memory")
async def test_of_a_session_that_is_over_nothing_is_left(connect: Connect) -> None:
    peer, ticket = await _losable(connect)
    response = response_of(await peer.turn(input="Hi"))
    await _lose(connect, peer)
    services = connect.stack.services
    (host,) = services.hosts
    references = [weakref.ref(host), weakref.ref(host.session)]
    peer = await _resume(connect, ticket)
    await peer.turn(input="more", previous_response_id=response.id)
    del host
    await _leave(peer)
    await until(lambda: not services.hosts and not services.connection_count)
    await services.afterwork.finish(5)
    await peer.close()

    def is_gone() -> bool:
        gc.collect()
        return all(reference() is None for reference in references)

    await until(is_gone)


# The same create again.


@requirement("repeat.running")
async def test_a_create_that_is_sent_again_runs_once(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("talk")
    for _ in range(2):
        await peer.create(input="talk", event_id="e1", metadata=said("Once."))
        await peer.create(input="then", event_id="e2", metadata=said("Then."))
    await stack.engine.held(hold)
    await peer.send({"type": "turnwire.session.start"})
    await peer.until("error")  # all that was sent before has been received
    stack.engine.release(hold)
    assert text_of(response_of(await peer.finish())) == "Once."
    assert text_of(response_of(await peer.finish())) == "Then."
    await peer.turn(input="last", event_id="e3")
    assert len(stack.engine.requests) == 3
    assert peer.rest() == []


@requirement("repeat.over")
@pytest.mark.parametrize("ending", ["completed", "error", "cancelled"])
async def test_a_create_that_is_over_is_answered_as_it_ended(connect: Connect, ending: str) -> None:
    peer = await connect()
    stack = await connect.start()
    peer.is_checked = False  # the same terminal event comes twice
    create = {"input": "talk", "event_id": "e1", "stream_id": "a", "metadata": said("Once.")}
    if ending == "error":
        create["previous_response_id"] = "resp_missing"
    if ending == "cancelled":
        hold = stack.engine.hold("talk", after_steps=1)
        await peer.create(create)
        await stack.engine.held(hold)
        await peer.send({"type": "response.cancel", "stream_id": "a"})
    else:
        await peer.create(create)
    first = (await peer.finish("a"))[-1]
    if ending != "error":
        assert status_of(response_of([first])) == ending
    ran = len(stack.engine.requests)
    await peer.create(create)
    (again,) = await peer.finish("a")
    assert again == first
    assert len(stack.engine.requests) == ran


@requirement("repeat.turned_away")
async def test_a_create_that_was_refused_for_the_moment_may_be_sent_again(
    connect: Connect,
) -> None:
    peer, _ = await _losable(connect)
    services = connect.stack.services
    services.keys.replace(["another"])
    create = {"input": "talk", "event_id": "e1", "metadata": said("Now.")}
    await peer.create(create)
    assert failure_of(await peer.receive()) == ("invalid_api_key", 401, None)
    services.keys.replace([])
    assert text_of(response_of(await peer.turn(create))) == "Now."


@requirement("repeat.not_kept")
async def test_a_create_whose_end_is_no_longer_kept_is_not_run_again(connect: Connect) -> None:
    settings = RuntimeSettings()
    session = replace(settings.session, max_answer_bytes=10)
    connect.parts.settings = replace(settings, session=session)
    peer = await connect()
    await peer.turn(input="talk", event_id="e1")
    await peer.create(input="talk", event_id="e1")
    error = await peer.receive()
    assert failure_of(error) == ("response_already_completed", 400, "event_id")
    assert error.event_id == "e1"
    assert len(connect.stack.engine.requests) == 1
