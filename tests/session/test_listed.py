"""Items as the public API lists them."""

from __future__ import annotations

import pytest

from turnwire._codec import parse, to_value
from turnwire.v1 import item_pb2
from turnwire_server.session.listed import listed_item


def listed(value):
    return to_value(listed_item(parse(item_pb2.Item, value)))


@pytest.mark.parametrize(("role", "part"), [("user", "input_text"), ("assistant", "output_text")])
def test_text_becomes_a_part_of_the_kind_that_its_role_has(role, part):
    message = listed({"type": "message", "id": "msg_1", "role": role, "content": "hi"})
    assert message["content"][0]["type"] == part
    assert message["content"][0]["text"] == "hi"
    assert message["status"] == "completed"


@pytest.mark.parametrize(
    "value",
    [
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search"}},
    ],
)
def test_an_item_without_a_status_is_completed(value):
    assert listed(value)["status"] == "completed"


@pytest.mark.parametrize(
    "value",
    [
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "incomplete",
            "content": [{"type": "refusal", "refusal": "no"}],
        },
    ],
)
def test_what_is_whole_is_listed_as_it_is(value):
    item = parse(item_pb2.Item, value)
    assert listed_item(item) is item


def test_a_status_that_is_there_stays_when_text_becomes_a_part():
    given = {"type": "message", "id": "m", "role": "user", "status": "incomplete", "content": "hi"}
    message = listed(given)
    assert message["status"] == "incomplete"
    assert len(message["content"]) == 1
