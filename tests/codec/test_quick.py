"""What a quick decoder takes, `parse` takes too, and it comes to the same message."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.messages import examples, message_types, messages
from turnwire._codec import UNUSUAL, DecodeError, dumps, flat_members, is_flat, parse, quick_decoder
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import ResponseOutputTextDelta, ServerEvent

ODD: list[Any] = [None, True, -1, 2**32, 0, 1.5, "", "x", [], [1], ["x"], [None], {}, {"type": "x"}]
RARE = examples(4)


def quick(message_type: type[Message], value: Any) -> Message | None:
    try:
        arguments = quick_decoder(message_type)(value)
    except UNUSUAL:
        return None
    return message_type(**arguments)  # This must not fail.


def spoil(value: Any, data: st.DataObject) -> Any:
    """Put something else in one place of a JSON value."""
    if isinstance(value, dict) and value and data.draw(st.integers(0, 5)):
        key = data.draw(st.sampled_from([*value, "later"]))
        return {**value, key: spoil(value.get(key), data)}
    if isinstance(value, list) and value and data.draw(st.integers(0, 5)):
        place = data.draw(st.integers(0, len(value) - 1))
        return [*value[:place], spoil(value[place], data), *value[place + 1 :]]
    return data.draw(st.sampled_from(ODD))


@pytest.mark.parametrize("message_type", message_types(), ids=lambda t: t.DESCRIPTOR.name)
def test_a_quick_decoder_makes_what_parse_makes_or_nothing(message_type: type[Message]) -> None:
    @(settings(RARE, max_examples=60) if message_type in (ServerEvent, ClientEvent) else RARE)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        message = data.draw(messages(message_type))
        value = orjson.loads(dumps(message))
        assert quick(message_type, value) in (message, None)
        spoiled = spoil(value, data)
        found = quick(message_type, spoiled)
        if found is not None:
            assert parse(message_type, spoiled) == found

    check()


@pytest.mark.parametrize(
    "value",
    [
        {"type": "response.output_text.delta", "delta": "x", "logprobs": []},
        {"type": "response.output_item.added", "item": {"type": "message", "content": []}},
        {"type": "response.output_item.done", "item": {"type": "message", "content": "x"}},
        {"type": "response.created", "response": {"id": "r", "tools": [], "metadata": {"a": "b"}}},
        {"type": "error", "status": 400, "error": {"code": "c", "message": "m"}},
    ],
    ids=lambda value: value["type"],
)
def test_usual_events_are_decoded_quickly(value: dict[str, Any]) -> None:
    assert quick(ServerEvent, value) == parse(ServerEvent, value)


FLAT = flat_members(ResponseOutputTextDelta.DESCRIPTOR) | {"type": str, "sequence_number": int}


@given(st.data())
@RARE
def test_what_is_flat_can_be_parsed(data: st.DataObject) -> None:
    value: Any = {"type": "response.output_text.delta", "sequence_number": 1, "item_id": "msg_1"}
    value |= {"output_index": 0, "content_index": 0, "delta": "é", "logprobs": []}
    assert is_flat(value, FLAT)
    spoiled = {
        **value,
        **data.draw(st.dictionaries(st.sampled_from([*value]), st.sampled_from(ODD))),
    }
    try:
        parse(ServerEvent, {**spoiled, "type": value["type"]})
    except DecodeError:
        assert not is_flat(spoiled, FLAT)
