"""What becomes of turns and conversations when their session cannot be resumed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import turnwire
from harness.client_events import (
    call_item,
    call_turn,
    opening,
    rejected,
    text_item,
    text_turn,
)
from harness.client_recovery import AT_ONCE, MemoryDial, recovering
from harness.client_wires import MemoryWire
from harness.waiting import until
from turnwire._event import Event
from turnwire._session import Session
from turnwire._wire import WireName
from turnwire.v1 import response_pb2
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.response_pb2 import Response
from turnwire.v1.server_event_pb2 import (
    ResponseDone,
    ResponseSteerAccepted,
    ResponseSteerPending,
    ServerEvent,
    Steer,
)

CUT = turnwire.ConnectionLost("cut", close_code=1006)


def stored(response_id: str, text: str, status: str = "completed") -> Response:
    value = response_pb2.ResponseStatus.Value(f"RESPONSE_STATUS_{status.upper()}")
    return Response(id=response_id, status=value, output=[text_item(text)])


async def answer(dial: MemoryDial, wire: int, number: int, response_id: str, text: str) -> None:
    """Answer a create, counted from 1 like the wire that it is sent on."""
    opened = await dial.opened(wire)
    await opened.sent_count(number)
    opened.push(*text_turn(opened.sent[number - 1], response_id, text))


def create(dial: MemoryDial, wire: int, number: int) -> ResponseCreate:
    return dial.wires[wire - 1].sent[number - 1].response_create


def unstored() -> ClientEvent:
    return ClientEvent(response_create=ResponseCreate(store=False))


def told(create: ResponseCreate) -> list[str]:
    """Return what an input says, item by item."""
    texts = []
    for item in create.input.items.items:
        kind = item.WhichOneof("item")
        if kind == "message":
            content = item.message.content
            parts = "".join(part.output_text.text for part in content.parts.parts)
            texts.append(f"{item.message.role}: {content.text or parts}")
        elif kind == "function_call_output":
            texts.append(f"output: {item.function_call_output.output.text}")
        else:
            texts.append(str(kind))
    return texts


# Turns.


async def test_a_turn_without_output_begins_again_and_yields_its_start_once_more() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi", store=False)
        first = dial.wires[0]
        await first.sent_count(1)
        first.push(*opening(first.sent[0], "resp_1"))
        types = [(await anext(turn)).type for _ in range(2)]
        first.lose(CUT)
        await answer(dial, 2, 1, "resp_2", "Hello")
        types += [event.type async for event in turn]
        assert (turn.response_id, turn.stats and turn.stats.resends) == ("resp_2", 1)
    assert types[:4] == ["response.created", "response.in_progress"] * 2
    assert types[-1] == "response.completed"
    assert dial.wires[1].sent[0] == dial.wires[0].sent[0]
    assert dial.stored.asked == []


async def test_a_turn_that_is_only_waited_for_begins_again_whatever_had_come() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi", store=False)
        waiting = asyncio.create_task(turn.response())
        first = dial.wires[0]
        await first.sent_count(1)
        first.push(*text_turn(first.sent[0], "resp_1", "ab")[:5])
        await turn.started()
        first.lose(CUT)
        await answer(dial, 2, 1, "resp_2", "cd")
        assert (await waiting).output_text == "cd"


async def test_output_that_nobody_took_is_taken_back() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi", store=False)
        first = dial.wires[0]
        await first.sent_count(1)
        first.push(*text_turn(first.sent[0], "resp_1", "ab", "cd")[:5])
        await anext(turn)
        first.lose(CUT)
        await answer(dial, 2, 1, "resp_2", "ef")
        assert "".join([event.delta or "" async for event in turn]) == "ef"


async def test_a_turn_with_output_that_was_seen_is_lost_and_says_what_there_was() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi", store=False)
        other = session.create("Ho", stream_id="b", store=False)
        first = dial.wires[0]
        await first.sent_count(2)
        calls = call_turn(first.sent[0], "resp_1", call_item("f", "{}"), call_item("g", "{}"))
        first.push(*calls[:7])
        while (await anext(turn)).type != "response.output_item.done":
            pass
        first.lose(CUT)
        with pytest.raises(turnwire.OutputLost) as lost:
            await turn.response()
        await answer(dial, 2, 1, "resp_2", "Ho")
        assert (await other.response()).output_text == "Ho"
    assert isinstance(lost.value, turnwire.ConnectionLost)
    assert (lost.value.response_id, lost.value.close_code) == ("resp_1", 1006)
    assert [item.function_call.name for item in lost.value.items] == ["f"]
    assert lost.value.response is None
    assert turn.stats is not None and turn.stats.status == "lost"
    assert len(dial.wires[1].sent) == 1


async def test_a_response_that_was_stored_and_finished_meanwhile_ends_its_turn() -> None:
    dial = MemoryDial()
    dial.stored.kept["resp_1"] = [
        turnwire.ConnectionFailed("not yet"),
        stored("resp_1", "", "in_progress"),
        stored("resp_1", "Hello"),
    ]
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi")
        first = dial.wires[0]
        await first.sent_count(1)
        first.push(*text_turn(first.sent[0], "resp_1", "Hel", "lo")[:4])
        while not (await anext(turn)).delta:
            pass
        first.lose(CUT)
        (last,) = [event async for event in turn]
        assert (last.type, last.sequence_number) == ("response.completed", None)
        assert (await turn.response()).output_text == "Hello"
        # It is the server's, on whatever session.
        child = session.create("And?", previous_response_id="resp_1")
        await answer(dial, 2, 1, "resp_2", "More")
        assert (await child.response()).output_text == "More"
    assert create(dial, 2, 1).previous_response_id == "resp_1"


@pytest.mark.parametrize("status", ["cancelled", "failed"])
async def test_a_stored_response_that_the_loss_ended_is_no_answer(status: str) -> None:
    dial = MemoryDial()
    dial.stored.kept["resp_1"] = [stored("resp_1", "Hel", status)]
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi")
        first = dial.wires[0]
        await first.sent_count(1)
        first.push(*opening(first.sent[0], "resp_1"))
        await turn.started()
        first.lose(CUT)
        await answer(dial, 2, 1, "resp_2", "Hello")
        assert (await turn.response()).id == "resp_2"


async def test_a_stored_response_that_was_cut_is_shown_with_the_loss() -> None:
    dial = MemoryDial()
    dial.stored.kept["resp_1"] = [stored("resp_1", "Hel", "cancelled")]
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi")
        first = dial.wires[0]
        await first.sent_count(1)
        first.push(*text_turn(first.sent[0], "resp_1", "Hel", "lo")[:4])
        while not (await anext(turn)).delta:
            pass
        first.lose(CUT)
        with pytest.raises(turnwire.OutputLost) as lost:
            await turn.response()
    assert lost.value.response is not None
    assert lost.value.response.output_text == "Hel"


async def test_a_failure_that_was_stored_is_the_end_of_a_turn_that_was_seen() -> None:
    dial = MemoryDial()
    dial.stored.kept["resp_1"] = [stored("resp_1", "Hel", "failed")]
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi")
        first = dial.wires[0]
        await first.sent_count(1)
        first.push(*text_turn(first.sent[0], "resp_1", "Hel", "lo")[:4])
        while not (await anext(turn)).delta:
            pass
        first.lose(CUT)
        with pytest.raises(turnwire.TurnFailed):
            await turn.response()


async def test_a_turn_that_should_end_is_over_with_its_session() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi")
        first = dial.wires[0]
        await first.sent_count(1)
        first.push(*opening(first.sent[0], "resp_1"))
        await turn.started()
        cancelling = asyncio.create_task(turn.cancel())
        await first.sent_count(2)
        first.lose(CUT)
        await cancelling
        with pytest.raises(turnwire.RequestCancelled):
            await turn.response()
    assert sum(len(wire.sent) for wire in dial.wires) == 2


async def test_a_paused_rollout_does_not_begin_again() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Hi", rollout=True, store=False)
        first = dial.wires[0]
        await first.sent_count(1)
        called = call_turn(first.sent[0], "resp_1", call_item("f", "{}"))[:5]
        done = ServerEvent(sequence_number=5, response_done=ResponseDone(response_id="resp_1"))
        first.push(*called, done)
        assert [call.name for call in await turn.paused()] == ["f"]
        first.lose(CUT)
        with pytest.raises(turnwire.OutputLost) as lost:
            await turn.append([])
    assert [item.function_call.name for item in lost.value.items] == ["f"]


async def test_a_turn_that_takes_its_servers_down_is_given_up_in_the_end() -> None:
    dial = MemoryDial()
    settings = replace(AT_ONCE, max_resends=3)
    async with asyncio.timeout(20), recovering(dial, settings) as session:
        turn = session.create("Hi")
        for number in range(1, 5):
            wire = await dial.opened(number)
            await wire.sent_count(1)
            wire.lose(CUT)
        with pytest.raises(turnwire.ConnectionLost):
            await turn.response()


async def test_an_exact_turn_does_not_begin_again_once_anything_was_given_out() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        connection = session._connection
        exact = connection.start(unstored(), "a", None, is_exact=True)
        fresh = connection.start(unstored(), "b", None, is_exact=True)
        first = dial.wires[0]
        await first.sent_count(2)
        first.push(*opening(first.sent[0], "resp_1"), *opening(first.sent[1], "resp_2"))
        await anext(exact)
        await fresh.started()
        first.lose(CUT)
        with pytest.raises(turnwire.ConnectionLost):
            await exact.response()
        await answer(dial, 2, 1, "resp_3", "x")
        assert (await fresh.response()).id == "resp_3"


# Conversations.


async def one_turn(session: Session, dial: MemoryDial, wire: int, number: int, **options: object):
    """Run a turn to its end; return its response."""
    turn = session.create(f"Q{number}", **options)  # type: ignore[arg-type]
    await answer(dial, wire, number, f"resp_{number}", f"A{number}")
    return await turn.response()


async def lose_idle(dial: MemoryDial, session: Session) -> None:
    dial.wires[-1].lose(CUT)
    await until(lambda: session._connection.keeper._link is None)


async def test_a_conversation_that_was_not_stored_is_told_in_full_on_a_new_session() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        await one_turn(session, dial, 1, 1, store=False)
        await one_turn(session, dial, 1, 2, store=False, previous_response_id="resp_1")
        await lose_idle(dial, session)
        turn = session.create(
            "Q3", previous_response_id="resp_2", store=False, instructions="Be brief."
        )
        await answer(dial, 2, 1, "resp_3", "A3")
        assert (await turn.response()).id == "resp_3"
        # From here on the new session has it all.
        turn = session.create("Q4", previous_response_id="resp_3", store=False)
        await answer(dial, 2, 2, "resp_4", "A4")
        await turn.response()
    whole = create(dial, 2, 1)
    assert not whole.HasField("previous_response_id")
    assert whole.instructions == "Be brief."
    assert told(whole) == [
        "user: Q1",
        "assistant: A1",
        "user: Q2",
        "assistant: A2",
        "user: Q3",
    ]
    assert create(dial, 2, 2).previous_response_id == "resp_3"
    assert create(dial, 2, 2).input.text == "Q4"


@pytest.mark.parametrize("is_looked_at", [False, True])
@pytest.mark.parametrize("name", ["grpc", "websocket"])
async def test_a_turn_that_began_again_is_told_in_full_after_the_next_loss(
    name: WireName, is_looked_at: bool
) -> None:
    dial = MemoryDial(name=name)

    async def give(wire: int, number: int, response_id: str, text: str, most: int = 9) -> None:
        opened = await dial.opened(wire)
        await opened.sent_count(number)
        push = opened.push if name == "grpc" else opened.push_text
        push(*text_turn(opened.sent[number - 1], response_id, text)[:most])

    async with asyncio.timeout(20), recovering(dial, replace(AT_ONCE, resume=False)) as session:
        turn = session.create("Q1", store=False)
        await give(1, 1, "resp_1", "A1")
        await turn.response()
        turn = session.create("Q2", previous_response_id="resp_1", store=False)
        await give(1, 2, "resp_2", "lost", most=2)
        await turn.started()
        dial.wires[0].lose(CUT)
        await give(2, 1, "resp_3", "A2")
        if is_looked_at:
            assert [event.response for event in [event async for event in turn]][-1] is not None
        assert (await turn.response()).id == "resp_3"
        await lose_idle(dial, session)
        turn = session.create("Q3", previous_response_id="resp_3", store=False)
        await give(3, 1, "resp_4", "A3")
        await turn.response()
    assert not create(dial, 3, 1).HasField("previous_response_id")
    assert told(create(dial, 3, 1)) == [
        "user: Q1",
        "assistant: A1",
        "user: Q2",
        "assistant: A2",
        "user: Q3",
    ]


async def test_what_becomes_of_a_response_once_the_user_has_it_is_not_told() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        response = await one_turn(session, dial, 1, 1, store=False)
        # In one breath with the end of the turn.
        response.message.output[0].message.role = "changed"
        response.message.output.clear()
        response.message.id = "changed"
        await lose_idle(dial, session)
        turn = session.create("Q2", previous_response_id="resp_1", store=False)
        await answer(dial, 2, 1, "resp_2", "A2")
        await turn.response()
    assert told(create(dial, 2, 1)) == ["user: Q1", "assistant: A1", "user: Q2"]


async def test_a_turn_that_ends_with_its_connection_is_remembered() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Q1", store=False)
        first = dial.wires[0]
        await first.sent_count(1)
        keeper = session._connection.keeper
        events = text_turn(first.sent[0], "resp_1", "A1")
        for event in events:
            keeper._route(Event(event))
        assert keeper._link is not None
        keeper._link.fail(CUT)
        follow = session.create("Q2", previous_response_id="resp_1", store=False)
        await turn.response()
        await answer(dial, 2, 1, "resp_2", "A2")
        await follow.response()
    assert told(create(dial, 2, 1)) == ["user: Q1", "assistant: A1", "user: Q2"]


async def test_a_response_that_is_deleted_as_its_turn_ends_is_not_remembered() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        turn = session.create("Q1", store=False)
        await dial.wires[0].sent_count(1)
        for event in text_turn(dial.wires[0].sent[0], "resp_1", "A1"):
            session._connection.keeper._route(Event(event))
        session._connection.forget("resp_1")
        await turn.response()
        await asyncio.sleep(0)
        assert session._connection._lineage.transcript.find("resp_1") is None


async def test_a_stored_parent_is_named_first_and_told_in_full_when_the_store_is_lost_too() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        await one_turn(session, dial, 1, 1)
        await lose_idle(dial, session)
        turn = session.create("Q2", previous_response_id="resp_1", stream_id="a")
        behind = session.create("Q3", stream_id="a")
        beside = session.create("Q4", stream_id="b")
        second = await dial.opened(2)
        await second.sent_count(2)
        named, other = second.sent
        assert named.response_create.previous_response_id == "resp_1"
        assert other.stream_id == "b"
        second.push(rejected(named, "previous_response_not_found", 400, "previous_response_id"))
        await second.sent_count(3)
        full = second.sent[2]
        assert full.event_id == turn.event_id != named.event_id
        assert told(full.response_create) == ["user: Q1", "assistant: A1", "user: Q2"]
        second.push(*text_turn(full, "resp_2", "A2"), *text_turn(other, "resp_4", "A4"))
        await answer(dial, 2, 4, "resp_3", "A3")
        texts = [(await each.response()).output_text for each in (turn, behind, beside)]
    assert texts == ["A2", "A3", "A4"]


async def test_a_stored_parent_that_is_still_there_lets_its_lane_go_on() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        await one_turn(session, dial, 1, 1)
        await lose_idle(dial, session)
        turns = [session.create("Q2", previous_response_id="resp_1"), session.create("Q3")]
        await answer(dial, 2, 1, "resp_2", "A2")
        await answer(dial, 2, 2, "resp_3", "A3")
        assert [(await turn.response()).id for turn in turns] == ["resp_2", "resp_3"]
    assert create(dial, 2, 1).previous_response_id == "resp_1"


async def test_a_parent_that_is_missing_without_a_loss_is_the_callers_to_know() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        await one_turn(session, dial, 1, 1, store=False)
        turn = session.create("Q2", previous_response_id="resp_1")
        wire = dial.wires[0]
        await wire.sent_count(2)
        wire.push(rejected(wire.sent[1], "previous_response_not_found"))
        with pytest.raises(turnwire.PreviousResponseNotFound):
            await turn.response()


@pytest.mark.parametrize("bound", [0, 30])
async def test_what_is_not_remembered_cannot_be_told(bound: int) -> None:
    dial = MemoryDial()
    async with (
        asyncio.timeout(20),
        recovering(dial, replace(AT_ONCE, transcript_bytes=bound)) as session,
    ):
        await one_turn(session, dial, 1, 1, store=False)
        await lose_idle(dial, session)
        turn = session.create("Q2", previous_response_id="resp_1")
        second = await dial.opened(2)
        await second.sent_count(1)
        assert create(dial, 2, 1).previous_response_id == "resp_1"
        second.push(rejected(second.sent[0], "previous_response_not_found"))
        with pytest.raises(turnwire.PreviousResponseNotFound):
            await turn.response()


async def test_a_deleted_response_is_not_told_again() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        await one_turn(session, dial, 1, 1)
        await one_turn(session, dial, 1, 2, previous_response_id="resp_1")
        await session.delete("resp_2")
        await lose_idle(dial, session)
        turn = session.create("Q3", previous_response_id="resp_2")
        second = await dial.opened(2)
        await second.sent_count(1)
        second.push(rejected(second.sent[0], "previous_response_not_found"))
        with pytest.raises(turnwire.PreviousResponseNotFound):
            await turn.response()
    assert len(second.sent) == 1


async def test_a_turn_that_continues_one_that_is_made_again_waits_for_it() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        first = dial.wires[0]
        parent = session.create("Q1", stream_id="a", store=False)
        await first.sent_count(1)
        first.push(*opening(first.sent[0], "resp_1"))
        child = session.create(
            "Q2", stream_id="b", previous_response_id=await parent.started(), store=False
        )
        await first.sent_count(2)
        first.lose(CUT)
        second = await dial.opened(2)
        await second.sent_count(1)
        assert second.sent[0].stream_id == "a"
        await answer(dial, 2, 1, "resp_9", "A1")
        await answer(dial, 2, 2, "resp_2", "A2")
        assert (await child.response()).id == "resp_2"
        # Who kept the old id may go on using it.
        third = session.create("Q3", previous_response_id="resp_1", store=False)
        await answer(dial, 2, 3, "resp_3", "A3")
        await third.response()
    assert create(dial, 2, 2).previous_response_id == "resp_9"
    assert create(dial, 2, 3).previous_response_id == "resp_9"


async def test_the_rounds_of_a_rollout_are_told_with_what_answered_them() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        wire = dial.wires[0]
        turn = session.create("Q1", rollout=True, store=False)
        await wire.sent_count(1)
        call = call_item("f", "{}", "call_1")
        called = call_turn(wire.sent[0], "resp_1", call)[:5]
        done = ServerEvent(sequence_number=5, response_done=ResponseDone(response_id="resp_1"))
        wire.push(*called, done)
        await turn.paused()
        output = {"type": "function_call_output", "call_id": "call_1", "output": "7"}
        appending = asyncio.create_task(turn.append([output]))
        await wire.sent_count(2)
        end = text_turn(wire.sent[0], "resp_1", "A1")[2:]
        for number, event in enumerate(end, 6):
            event.sequence_number = number
        end[0].response_output_item_added.output_index = 1
        end[-2].response_output_item_done.output_index = 1
        end[-1].response_completed.response.output.insert(0, call)
        wire.push(*end)
        await appending
        await turn.response()
        await lose_idle(dial, session)
        session.create("Q2", previous_response_id="resp_1", store=False)
        await (await dial.opened(2)).sent_count(1)
    assert told(create(dial, 2, 1)) == [
        "user: Q1",
        "function_call",
        "output: 7",
        "assistant: A1",
        "user: Q2",
    ]


async def steered(
    session: Session, wire: MemoryWire, text: str, target: turnwire.Turn
) -> turnwire.Steer:
    """Steer a turn of which three events came."""
    count = len(wire.sent)
    steering = asyncio.create_task(target.steer(text))
    await wire.sent_count(count + 1)
    taken = Steer(id="steer_1", previous_response_id=target.response_id or "")
    wire.push(
        ServerEvent(sequence_number=3, response_steer_accepted=ResponseSteerAccepted(steer=taken))
    )
    return await steering


async def test_messages_that_wait_for_the_next_create_are_not_lost_with_the_session() -> None:
    for is_stored in (False, True):
        dial = MemoryDial()
        async with asyncio.timeout(20), recovering(dial) as session:
            wire = dial.wires[0]
            turn = session.create("Q1", store=is_stored)
            await wire.sent_count(1)
            events = call_turn(wire.sent[0], "resp_1", call_item("f", "{}", "call_1"))
            wire.push(*events[:3])
            await turn.started()
            steer = await steered(session, wire, "Quickly!", turn)
            for number, event in enumerate(events[3:], 4):
                event.sequence_number = number
            body = Steer(id=steer.id, previous_response_id="resp_1")
            pending = ServerEvent(
                sequence_number=7, response_steer_pending=ResponseSteerPending(steer=body)
            )
            wire.push(*events[3:], pending)
            await turn.response()
            assert await steer.successor() is None
            await lose_idle(dial, session)
            output = {"type": "function_call_output", "call_id": "call_1", "output": "7"}
            session.create([output], previous_response_id="resp_1", store=is_stored)
            await (await dial.opened(2)).sent_count(1)
        before = [] if is_stored else ["user: Q1", "function_call"]
        assert told(create(dial, 2, 1)) == [*before, "user: Quickly!", "output: 7"]


async def test_a_steered_turn_does_not_begin_again_without_its_messages() -> None:
    dial = MemoryDial()
    async with asyncio.timeout(20), recovering(dial) as session:
        wire = dial.wires[0]
        turn = session.create("Q1", store=False)
        await wire.sent_count(1)
        wire.push(*text_turn(wire.sent[0], "resp_1", "ab")[:3])
        await turn.started()
        steer = await steered(session, wire, "Quickly!", turn)
        wire.lose(CUT)
        with pytest.raises(turnwire.ConnectionLost):
            await turn.response()
        with pytest.raises(turnwire.ConnectionLost):
            await steer.successor()


# Agent loops.


class ForgetfulServer:
    """Plays runs of three tool calls; what it knows of a conversation dies with the connection."""

    def __init__(self, dial: MemoryDial, cut_after: int) -> None:
        self._dial = dial
        self._cut_after = cut_after
        self._sent = 0
        self._made = 0
        dial.on_open = self._serve

    def _serve(self, wire: MemoryWire) -> None:
        known: dict[str, int] = {}

        def play(event: ClientEvent) -> list[ServerEvent]:
            for answered in self._answer(event, known):
                wire.push(answered)
                self._sent += 1
                if self._sent == self._cut_after:
                    wire.lose(CUT)
                    break
            return []

        wire.script = play

    def _answer(self, event: ClientEvent, known: dict[str, int]) -> list[ServerEvent]:
        create = event.response_create
        parent_id = create.previous_response_id
        if parent_id and parent_id not in known:
            return [rejected(event, "previous_response_not_found")]
        items = create.input.items.items
        outputs = sum(item.WhichOneof("item") == "function_call_output" for item in items)
        outputs += known.get(parent_id, 0)
        self._made += 1
        response_id = f"resp_{self._made}"
        known[response_id] = outputs
        if outputs == 3:
            return text_turn(event, response_id, "Done.")
        return call_turn(
            event, response_id, call_item("look", f'{{"n":{outputs}}}', f"call_{self._made}")
        )


async def test_no_tool_runs_twice_wherever_the_connection_is_cut_without_resume() -> None:
    # Six events for each of three calls, and six for the answer.
    for cut in range(1, 25):
        ran: list[int] = []

        def look(n: int, ran: list[int] = ran) -> str:
            ran.append(n)
            return f"found {n}"

        dial = MemoryDial()
        ForgetfulServer(dial, cut)
        async with asyncio.timeout(20), recovering(dial) as session:
            result = await session.run("Look.", tools=[look])
        assert ran == [0, 1, 2], cut
        assert (result.output_text, len(result.turns)) == ("Done.", 4)
        assert len(dial.wires) == (1 if cut == 24 else 2)
