from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire._codec import dumps
from turnwire.v1.server_event_pb2 import ServerEvent, ServerFrame
from turnwire_server.codec.deltas import DeltaTemplate

KINDS = {
    "response_output_text_delta": "content_index",
    "response_reasoning_text_delta": "content_index",
    "response_reasoning_summary_text_delta": "summary_index",
    "response_refusal_delta": "content_index",
    "response_function_call_arguments_delta": None,
    "response_custom_tool_call_input_delta": None,
}
TRAPS = ['"delta":""', '"sequence_number":0', '\\"', "", "msg_1"]

names = st.text(max_size=300) | st.sampled_from(TRAPS)
numbers = st.integers(0, 2**32 - 1) | st.integers(0, 300)


def event(
    kind: str, item_id: str, output_index: int, index: int, stream_id: str | None
) -> ServerEvent:
    message = ServerEvent(stream_id=stream_id)
    part = getattr(message, kind)
    part.SetInParent()
    part.item_id = item_id
    part.output_index = output_index
    if KINDS[kind]:
        setattr(part, KINDS[kind], index)
    return message


@settings(deadline=None, derandomize=True, database=None, max_examples=300)
@given(st.sampled_from(sorted(KINDS)), names, numbers, numbers, st.none() | names, numbers, names)
def test_a_template_writes_what_the_codec_and_protobuf_write(
    kind: str,
    item_id: str,
    output_index: int,
    index: int,
    stream_id: str | None,
    sequence_number: int,
    text: str,
) -> None:
    template = DeltaTemplate(kind, item_id, output_index, index, stream_id)
    expected = event(kind, item_id, output_index, index, stream_id)
    expected.sequence_number = sequence_number
    getattr(expected, kind).delta = text

    assert template.json(sequence_number, text) == dumps(expected)
    encoded = template.entry(sequence_number, text)
    frame = ServerFrame(events=[expected])
    assert ServerFrame.FromString(encoded) == frame
    assert len(encoded) == frame.ByteSize()


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_serves_many_deltas(kind: str) -> None:
    template = DeltaTemplate(kind, "msg_1", 0, 0, None)

    for number, text in enumerate(["a", "", "삼겹살 😀", 'quote " and \\ and \n', "x" * 20_000]):
        message = event(kind, "msg_1", 0, 0, None)
        message.sequence_number = number
        getattr(message, kind).delta = text
        assert template.json(number, text) == dumps(message)
        assert ServerFrame.FromString(template.entry(number, text)).events[:] == [message]


@pytest.mark.parametrize("number", [0, 127, 128, 16_383, 16_384, 2**21, 2**28, 2**32 - 1])
def test_numbers_and_lengths_of_every_width_are_written(number: int) -> None:
    template = DeltaTemplate("response_output_text_delta", "msg_1", 0, 0, "main")
    length = min(number, 20_000)

    (decoded,) = ServerFrame.FromString(template.entry(number, "x" * length)).events

    assert decoded.sequence_number == number
    assert len(decoded.response_output_text_delta.delta) == length


def test_what_stands_around_a_text_is_kept_for_short_ones_and_few_lengths_of_ids_only() -> None:
    texts = [*range(1000), *range(1000)]
    for ids in range(1, 20):
        template = DeltaTemplate("response_output_text_delta", "m" * ids, 0, 0, "kept")
        for length in texts[:: 1 if ids == 1 else 10]:
            (decoded,) = ServerFrame.FromString(template.entry(1, "x" * length)).events
            assert decoded.response_output_text_delta.item_id == "m" * ids
            assert len(decoded.response_output_text_delta.delta) == length
        assert ids > 1 or len(template._shape.around) == 128

    assert len(template._shape.around) == 256
