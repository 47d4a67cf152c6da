from __future__ import annotations

import asyncio

from harness.client_events import text_turn
from turnwire._event import Event
from turnwire._lineage import Lineage
from turnwire._response import Response
from turnwire._transcript import Transcript
from turnwire._turn_state import TurnState
from turnwire.v1 import response_pb2
from turnwire.v1.client_event_pb2 import ClientEvent, Input, ResponseCreate
from turnwire.v1.server_event_pb2 import ServerEvent


def turn(parent: str | None = None) -> TurnState:
    create = ResponseCreate(previous_response_id=parent, input=Input(text="Hi"))
    event = ClientEvent(event_id="evt_1", response_create=create)
    return TurnState("evt_1", None, 1, 100, event)


def ended(response_id: str, *, instead_of: str | None = None) -> TurnState:
    state = turn()
    if instead_of is not None:
        state.delivery.former_ids.append(instead_of)
    message = response_pb2.Response(id=response_id, status=response_pb2.RESPONSE_STATUS_COMPLETED)
    state.end(Response(message))
    return state


def addressed(lineage: Lineage, parent: str) -> str:
    event = lineage.address(turn(parent))
    assert isinstance(event, ClientEvent)
    return event.response_create.previous_response_id


async def test_a_response_that_took_over_is_named_though_no_session_was_lost() -> None:
    lineage = Lineage(Transcript(1 << 20), is_persistent=True)
    lineage.note(ended("resp_1"))
    assert addressed(lineage, "resp_1") == "resp_1"
    lineage.note(ended("resp_3", instead_of="resp_2"))
    assert addressed(lineage, "resp_2") == "resp_3"
    assert addressed(lineage, "resp_1") == "resp_1"


async def test_what_is_over_is_remembered_after_those_who_wait_for_it_were_woken() -> None:
    lineage = Lineage(Transcript(1 << 20), is_persistent=True)
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    loop.call_soon(lambda: seen.append(len(lineage._transcript)))
    lineage.note(ended("resp_1"))
    loop.call_soon(lambda: seen.append(len(lineage._transcript)))
    await asyncio.sleep(0)
    assert seen == [0, 1]
    lineage.note(ended("resp_2"))
    assert lineage.transcript.find("resp_2") is not None


async def test_nothing_is_kept_for_a_transcript_that_remembers_nothing() -> None:
    lineage = Lineage(Transcript(0), is_persistent=True)
    lineage.note(ended("resp_1"))
    assert not lineage._over


async def test_a_response_that_took_over_is_named_though_nothing_else_is_remembered() -> None:
    lineage = Lineage(Transcript(0), is_persistent=True)
    lineage.note(ended("resp_2", instead_of="resp_1"))
    assert addressed(lineage, "resp_1") == "resp_2"


def late_end(made: list[str]) -> Event:
    """Return a terminal event that notes when its message is made."""

    def make(event: ServerEvent) -> ServerEvent:
        made.append("message")
        return event

    end = text_turn(ClientEvent(), "resp_1", "x")[-1]
    number = end.sequence_number
    return Event.late("response_completed", 1, number, None, None, make, end, "resp_1")


async def test_a_turn_that_took_over_from_a_lost_one_is_remembered_under_both_names() -> None:
    lineage = Lineage(Transcript(1 << 20), is_persistent=True)
    state, end = turn(), late_end([])
    state.delivery.former_ids.append("resp_0")
    state.feed(end)
    lineage.note(state, end)
    for name in ("resp_0", "resp_1"):
        found = lineage.transcript.find(name)
        assert found is not None and len(found.items) == 2


async def test_a_turn_whose_cost_is_asked_for_before_it_is_noted_is_remembered() -> None:
    lineage = Lineage(Transcript(1 << 20), is_persistent=True)
    state, end = turn(), late_end([])
    state.feed(end)
    assert state.stats() is not None  # Another thread may ask right here.
    lineage.note(state, end)
    assert state.stats() is not None
    found = lineage.transcript.find("resp_1")
    assert found is not None and len(found.items) == 2


async def test_who_waits_for_a_turn_is_woken_before_the_message_of_its_end_is_made() -> None:
    made: list[str] = []
    lineage = Lineage(Transcript(1 << 20), is_persistent=True)
    state, end = turn(), late_end(made)
    waiter = state.news.wait()
    waiter.add_done_callback(lambda _: made.append("woken"))
    state.feed(end)
    lineage.note(state, end)
    assert (made, state.response_id, state.is_over) == ([], "resp_1", True)
    await asyncio.sleep(0)
    assert made == ["woken", "message"]
    found = lineage.transcript.find("resp_1")
    assert found is not None and len(found.items) == 2


async def test_what_is_remembered_is_what_the_user_got_and_not_what_he_made_of_it() -> None:
    for through_the_event in (True, False):
        lineage = Lineage(Transcript(1 << 20), is_persistent=True)
        state, end = turn(), late_end([])
        state.feed(end)
        lineage.note(state, end)
        assert isinstance(state.outcome, Response)
        seen = end.whole.response_completed.response if through_the_event else state.outcome.message
        assert seen is not None and seen.output[0].message.role == "assistant"
        seen.output.clear()
        seen.id = "changed"
        found = lineage.transcript.find("resp_1")
        assert found is not None and len(found.items) == 2


async def test_a_response_that_cannot_be_continued_is_not_remembered() -> None:
    lineage = Lineage(Transcript(1 << 20), is_persistent=True)
    state = turn()
    end = text_turn(ClientEvent(), "resp_1", "x")[-1]
    end.response_completed.response.status = response_pb2.RESPONSE_STATUS_FAILED
    event = Event(end)
    state.feed(event)
    lineage.note(state, event)
    assert lineage.transcript.find("resp_1") is None
