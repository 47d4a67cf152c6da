from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.checker import StreamChecker
from harness.session_driver import as_message, new_ids
from turnwire.v1 import item_pb2, response_pb2
from turnwire.v1.response_pb2 import Response
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.session.assembly import ResponseAssembler
from turnwire_server.session.events import TERMINAL_ARMS
from turnwire_server.session.output import (
    CallDelta,
    CallEnded,
    CallStarted,
    ReasoningDelta,
    TextDelta,
)
from turnwire_server.session.responses import usage_of

USAGE = usage_of(input_tokens=10, cached_tokens=4, output_tokens=3)


def fresh_response() -> Response:
    response = Response(
        id="resp_1", object="response", model="m", status=response_pb2.RESPONSE_STATUS_IN_PROGRESS
    )
    response.created_at.seconds = 1_800_000_000
    return response


class Stream:
    """An assembler whose every event is checked."""

    def __init__(self, stream_id=None):
        self.assembler = ResponseAssembler(fresh_response(), stream_id=stream_id, new_id=new_ids())
        self.checker = StreamChecker()
        self.events = []
        self.take(self.assembler.begin())

    def take(self, events):
        for event in events:
            message = as_message(event)
            self.checker.feed(message)
            self.events.append(message)

    def say(self, *pieces):
        self.take(self.assembler.add(pieces))
        return self

    def complete(self):
        self.take(self.assembler.complete(USAGE, completed_at=1_800_000_009))
        return self

    @property
    def arms(self):
        return [event.WhichOneof("event").removeprefix("response_") for event in self.events]

    @property
    def last(self):
        event = self.events[-1]
        assert event.WhichOneof("event") in TERMINAL_ARMS
        assert self.checker.is_idle
        return getattr(event, event.WhichOneof("event")).response


def kinds(response):
    return [item.WhichOneof("item") for item in response.output]


def statuses(response):
    return [getattr(item, item.WhichOneof("item")).status for item in response.output]


def test_text_has_the_public_sequence():
    stream = Stream().say(TextDelta("Hel"), TextDelta("lo")).complete()
    assert stream.arms == [
        "created",
        "in_progress",
        "output_item_added",
        "content_part_added",
        "output_text_delta",
        "output_text_delta",
        "output_text_done",
        "content_part_done",
        "output_item_done",
        "completed",
    ]
    assert [event.sequence_number for event in stream.events] == list(range(10))
    added = stream.events[2].response_output_item_added.item.message
    assert (added.role, added.status) == ("assistant", item_pb2.ITEM_STATUS_IN_PROGRESS)
    assert added.content.WhichOneof("value") == "parts"
    assert not added.content.parts.parts
    assert stream.events[3].response_content_part_added.part.output_text.text == ""
    assert stream.events[6].response_output_text_done.text == "Hello"
    (item,) = stream.last.output
    assert item.message.content.parts.parts[0].output_text.text == "Hello"
    assert item.message.id == added.id
    assert item.message.id.startswith("msg_")
    assert stream.last.status == response_pb2.RESPONSE_STATUS_COMPLETED
    assert stream.last.completed_at.seconds == 1_800_000_009
    assert stream.last.usage == USAGE


def test_a_function_call_has_the_public_sequence():
    stream = Stream().say(
        CallStarted("read", namespace="mcp__fs"), CallDelta('{"a"'), CallDelta(":1}"), CallEnded()
    )
    stream.complete()
    assert stream.arms == [
        "created",
        "in_progress",
        "output_item_added",
        "function_call_arguments_delta",
        "function_call_arguments_delta",
        "function_call_arguments_done",
        "output_item_done",
        "completed",
    ]
    added = stream.events[2].response_output_item_added.item.function_call
    assert (added.name, added.namespace, added.arguments) == ("read", "mcp__fs", "")
    done = stream.events[5].response_function_call_arguments_done
    assert (done.name, done.arguments, done.item_id) == ("read", '{"a":1}', added.id)
    (item,) = stream.last.output
    call = item.function_call
    assert call.status == item_pb2.ITEM_STATUS_COMPLETED
    assert (call.id, call.call_id, call.namespace) == (added.id, added.call_id, "mcp__fs")
    assert call.id.startswith("fc_")
    assert call.call_id.startswith("call_")


def test_a_custom_call_has_the_public_sequence():
    stream = Stream().say(CallStarted("exec", custom=True), CallDelta("ls"), CallEnded())
    stream.complete()
    assert stream.arms == [
        "created",
        "in_progress",
        "output_item_added",
        "custom_tool_call_input_delta",
        "custom_tool_call_input_done",
        "output_item_done",
        "completed",
    ]
    call = stream.last.output[0].custom_tool_call
    assert (call.name, call.input) == ("exec", "ls")
    assert call.id.startswith("ctc_")
    assert not call.HasField("namespace")


def test_raw_reasoning_has_the_public_sequence():
    stream = Stream().say(ReasoningDelta("Hm")).complete()
    assert stream.arms == [
        "created",
        "in_progress",
        "output_item_added",
        "content_part_added",
        "reasoning_text_delta",
        "reasoning_text_done",
        "content_part_done",
        "output_item_done",
        "completed",
    ]
    reasoning = stream.last.output[0].reasoning
    assert reasoning.content[0].reasoning_text.text == "Hm"
    assert reasoning.id.startswith("rs_")


def test_reasoning_calls_and_text_are_items_of_their_own_with_their_indices():
    stream = Stream().say(
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        CallStarted("x"),
        CallEnded(),
        CallStarted("y"),
        CallDelta("{}"),
        CallEnded(),
        TextDelta("done"),
    )
    stream.complete()
    assert kinds(stream.last) == ["reasoning", "function_call", "function_call", "message"]
    assert set(statuses(stream.last)) == {item_pb2.ITEM_STATUS_COMPLETED}


def test_text_after_reasoning_after_text_is_a_new_message():
    stream = Stream().say(TextDelta("a"), ReasoningDelta("b"), TextDelta("c")).complete()
    assert kinds(stream.last) == ["message", "reasoning", "message"]


def test_an_answer_without_a_word_is_one_message_with_empty_text():
    stream = Stream().complete()
    assert kinds(stream.last) == ["message"]
    assert stream.last.output[0].message.content.parts.parts[0].output_text.text == ""
    assert stream.last.status == response_pb2.RESPONSE_STATUS_COMPLETED


def test_an_answer_of_reasoning_alone_gets_no_empty_message():
    assert kinds(Stream().say(ReasoningDelta("a")).complete().last) == ["reasoning"]


def test_a_warm_up_completes_without_output():
    stream = Stream()
    stream.take(stream.assembler.complete_warm_up(USAGE, completed_at=7))
    assert stream.arms == ["created", "in_progress", "completed"]
    assert not stream.last.output


def test_a_cut_answer_ends_incomplete_with_the_reason():
    stream = Stream().say(TextDelta("Hel"))
    stream.take(stream.assembler.incomplete("max_output_tokens", USAGE))
    assert stream.arms[-1] == "incomplete"
    assert stream.last.incomplete_details.reason == "max_output_tokens"
    assert statuses(stream.last) == [item_pb2.ITEM_STATUS_INCOMPLETE]


def test_an_end_inside_a_call_is_incomplete_even_if_the_model_stopped():
    stream = Stream().say(CallStarted("x"), CallDelta('{"a')).complete()
    assert stream.arms[-1] == "incomplete"
    assert stream.last.output[0].function_call.arguments == '{"a'
    assert statuses(stream.last) == [item_pb2.ITEM_STATUS_INCOMPLETE]


@pytest.mark.parametrize("next_piece", [TextDelta("so"), ReasoningDelta("hm"), CallStarted("y")])
def test_a_call_that_something_interrupts_is_the_last_item(next_piece):
    stream = Stream().say(CallStarted("x"), CallDelta("{"), next_piece)
    stream.say(CallDelta("}"), CallEnded(), TextDelta("more")).complete()
    assert kinds(stream.last) == ["function_call"]
    assert statuses(stream.last) == [item_pb2.ITEM_STATUS_INCOMPLETE]
    assert stream.last.status == response_pb2.RESPONSE_STATUS_INCOMPLETE


def test_a_cancelled_response_is_incomplete_with_status_cancelled_and_no_details():
    stream = Stream().say(TextDelta("a"), CallStarted("x"), CallDelta("{"))
    stream.take(stream.assembler.cancelled(USAGE))
    assert stream.arms[-1] == "incomplete"
    assert stream.last.status == response_pb2.RESPONSE_STATUS_CANCELLED
    assert not stream.last.HasField("incomplete_details")
    assert statuses(stream.last) == [
        item_pb2.ITEM_STATUS_COMPLETED,
        item_pb2.ITEM_STATUS_INCOMPLETE,
    ]


def test_a_response_may_be_cancelled_before_it_said_anything():
    stream = Stream()
    stream.take(stream.assembler.cancelled(usage_of(input_tokens=10)))
    assert not stream.last.output


def test_a_broken_response_ends_failed_with_all_that_was_said():
    stream = Stream().say(TextDelta("Hel"))
    stream.take(stream.assembler.fail("server_error", "It broke.", USAGE))
    assert stream.arms[-1] == "failed"
    assert (stream.last.error.code, stream.last.error.message) == ("server_error", "It broke.")
    assert statuses(stream.last) == [item_pb2.ITEM_STATUS_INCOMPLETE]
    assert stream.last.usage == USAGE


def test_a_failure_without_usage_says_that_nothing_was_used():
    stream = Stream()
    stream.take(stream.assembler.fail("server_error", "It broke."))
    assert stream.last.usage == usage_of()


def test_an_answer_about_the_response_gets_its_place_in_the_sequence():
    stream = Stream()
    about = ServerEvent()
    stream.assembler.number(about)
    assert about.sequence_number == 2
    assert stream.assembler.add([TextDelta("a")])[0].sequence_number == 3


@pytest.mark.parametrize(
    "end",
    [
        lambda assembler: assembler.complete(USAGE, completed_at=1),
        lambda assembler: assembler.incomplete("max_output_tokens", USAGE),
    ],
)
def test_a_terminal_event_can_be_replaced_by_a_failure_before_it_is_sent(end):
    stream = Stream().say(TextDelta("a"))
    events = end(stream.assembler)
    events[-1] = stream.assembler.fail_instead("server_error", "Not kept.")
    stream.take(events)
    assert stream.last.status == response_pb2.RESPONSE_STATUS_FAILED
    assert stream.last.usage == USAGE
    assert kinds(stream.last) == ["message"]


def test_events_name_their_lane_and_those_of_the_default_lane_none():
    named = Stream("main").say(TextDelta("a")).complete()
    assert {event.stream_id for event in named.events} == {"main"}
    default = Stream().say(TextDelta("a")).complete()
    assert not any(event.HasField("stream_id") for event in default.events)


def test_a_keepalive_takes_a_number_of_the_sequence():
    stream = Stream()
    stream.take(stream.assembler.keepalive())
    stream.say(TextDelta("a"))
    stream.take(stream.assembler.keepalive(as_in_progress=True))
    stream.complete()
    assert stream.arms.count("keepalive") == 1
    assert stream.arms.count("in_progress") == 2


def test_a_keepalive_as_in_progress_shows_no_output():
    stream = Stream().say(CallStarted("x"), CallEnded())
    (event,) = stream.assembler.keepalive(as_in_progress=True)
    assert event.response_in_progress.response.id == "resp_1"
    assert not event.response_in_progress.response.output


def test_an_event_that_was_handed_out_does_not_change_later():
    stream = Stream()
    before = [event.SerializeToString() for event in stream.events]
    stream.say(TextDelta("a")).complete()
    assert [event.SerializeToString() for event in stream.events[:2]] == before


def test_it_is_open_from_its_beginning_to_its_end():
    assembler = ResponseAssembler(fresh_response(), stream_id=None, new_id=new_ids())
    assert not assembler.is_open
    assembler.begin()
    assert assembler.is_open
    assert not assembler.has_output
    assembler.add([TextDelta("a")])
    assert assembler.has_output
    assembler.complete(USAGE, completed_at=1)
    assert not assembler.is_open
    assert assembler.has_output


ENDS = {
    "complete": lambda assembler: assembler.complete(USAGE, completed_at=1),
    "complete_warm_up": lambda assembler: assembler.complete_warm_up(USAGE, completed_at=1),
    "incomplete": lambda assembler: assembler.incomplete("max_output_tokens", USAGE),
    "cancelled": lambda assembler: assembler.cancelled(USAGE),
    "fail": lambda assembler: assembler.fail("server_error", "It broke."),
}
NEXT = {
    **ENDS,
    "begin": lambda assembler: assembler.begin(),
    "add": lambda assembler: assembler.add([TextDelta("late")]),
    "keepalive": lambda assembler: assembler.keepalive(),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("late", NEXT)
def test_nothing_follows_a_terminal_event_and_a_try_changes_nothing(end, late):
    assembler = ResponseAssembler(fresh_response(), stream_id=None, new_id=new_ids())
    assembler.begin()
    ENDS[end](assembler)
    before = assembler.response.SerializeToString()
    with pytest.raises(RuntimeError):
        NEXT[late](assembler)
    assert assembler.response.SerializeToString() == before


@pytest.mark.parametrize("early", [name for name in NEXT if name != "begin"])
def test_nothing_precedes_the_beginning(early):
    assembler = ResponseAssembler(fresh_response(), stream_id=None, new_id=new_ids())
    with pytest.raises(RuntimeError):
        NEXT[early](assembler)
    assert len(assembler.begin()) == 2


@pytest.mark.parametrize("piece", [CallDelta("{"), CallEnded()])
@pytest.mark.parametrize("before", [[], [TextDelta("a")], [CallStarted("x"), CallEnded()]])
def test_a_piece_of_a_call_without_its_start_is_the_parser_s_fault(before, piece):
    stream = Stream().say(*before)
    with pytest.raises(RuntimeError, match="without its start"):
        stream.say(piece)


texts = st.text(min_size=1, max_size=4)
whole_calls = st.builds(
    lambda name, custom, parts: [
        CallStarted(name, custom=custom),
        *map(CallDelta, parts),
        CallEnded(),
    ],
    st.sampled_from(["x", "y"]),
    st.booleans(),
    st.lists(texts, max_size=3),
)
pieces_lists = st.lists(
    st.one_of(
        st.builds(lambda text: [TextDelta(text)], texts),
        st.builds(lambda text: [ReasoningDelta(text)], texts),
        whole_calls,
        st.just([CallStarted("cut"), CallDelta("{")]),
    ),
    max_size=8,
)


@given(pieces_lists, st.sampled_from(sorted(set(ENDS) - {"complete_warm_up"})), st.booleans())
def test_whatever_a_model_says_the_sequence_is_whole(said, end, one_by_one):
    stream = Stream("lane")
    for pieces in said:
        if one_by_one:
            for piece in pieces:
                stream.say(piece)
        else:
            stream.say(*pieces)
    stream.take(ENDS[end](stream.assembler))
    stream.checker.finish()
    assert stream.last.id == "resp_1"
