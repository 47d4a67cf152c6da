"""A session over one connection after the other, against a server that the test plays."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import turnwire
from harness.client_events import (
    call_item,
    call_turn,
    cancelled,
    opening,
    rejected,
    text_turn,
)
from harness.client_recovery import (
    AT_ONCE,
    MemoryDial,
    go_away,
    recovering,
    refused,
    resumed,
    started,
)
from harness.client_wires import MemoryWire, Script
from harness.waiting import until
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import ResponseDone, ServerEvent

CUT = turnwire.ConnectionLost("cut", close_code=1006)


def is_resume(event: ClientEvent) -> bool:
    return event.WhichOneof("event") == "turnwire_session_resume"


def keeps_sessions(wire: MemoryWire) -> None:
    """Answer the wish for resume on a new wire."""
    wire.push(started())


def resuming_dial(script: Script | None = None) -> MemoryDial:
    """Return a dial whose server resumes its one session on every further wire."""
    dial = MemoryDial(script)
    dial.on_open = lambda wire: wire.push(started() if len(dial.wires) == 1 else resumed())
    return dial


async def begun(wire: MemoryWire, create: ClientEvent, deltas: str, seen: int) -> list[ServerEvent]:
    """Answer a create with so many events of a text; return the rest."""
    events = text_turn(create, "resp_1", *deltas)
    wire.push(*events[:seen])
    return events[seen:]


# Resume.


async def test_a_resumed_turn_goes_on_as_if_nothing_had_happened() -> None:
    dial = resuming_dial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi", stream_id="a")
        first = dial.wires[0]
        await first.sent_count(1)
        rest = await begun(first, first.sent[0], "Hello", seen=5)
        events = [await anext(turn) for _ in range(5)]
        first.lose(CUT)
        second = await dial.opened(2)
        await second.sent_count(1)
        second.push(*rest)
        events += [event async for event in turn]
        assert session.reconnects == 1 and session.is_resumable
    assert dial.wishes == [True, False]
    resume = second.sent[0].turnwire_session_resume
    assert (resume.session_id, resume.token) == ("sess_1", "token_1")
    (seen,) = resume.last_seen
    assert (seen.stream_id, seen.response_id, seen.sequence_number) == ("a", "resp_1", 4)
    assert [event.sequence_number for event in events] == list(range(10))
    assert "".join(event.delta or "" for event in events) == "Hello"
    assert first.aborted
    assert not any(event.HasField("response_create") for event in second.sent)


async def test_events_that_were_seen_before_are_dropped_after_resuming() -> None:
    dial = resuming_dial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi")
        first = dial.wires[0]
        await first.sent_count(1)
        events = text_turn(first.sent[0], "resp_1", "a", "b")
        first.push(*events[:4])
        await until(lambda: turn.response_id is not None)
        first.lose(CUT)
        (await dial.opened(2)).push(*events[2:])
        numbers = [event.sequence_number async for event in turn]
    assert numbers == list(range(7))


async def test_a_gap_after_resuming_is_a_protocol_violation() -> None:
    dial = resuming_dial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi")
        first = dial.wires[0]
        await first.sent_count(1)
        rest = await begun(first, first.sent[0], "ab", seen=3)
        await turn.started()
        first.lose(CUT)
        (await dial.opened(2)).push(*rest[1:])
        with pytest.raises(turnwire.ProtocolViolation):
            await turn.response()


async def test_what_may_not_have_arrived_is_said_again_with_the_same_id() -> None:
    dial = resuming_dial()
    async with asyncio.timeout(20), recovering(dial) as session:
        first = dial.wires[0]
        running, queued = session.create("x", stream_id="a"), session.create("y", stream_id="a")
        doomed = session.create("z", stream_id="b")
        await first.sent_count(3)
        rest = await begun(first, first.sent[0], "ab", seen=3)
        await running.started()
        cancelling = asyncio.create_task(doomed.cancel())
        steering = asyncio.create_task(running.steer("Also"))
        await first.sent_count(5)
        first.lose(CUT)
        second = await dial.opened(2)
        await second.sent_count(5)
        _, create, other, cancel, steer = second.sent
        assert create == first.sent[1] and other == first.sent[2]
        assert cancel.HasField("response_cancel") and cancel.event_id == doomed.event_id
        assert steer == first.sent[4] and steer.event_id
        steering.cancel()
        second.push(*rest, *text_turn(create, "resp_2", "q"), rejected(other, "request_cancelled"))
        assert (await running.response()).output_text == "ab"
        assert (await queued.response()).output_text == "q"
        await cancelling
    assert len(second.sent) == 5


async def test_an_append_that_may_not_have_arrived_is_sent_again() -> None:
    dial = resuming_dial()
    async with asyncio.timeout(20), recovering(dial) as session:
        first = dial.wires[0]
        turn = session.create("x", rollout=True)
        await first.sent_count(1)
        called = call_turn(first.sent[0], "resp_1", call_item("f", "{}"))[:5]
        done = ServerEvent(sequence_number=5, response_done=ResponseDone(response_id="resp_1"))
        first.push(*called, done)
        (call,) = await turn.paused()
        appending = asyncio.create_task(
            turn.append([{"type": "function_call_output", "call_id": call.call_id, "output": "1"}])
        )
        await first.sent_count(2)
        first.lose(CUT)
        second = await dial.opened(2)
        await second.sent_count(2)
        assert second.sent[1] == first.sent[1]
        end = text_turn(first.sent[0], "resp_1", "ok")[2:]
        for number, event in enumerate(end, 6):
            event.sequence_number = number
        second.push(*end)
        await appending
        assert (await turn.response()).status == "completed"


async def test_a_refusal_that_comes_again_after_resuming_says_nothing() -> None:
    notices: list[turnwire.Event] = []
    dial = resuming_dial()
    async with asyncio.timeout(20), recovering(dial, on_notice=notices.append) as session:
        first = dial.wires[0]
        refusal, running = session.create("x"), session.create("y")
        await first.sent_count(2)
        first.push(rejected(first.sent[0], "model_not_found", 404))
        with pytest.raises(turnwire.NotFound):
            await refusal.response()
        first.lose(CUT)
        second = await dial.opened(2)
        second.push(rejected(first.sent[0], "model_not_found", 404))
        second.push(*text_turn(first.sent[1], "resp_1", "y"))
        assert (await running.response()).output_text == "y"
    assert notices == []


async def test_so_does_the_refusal_of_outputs_that_were_sent_again_since() -> None:
    notices: list[turnwire.Event] = []
    dial = resuming_dial()
    async with asyncio.timeout(20), recovering(dial, on_notice=notices.append) as session:
        first = dial.wires[0]
        turn = session.create("x", rollout=True)
        await first.sent_count(1)
        called = call_turn(first.sent[0], "resp_1", call_item("f", "{}"))[:5]
        done = ServerEvent(sequence_number=5, response_done=ResponseDone(response_id="resp_1"))
        first.push(*called, done)
        (call,) = await turn.paused()
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "1"}
        appending = asyncio.create_task(turn.append([output]))
        await first.sent_count(2)
        first.push(rejected(first.sent[1], "invalid_value"))
        with pytest.raises(turnwire.ResponseRejected):
            await appending
        appending = asyncio.create_task(turn.append([output]))
        await first.sent_count(3)
        first.lose(CUT)
        second = await dial.opened(2)
        await second.sent_count(2)
        assert second.sent[1] == first.sent[2]
        second.push(rejected(first.sent[1], "invalid_value"))
        end = text_turn(first.sent[0], "resp_1", "ok")[2:]
        for number, event in enumerate(end, 6):
            event.sequence_number = number
        second.push(*end)
        await appending
        assert (await turn.response()).status == "completed"
    assert notices == []


async def test_an_end_that_comes_again_is_not_the_end_of_the_next_turn() -> None:
    dial = resuming_dial()
    async with asyncio.timeout(20), recovering(dial) as session:
        first = dial.wires[0]
        turn = session.create("x")
        await first.sent_count(1)
        first.lose(CUT)
        second = await dial.opened(2)
        await second.sent_count(2)
        # Missed events, and then the answer to the create that came once more.
        events = text_turn(first.sent[0], "resp_1", "x")
        second.push(*events)
        assert (await turn.response()).id == "resp_1"
        following = session.create("y")
        second.push(events[-1])
        await second.sent_count(3)
        second.push(*text_turn(second.sent[2], "resp_2", "y"))
        assert (await following.response()).output_text == "y"


async def test_a_create_that_runs_though_it_was_refused_before_is_cancelled() -> None:
    dial = resuming_dial()
    async with asyncio.timeout(20), recovering(dial) as session:
        first = dial.wires[0]
        turn = session.create("x")
        await first.sent_count(1)
        first.lose(CUT)
        second = await dial.opened(2)
        await second.sent_count(2)
        # The refusal had been lost with the connection; then the create comes once more.
        second.push(rejected(second.sent[1], "rate_limit_exceeded", 429))
        with pytest.raises(turnwire.RateLimited):
            await turn.response()
        following = session.create("y")
        second.push(*opening(second.sent[1], "resp_ghost"))
        await second.sent_count(4)
        assert second.sent[3].response_cancel.response_id == "resp_ghost"
        second.push(cancelled(second.sent[1], "resp_ghost"))
        second.push(*text_turn(second.sent[2], "resp_2", "y"))
        assert (await following.response()).output_text == "y"


async def test_an_idle_session_is_resumed_before_its_grace_is_over() -> None:
    dial = resuming_dial(lambda event: text_turn(event, "resp_2", "y"))
    async with asyncio.timeout(20), recovering(dial) as session:
        await until(lambda: session.is_resumable)
        dial.wires[0].lose(CUT)
        second = await dial.opened(2)
        await second.sent_count(1)
        assert is_resume(second.sent[0])


async def test_a_session_that_was_taken_over_is_over() -> None:
    dial = MemoryDial()
    dial.on_open = keeps_sessions
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("x")
        await dial.wires[0].sent_count(1)
        dial.wires[0].push(refused("session_taken_over", 409))
        with pytest.raises(turnwire.ConnectionLost) as lost:
            await turn.response()
        assert lost.value.code == "session_taken_over"
        assert not session.is_open
    assert len(dial.wires) == 1


async def test_a_server_that_does_not_resume_is_used_without() -> None:
    notices: list[turnwire.Event] = []
    dial = MemoryDial(lambda event: text_turn(event, "resp_1", "x"))

    def refuse(wire: MemoryWire) -> None:
        refusal = refused("unsupported_value")
        refusal.error.error.param = "resume"
        wire.push(refusal)

    dial.on_open = refuse
    async with asyncio.timeout(20), recovering(dial, on_notice=notices.append) as session:
        assert (await session.create("x").response()).id == "resp_1"
        assert not session.is_resumable
    assert notices == []


# Dialling.


async def test_it_tries_until_it_works_and_heeds_what_the_server_asks_for() -> None:
    waited: list[float] = []

    def chance() -> float:
        waited.append(1.0)
        return 0.0

    dial = MemoryDial(lambda event: [])
    settings = replace(AT_ONCE, chance=chance, resume=False)
    async with asyncio.timeout(20), recovering(dial, settings) as session:
        turn = session.create("x")
        await dial.wires[0].sent_count(1)
        dial.failures.append(turnwire.ConnectionFailed("no", retry_after_s=0.001))
        dial.failures.append(turnwire.ConnectionFailed("no", status=503))
        dial.failures.append(turnwire.Timeout("no"))
        dial.wires[0].lose(CUT)
        second = await dial.opened(2)
        await second.sent_count(1)
        second.push(*text_turn(second.sent[0], "resp_1", "x"))
        assert (await turn.response()).output_text == "x"
    assert len(waited) == 4
    assert dial.wishes == [False] * 5


async def test_without_a_connection_in_time_the_turns_are_lost_and_the_next_one_tries_again() -> (
    None
):
    dial = MemoryDial()
    settings = replace(AT_ONCE, reconnect_s=0.05, first_delay_s=0.01, most_delay_s=0.01)
    async with asyncio.timeout(20), recovering(dial, settings) as session:
        turn = session.create("x")
        await dial.wires[0].sent_count(1)
        dial.failures.extend(turnwire.ConnectionFailed("no") for _ in range(10_000))
        dial.wires[0].lose(CUT)
        with pytest.raises(turnwire.ConnectionLost) as lost:
            await turn.response()
        assert lost.value.close_code == 1006
        assert session.is_open
        dial.failures.clear()
        again = session.create("y")
        second = await dial.opened(2)
        await second.sent_count(1)
        second.push(*text_turn(second.sent[0], "resp_1", "y"))
        assert (await again.response()).output_text == "y"


@pytest.mark.parametrize(
    "error",
    [
        turnwire.ConnectionLost("no", close_code=1008, retryable=False),
        turnwire.ProtocolViolation("no"),
        turnwire.AuthenticationFailed(code="invalid_api_key", status=401, message="no"),
    ],
)
async def test_a_loss_that_would_come_again_ends_the_session(error: turnwire.TurnwireError) -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("x")
        await dial.wires[0].sent_count(1)
        dial.wires[0].lose(error)
        with pytest.raises(type(error)):
            await turn.response()
        with pytest.raises(type(error)):
            session.create("y")
    assert len(dial.wires) == 1


async def test_a_key_that_was_revoked_meanwhile_ends_the_session() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("x")
        await dial.wires[0].sent_count(1)
        revoked = turnwire.AuthenticationFailed(code="invalid_api_key", status=401, message="no")
        dial.failures.append(revoked)
        dial.wires[0].lose(CUT)
        with pytest.raises(turnwire.AuthenticationFailed):
            await turn.response()
        assert not session.is_open


async def test_a_bug_while_dialling_does_not_leave_the_turns_waiting() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("x")
        await dial.wires[0].sent_count(1)

        def break_down(wire: MemoryWire) -> None:
            raise LookupError

        dial.on_open = break_down
        dial.wires[0].lose(CUT)
        with pytest.raises(turnwire.ProtocolViolation):
            await turn.response()


async def test_an_idle_session_without_resume_dials_when_the_next_turn_is_asked_for() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        dial.wires[0].lose(CUT)
        await until(lambda: session._connection.keeper._link is None)
        assert len(dial.wires) == 1 and session.is_open
        turn = session.create("x")
        second = await dial.opened(2)
        await second.sent_count(1)
        second.push(*text_turn(second.sent[0], "resp_1", "x"))
        assert (await turn.response()).output_text == "x"


async def test_a_session_that_the_server_closed_on_purpose_is_not_resumed() -> None:
    dial = MemoryDial()
    dial.on_open = keeps_sessions
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("x")
        await dial.wires[0].sent_count(1)
        await until(lambda: session.is_resumable)
        dial.wires[0].lose(turnwire.ConnectionLost("bye", close_code=1000))
        second = await dial.opened(2)
        await second.sent_count(1)
        assert second.sent[0] == dial.wires[0].sent[0]
        second.push(*text_turn(second.sent[0], "resp_1", "x"))
        assert (await turn.response()).output_text == "x"
    assert dial.wishes == [True, True]


async def test_a_wish_that_is_no_longer_known_begins_a_session_anew() -> None:
    for code in ("session_not_found", "resume_gap"):
        dial = MemoryDial()

        def answer(wire: MemoryWire, dial: MemoryDial = dial, code: str = code) -> None:
            wire.push(refused(code, 404) if len(dial.wires) == 2 else started())

        dial.on_open = answer
        async with asyncio.timeout(20), recovering(dial) as session:
            turn = session.create("x")
            await dial.wires[0].sent_count(1)
            dial.wires[0].lose(CUT)
            third = await dial.opened(3)
            await third.sent_count(1)
            assert third.sent[0] == dial.wires[0].sent[0]
            third.push(*text_turn(third.sent[0], "resp_1", "x"))
            assert (await turn.response()).output_text == "x"
        assert dial.wishes == [True, False, True]
        assert dial.wires[1].aborted


# Half-dead connections.


async def test_an_idle_connection_that_gives_no_sign_of_life_is_left() -> None:
    dial = MemoryDial()
    settings = replace(AT_ONCE, ping_after_idle_s=0.0, ping_timeout_s=0.01)
    async with asyncio.timeout(20), recovering(dial, settings) as session:
        first = dial.wires[0]
        first.is_alive = False
        turn = session.create("x")
        second = await dial.opened(2)
        await second.sent_count(1)
        assert first.pings == 1
        assert second.sent[0] == first.sent[0]
        second.push(*text_turn(second.sent[0], "resp_1", "x"))
        assert (await turn.response()).output_text == "x"


async def test_events_are_a_sign_of_life_too() -> None:
    dial = MemoryDial()
    settings = replace(AT_ONCE, ping_after_idle_s=0.0, ping_timeout_s=0.02)
    async with asyncio.timeout(20), recovering(dial, settings) as session:
        first = dial.wires[0]
        first.is_alive = False
        turn = session.create("x")
        await first.sent_count(1)
        first.push(*opening(first.sent[0], "resp_1"))
        await turn.started()
        pinging = session._connection.keeper._pinging
        assert pinging is not None
        await pinging
        first.push(*text_turn(first.sent[0], "resp_1", "x")[2:])
        assert (await turn.response()).output_text == "x"
    assert len(dial.wires) == 1


async def test_a_connection_in_use_is_not_pinged() -> None:
    dial = MemoryDial(lambda event: text_turn(event, event.event_id, "x"))
    settings = replace(AT_ONCE, ping_after_idle_s=60.0)
    async with asyncio.timeout(20), recovering(dial, settings) as session:
        for _ in range(3):
            await session.create("x").response()
    assert dial.wires[0].pings == 0


# Servers that go away.


async def test_a_connection_of_age_is_changed_in_the_middle_of_a_turn_when_it_can_be_resumed() -> (
    None
):
    dial = resuming_dial()
    notices: list[str] = []
    async with (
        asyncio.timeout(20),
        recovering(dial, on_notice=lambda event: notices.append(event.type)) as session,
    ):
        first = dial.wires[0]
        turn = session.create("x")
        await first.sent_count(1)
        rest = await begun(first, first.sent[0], "abc", seen=4)
        await turn.started()
        first.push(go_away("age"))
        second = await dial.opened(2)
        await second.sent_count(1)
        assert is_resume(second.sent[0])
        assert second.sent[0].turnwire_session_resume.last_seen[0].sequence_number == 3
        second.push(*rest)
        assert (await turn.response()).output_text == "abc"
    assert notices == ["turnwire.go_away"]


async def test_turns_end_where_they_run_before_a_draining_server_is_left() -> None:
    dial = MemoryDial()
    dial.on_open = keeps_sessions
    async with asyncio.timeout(20), recovering(dial) as session:
        first = dial.wires[0]
        turn = session.create("x", stream_id="a")
        await first.sent_count(1)
        rest = await begun(first, first.sent[0], "abc", seen=4)
        await turn.started()
        first.push(go_away("drain"))
        await until(lambda: session._connection.keeper.is_retiring)
        waiting = session.create("y", stream_id="b")
        assert len(dial.wires) == 1
        first.push(*rest)
        assert (await turn.response()).output_text == "abc"
        second = await dial.opened(2)
        await second.sent_count(1)
        # Its session was the old server's: nothing is resumed.
        assert second.sent[0].response_create.input.text == "y"
        second.push(*text_turn(second.sent[0], "resp_2", "y"))
        assert (await waiting.response()).output_text == "y"
    assert len(first.sent) == 1


async def test_an_idle_session_leaves_a_draining_server_and_dials_when_needed() -> None:
    dial = MemoryDial()
    dial.on_open = keeps_sessions
    async with asyncio.timeout(20), recovering(dial) as session:
        dial.wires[0].push(go_away("drain"))
        await until(lambda: dial.wires[0].aborted)
        assert dial.wires[0].closed and len(dial.wires) == 1
        turn = session.create("x")
        second = await dial.opened(2)
        await second.sent_count(1)
        second.push(*text_turn(second.sent[0], "resp_2", "y"))
        assert (await turn.response()).output_text == "y"


async def test_a_create_that_comes_too_late_for_its_connection_goes_to_the_next_one() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        first = dial.wires[0]
        turn = session.create("x")
        await first.sent_count(1)
        first.push(rejected(first.sent[0], "websocket_connection_limit_reached"))
        second = await dial.opened(2)
        await second.sent_count(1)
        assert second.sent[0] == first.sent[0]
        second.push(*text_turn(second.sent[0], "resp_1", "x"))
        assert (await turn.response()).output_text == "x"


async def test_a_create_that_a_draining_server_refuses_goes_to_the_next_one() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        first = dial.wires[0]
        running, late = session.create("x", stream_id="a"), session.create("y", stream_id="b")
        await first.sent_count(2)
        first.push(*opening(first.sent[0], "resp_1"), go_away("drain"))
        first.push(rejected(first.sent[1], "server_is_overloaded", 503))
        first.push(*text_turn(first.sent[0], "resp_1", "x")[2:])
        assert (await running.response()).output_text == "x"
        second = await dial.opened(2)
        await second.sent_count(1)
        second.push(*text_turn(second.sent[0], "resp_2", "y"))
        assert (await late.response()).output_text == "y"


async def test_an_overloaded_server_that_stays_refuses_for_good() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("x")
        await dial.wires[0].sent_count(1)
        dial.wires[0].push(rejected(dial.wires[0].sent[0], "server_is_overloaded", 503))
        with pytest.raises(turnwire.ServerOverloaded):
            await turn.response()
    assert len(dial.wires) == 1


async def test_a_turn_that_the_drain_cut_begins_again_elsewhere_if_nobody_saw_of_it() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        first = dial.wires[0]
        unseen, seen = session.create("x", stream_id="a"), session.create("y", stream_id="b")
        reading = asyncio.create_task(unseen.response())
        await first.sent_count(2)
        first.push(*text_turn(first.sent[0], "resp_1", "ab")[:4])
        first.push(*text_turn(first.sent[1], "resp_2", "cd")[:4])
        while not (await anext(seen)).delta:
            pass
        first.push(go_away("drain"))
        first.push(cancelled(first.sent[0], "resp_1", 4), cancelled(first.sent[1], "resp_2", 4))
        assert (await seen.response()).status == "cancelled"
        second = await dial.opened(2)
        await second.sent_count(1)
        assert second.sent == first.sent[:1]
        second.push(*text_turn(second.sent[0], "resp_3", "new"))
        assert (await reading).output_text == "new"


# Closing.


async def test_closing_while_the_connection_is_lost_ends_at_once() -> None:
    dial = MemoryDial()
    settings = replace(AT_ONCE, first_delay_s=60.0, most_delay_s=60.0, reconnect_s=120.0)
    async with asyncio.timeout(20), recovering(dial, settings) as session:
        turn = session.create("x")
        await dial.wires[0].sent_count(1)
        dial.wires[0].lose(CUT)
        await until(lambda: session._connection.keeper._link is None)
        await session.close()
        with pytest.raises(turnwire.SessionClosed):
            await turn.response()
    assert dial.wires[0].aborted


async def test_a_queued_turn_is_cancelled_while_the_connection_is_lost() -> None:
    dial = MemoryDial()
    settings = replace(AT_ONCE, first_delay_s=60.0, most_delay_s=60.0, reconnect_s=120.0)
    async with asyncio.timeout(20), recovering(dial, settings) as session:
        dial.wires[0].lose(CUT)
        await until(lambda: session._connection.keeper._link is None)
        turn = session.create("x")
        await turn.cancel()
        with pytest.raises(turnwire.RequestCancelled):
            await turn.response()
