from __future__ import annotations

import asyncio

from turnwire._lineage import Lineage
from turnwire._response import Response
from turnwire._transcript import Transcript
from turnwire._turn_state import TurnState
from turnwire.v1 import response_pb2
from turnwire.v1.client_event_pb2 import ClientEvent, Input, ResponseCreate


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
    return lineage.address(turn(parent)).response_create.previous_response_id


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
