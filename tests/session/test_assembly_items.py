"""Items that are not text alone: sealed and summarized reasoning, compactions."""

from __future__ import annotations

from typing import Any

import pytest

from harness.checker import StreamChecker
from harness.session_driver import as_message, new_ids
from turnwire.v1 import item_pb2, response_pb2
from turnwire.v1.response_pb2 import Response
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.session.assembly import ResponseAssembler
from turnwire_server.session.events import Outgoing
from turnwire_server.session.output import ReasoningDelta, TextDelta
from turnwire_server.session.responses import usage_of

USAGE = usage_of(input_tokens=10, output_tokens=3)


class Stream:
    """An assembler whose every event is checked."""

    def __init__(self, **settings: Any) -> None:
        response = Response(
            id="resp_1",
            object="response",
            model="m",
            status=response_pb2.RESPONSE_STATUS_IN_PROGRESS,
        )
        response.created_at.seconds = 1
        self.assembler = ResponseAssembler(response, stream_id=None, new_id=new_ids(), **settings)
        self.checker = StreamChecker()
        self.events: list[ServerEvent] = []
        self.take(self.assembler.begin())

    def take(self, events: list[Outgoing]) -> None:
        for event in events:
            message = as_message(event)
            self.checker.feed(message)
            self.events.append(message)

    @property
    def arms(self) -> list[str]:
        names = [event.WhichOneof("event") or "" for event in self.events]
        return [name.removeprefix("response_") for name in names]

    def complete(self) -> Response:
        self.take(self.assembler.complete(USAGE, completed_at=2))
        return self.events[-1].response_completed.response


def test_reasoning_may_be_shown_as_its_summary() -> None:
    stream = Stream(summarizes_reasoning=True)
    stream.take(stream.assembler.add([ReasoningDelta("a "), ReasoningDelta("b"), TextDelta("c")]))
    response = stream.complete()
    assert stream.arms == [
        "created",
        "in_progress",
        "output_item_added",
        "reasoning_summary_part_added",
        "reasoning_summary_text_delta",
        "reasoning_summary_text_delta",
        "reasoning_summary_text_done",
        "reasoning_summary_part_done",
        "output_item_done",
        "output_item_added",
        "content_part_added",
        "output_text_delta",
        "output_text_done",
        "content_part_done",
        "output_item_done",
        "completed",
    ]
    thought = response.output[0].reasoning
    assert [part.summary_text.text for part in thought.summary] == ["a b"]
    assert not thought.content and not thought.HasField("encrypted_content")


@pytest.mark.parametrize("summarizes", [False, True])
def test_reasoning_is_sealed_when_it_is_whole(summarizes: bool) -> None:
    stream = Stream(summarizes_reasoning=summarizes, seal_reasoning=lambda text: f"<{text}>")
    stream.take(stream.assembler.add([ReasoningDelta("a "), ReasoningDelta("b")]))
    response = stream.complete()
    added = stream.events[2].response_output_item_added.item.reasoning
    assert not added.HasField("encrypted_content")
    assert response.output[0].reasoning.encrypted_content == "<a b>"


def test_a_compaction_is_announced_and_then_given() -> None:
    stream = Stream()
    stream.take(stream.assembler.add_compaction("sealed"))
    stream.take(stream.assembler.add([TextDelta("a")]))
    response = stream.complete()
    assert stream.arms[2:5] == ["output_item_added", "compaction_compacting", "output_item_done"]
    assert response.output[0].compaction.encrypted_content == "sealed"
    assert stream.events[6].response_content_part_added.output_index == 1
    assert [item.WhichOneof("item") for item in response.output] == ["compaction", "message"]


def test_an_answer_without_a_word_behind_a_compaction_is_an_empty_message() -> None:
    stream = Stream()
    stream.take(stream.assembler.add_compaction("sealed"))
    response = stream.complete()
    assert [item.WhichOneof("item") for item in response.output] == ["compaction", "message"]


def test_a_compaction_may_be_all_there_is() -> None:
    stream = Stream()
    stream.take(stream.assembler.add_compaction("sealed"))
    stream.take(stream.assembler.complete_warm_up(USAGE, completed_at=2))
    (item,) = stream.events[-1].response_completed.response.output
    assert item.WhichOneof("item") == "compaction"


def test_an_item_that_nobody_writes_is_added_whole() -> None:
    stream = Stream()
    update = item_pb2.ConfigurationUpdateItem(id="cfg_1", reasoning="{}")
    item = item_pb2.Item(configuration_update=update)
    stream.take(stream.assembler.add_whole(item))
    response = stream.complete()
    assert stream.arms[2:4] == ["output_item_added", "output_item_done"]
    assert response.output[0] == item
