from __future__ import annotations

import pytest

from harness.checker import StreamChecker
from harness.session_driver import as_message, new_ids
from turnwire.v1 import item_pb2, response_pb2
from turnwire.v1.response_pb2 import Response
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.session.assembly import ResponseAssembler
from turnwire_server.session.output import (
    CallDelta,
    CallEnded,
    CallStarted,
    ReasoningDelta,
    TextDelta,
)
from turnwire_server.session.replay import is_over, replay
from turnwire_server.session.responses import usage_of

USAGE = usage_of(input_tokens=10, output_tokens=3)
PIECES = [
    ReasoningDelta("so "),
    ReasoningDelta("then"),
    TextDelta("a"),
    TextDelta("b"),
    CallStarted("f", "space"),
    CallDelta('{"x":'),
    CallDelta("1}"),
    CallEnded(),
    CallStarted("g"),
    CallEnded(),
    CallStarted("c", "space", custom=True),
    CallDelta("free"),
    CallEnded(),
    CallStarted("d", custom=True),
    CallEnded(),
]


def assembled(pieces=(), *, timing: bool = False, **settings):
    response = Response(id="resp_1", object="response", model="m", store=True)
    response.status = response_pb2.RESPONSE_STATUS_IN_PROGRESS
    response.created_at.seconds = 1
    assembler = ResponseAssembler(response, stream_id=None, new_id=new_ids(), **settings)
    events = [*assembler.begin(), *assembler.add(pieces)]
    if timing:
        assembler.response.turnwire.event_id = "evt_1"
        assembler.response.turnwire.timing.queue_ms = 1.0
    return assembler, events


def told_again(response: Response) -> list[ServerEvent]:
    """Return the replay, checked against the public sequences."""
    checker = StreamChecker()
    events = [as_message(event) for event in replay(response)]
    for event in events:
        checker.feed(event)
    assert checker.is_idle
    return events


def gist(events):
    """Return the events without numbers, the deltas of a part joined to one."""
    found: list[tuple[str, object]] = []
    for event in events:
        message = as_message(event)
        arm = message.WhichOneof("event") or ""
        body = getattr(message, arm)
        if not arm.endswith("_delta"):
            found.append((arm, body))
        elif found[-1][0] == arm:
            found[-1][1].delta += body.delta  # type: ignore[attr-defined]
        else:
            found.append((arm, body))
    return found


@pytest.mark.parametrize("summary", [False, True])
def test_the_events_are_those_of_the_first_time_but_for_the_size_of_the_deltas(summary):
    assembler, events = assembled(PIECES, summarizes_reasoning=summary)
    events += assembler.complete(USAGE, completed_at=2)
    assert gist(told_again(assembler.response)) == gist(events)


@pytest.mark.parametrize(
    "end",
    [
        lambda assembler: assembler.cancelled(USAGE),
        lambda assembler: assembler.incomplete("max_output_tokens", USAGE),
        lambda assembler: assembler.fail("server_error", "It broke.", USAGE),
    ],
)
def test_every_way_to_end_is_told_as_it_was(end):
    assembler, events = assembled([TextDelta("cut")])
    events += end(assembler)
    assert gist(told_again(assembler.response)) == gist(events)


def test_a_refusal_and_an_empty_answer_are_told_as_they_were():
    for end in (
        lambda assembler: assembler.refuse("No.", USAGE, completed_at=2),
        lambda assembler: assembler.complete(USAGE, completed_at=2),
    ):
        assembler, events = assembled()
        events += end(assembler)
        assert gist(told_again(assembler.response)) == gist(events)


def test_an_item_that_nobody_wrote_piece_by_piece_is_told_whole():
    assembler, _ = assembled()
    whole = item_pb2.Item()
    whole.configuration_update.id = "cu_1"
    assembler.add_whole(whole)
    assembler.complete(USAGE, completed_at=2)
    added, done = [event for event in told_again(assembler.response)[2:-1]][:2]
    assert added.response_output_item_added.item == whole
    assert done.response_output_item_done.item == whole


@pytest.mark.parametrize("kind", ["message", "several parts", "another part", "reasoning"])
def test_an_item_without_exactly_one_text_is_told_whole(kind):
    response, _ = assembled()[0].response, None
    item = response.output.add()
    if kind == "reasoning":
        item.reasoning.id = "rs_1"
    else:
        item.message.id, item.message.role = "msg_1", "assistant"
        item.message.content.parts.SetInParent()
    if kind == "another part":
        item.message.content.parts.parts.add().input_text.text = "a"
    if kind == "several parts":
        item.message.content.parts.parts.add().output_text.text = "a"
        item.message.content.parts.parts.add().output_text.text = "b"
    response.status = response_pb2.RESPONSE_STATUS_COMPLETED
    added, done = replay(response)[2:-1]
    assert isinstance(added, ServerEvent) and isinstance(done, ServerEvent)
    assert added.response_output_item_added.item == item
    assert done.response_output_item_done.item == item


def test_the_beginning_tells_nothing_of_the_end():
    assembler, _ = assembled([TextDelta("x")], timing=True)
    assembler.complete(USAGE, completed_at=2)
    created = told_again(assembler.response)[0].response_created.response
    assert created.status == response_pb2.RESPONSE_STATUS_IN_PROGRESS
    assert not created.output and not created.HasField("usage")
    assert not created.HasField("completed_at")
    assert created.turnwire.event_id == "evt_1" and not created.turnwire.HasField("timing")


@pytest.mark.parametrize(
    ("status", "over"),
    [("QUEUED", False), ("IN_PROGRESS", False), ("COMPLETED", True), ("CANCELLED", True)],
)
def test_a_response_is_over_when_it_no_longer_waits_or_runs(status, over):
    number = response_pb2.ResponseStatus.Value(f"RESPONSE_STATUS_{status}")
    assert is_over(Response(status=number)) is over
