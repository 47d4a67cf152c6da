"""A response that pauses for tool outputs, and one that ends after the open item."""

from __future__ import annotations

import pytest

from harness.checker import StreamChecker
from harness.session_driver import as_message, new_ids
from turnwire.v1 import item_pb2, response_pb2
from turnwire.v1.response_pb2 import Response
from turnwire_server.session.assembly import ResponseAssembler
from turnwire_server.session.output import (
    CallDelta,
    CallEnded,
    CallStarted,
    ReasoningDelta,
    TextDelta,
)
from turnwire_server.session.responses import usage_of

USAGE = usage_of(input_tokens=10, output_tokens=3)
CALL = [CallStarted("shell"), CallDelta("{}"), CallEnded()]


class Stream:
    """A response that has begun, and whose every event is checked."""

    def __init__(self) -> None:
        response = Response(
            id="resp_1",
            object="response",
            model="m",
            status=response_pb2.RESPONSE_STATUS_IN_PROGRESS,
        )
        response.created_at.seconds = 1
        self.assembler = ResponseAssembler(response, stream_id="a", new_id=new_ids())
        self.checker = StreamChecker()
        self.arms: list[str] = []
        self.take(self.assembler.begin())

    def take(self, events):
        messages = [as_message(event) for event in events]
        for message in messages:
            self.checker.feed(message)
            self.arms.append(message.WhichOneof("event"))
        return messages[-1] if messages else None

    def say(self, *pieces):
        self.take(self.assembler.add(pieces))

    def pause(self):
        return self.take(self.assembler.pause(USAGE)).response_done

    def complete(self):
        event = self.take(self.assembler.complete(USAGE, completed_at=2))
        self.checker.finish()
        return getattr(event, event.WhichOneof("event")).response


def kinds(response):
    return [item.WhichOneof("item") for item in response.output]


# Pausing.


def test_a_pause_says_what_it_waits_for_and_is_not_terminal():
    stream = Stream()
    stream.say(*CALL, CallStarted("exec", custom=True), CallEnded())
    assert stream.assembler.waits_for_outputs
    done = stream.pause()
    assert done.response_id == "resp_1"
    assert done.usage == USAGE
    function, custom = done.required_input
    assert function.function_call_output.name == "shell"
    assert custom.custom_tool_call_output.name == "exec"
    assert stream.assembler.is_open
    assert not stream.checker.is_idle


def test_a_resumed_response_goes_on_with_its_numbers_and_its_output():
    stream = Stream()
    stream.say(*CALL)
    stream.pause()
    stream.assembler.resume()
    assert not stream.assembler.waits_for_outputs
    stream.say(*CALL)
    assert len(stream.pause().required_input) == 1
    stream.assembler.resume()
    stream.say(TextDelta("done"))
    assert kinds(stream.complete()) == ["function_call", "function_call", "message"]


def test_a_pause_ends_the_text_that_is_open():
    stream = Stream()
    stream.say(*CALL, TextDelta("wait"))
    stream.pause()
    assert stream.arms[-2:] == ["response_output_item_done", "response_done"]


def test_a_resumed_response_without_a_word_gets_an_empty_message_too():
    stream = Stream()
    stream.say(*CALL)
    stream.pause()
    stream.assembler.resume()
    assert kinds(stream.complete()) == ["function_call", "message"]


def test_a_paused_response_shows_signs_of_life():
    stream = Stream()
    stream.say(*CALL)
    stream.pause()
    assert stream.take(stream.assembler.keepalive()).WhichOneof("event") == "keepalive"


def test_a_paused_response_can_end():
    stream = Stream()
    stream.say(*CALL)
    stream.pause()
    event = stream.take(stream.assembler.incomplete("append_timeout", USAGE))
    assert event.response_incomplete.response.incomplete_details.reason == "append_timeout"
    stream.checker.finish()


@pytest.mark.parametrize(
    "early", [lambda a: a.add([TextDelta("x")]), lambda a: a.pause(USAGE), lambda a: a.begin()]
)
def test_a_paused_response_says_nothing(early):
    stream = Stream()
    stream.say(*CALL)
    stream.pause()
    with pytest.raises(RuntimeError):
        early(stream.assembler)


def test_only_a_paused_response_can_be_resumed():
    with pytest.raises(RuntimeError):
        Stream().assembler.resume()


@pytest.mark.parametrize(
    "said",
    [
        [TextDelta("a")],
        [CallStarted("shell"), CallDelta("{")],
        [*CALL, CallStarted("shell")],
        [*CALL, CallStarted("shell"), TextDelta("cut")],
    ],
)
def test_without_whole_calls_alone_it_does_not_wait(said):
    stream = Stream()
    stream.say(*said)
    assert not stream.assembler.waits_for_outputs


# Ending after the open item.


@pytest.mark.parametrize(
    ("before", "same", "other"),
    [
        ([TextDelta("a")], TextDelta("b"), ReasoningDelta("c")),
        ([ReasoningDelta("a")], ReasoningDelta("b"), TextDelta("c")),
        ([TextDelta("a")], TextDelta("b"), CallStarted("shell")),
    ],
)
def test_the_open_item_is_finished_and_no_other_begins(before, same, other):
    stream = Stream()
    stream.say(*before)
    stream.assembler.end_after_item()
    stream.say(same)
    assert not stream.assembler.has_dropped
    stream.say(other, TextDelta("more"))
    assert stream.assembler.has_dropped
    event = stream.take(stream.assembler.incomplete("steered", USAGE))
    (item,) = event.response_incomplete.response.output
    assert getattr(item, item.WhichOneof("item")).status == item_pb2.ITEM_STATUS_COMPLETED


def test_an_open_call_is_finished_and_nothing_was_dropped():
    stream = Stream()
    stream.say(CallStarted("shell"), CallDelta("{"))
    stream.assembler.end_after_item()
    stream.say(CallDelta("}"), CallEnded())
    assert not stream.assembler.has_dropped
    assert kinds(stream.complete()) == ["function_call"]


def test_with_no_item_open_none_begins():
    stream = Stream()
    stream.say(*CALL)
    stream.assembler.end_after_item()
    assert not stream.assembler.has_dropped
    stream.say(TextDelta("late"))
    assert stream.assembler.has_dropped
    assert kinds(stream.complete()) == ["function_call"]


def test_a_resumed_response_may_begin_items_again():
    stream = Stream()
    stream.say(*CALL)
    stream.assembler.end_after_item()
    stream.say(TextDelta("dropped"))
    stream.pause()
    stream.assembler.resume()
    assert not stream.assembler.has_dropped
    stream.say(TextDelta("on"))
    assert kinds(stream.complete()) == ["function_call", "message"]
