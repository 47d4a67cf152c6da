from __future__ import annotations

import orjson
import pytest

from turnwire._codec import dumps, to_value
from turnwire.v1 import (
    client_event_pb2,
    content_pb2,
    error_pb2,
    item_pb2,
    response_pb2,
    server_event_pb2,
    tool_pb2,
)

# `protocol.md` 4.4: every member that some client wants to be present, from an empty response.
SUPERSET = {
    "id": "",
    "object": "",
    "created_at": None,
    "completed_at": None,
    "status": None,
    "background": False,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "model": "",
    "output": [],
    "parallel_tool_calls": False,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": "",
    "store": False,
    "temperature": 0.0,
    "text": None,
    "tool_choice": None,
    "tools": [],
    "top_logprobs": 0,
    "top_p": 0.0,
    "truncation": "",
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "usage": None,
    "user": None,
    "metadata": {},
}


def test_a_response_always_has_every_member_that_clients_require() -> None:
    assert to_value(response_pb2.Response()) == SUPERSET


def test_a_whole_response_looks_as_the_api_documents_it() -> None:
    response = response_pb2.Response(
        id="resp_1",
        object="response",
        created_at={"seconds": 1795958591},
        status=response_pb2.RESPONSE_STATUS_IN_PROGRESS,
        model="m",
        parallel_tool_calls=True,
        reasoning=response_pb2.ReasoningConfig(),
        service_tier="default",
        store=True,
        temperature=1.0,
        text=response_pb2.TextConfig(format=response_pb2.TextFormat(text={})),
        tool_choice=tool_pb2.ToolChoice(mode="auto"),
        top_p=1.0,
        truncation="disabled",
    )

    value = orjson.loads(dumps(response))

    assert value == SUPERSET | {
        "id": "resp_1",
        "object": "response",
        "created_at": 1795958591,
        "status": "in_progress",
        "model": "m",
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "top_p": 1.0,
        "truncation": "disabled",
    }
    assert b'"temperature":1.0' in dumps(response)
    assert b'"created_at":1795958591,' in dumps(response)


def test_usage_has_its_details_even_when_they_are_absent() -> None:
    usage = response_pb2.Usage(input_tokens=3, input_tokens_details={}, output_tokens=1)

    assert to_value(usage) == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": None,
        "total_tokens": 0,
    }


def test_an_event_begins_with_its_type_and_its_envelope() -> None:
    event = server_event_pb2.ServerEvent(
        sequence_number=0,
        stream_id="main",
        response_output_text_delta=server_event_pb2.ResponseOutputTextDelta(
            item_id="msg_1", delta="é"
        ),
    )

    assert dumps(event).decode() == (
        '{"type":"response.output_text.delta","sequence_number":0,"stream_id":"main",'
        '"item_id":"msg_1","output_index":0,"content_index":0,"delta":"é","logprobs":[]}'
    )


def test_an_event_of_the_default_lane_has_no_stream_id() -> None:
    assert to_value(server_event_pb2.ServerEvent(sequence_number=4, keepalive={})) == {
        "type": "keepalive",
        "sequence_number": 4,
    }


def test_an_error_frame_is_wrapped_and_has_no_sequence_number_and_no_reason() -> None:
    event = server_event_pb2.ServerEvent(
        stream_id="main",
        event_id="e1",
        error=server_event_pb2.SessionError(
            status=400,
            error=error_pb2.ErrorBody(
                type="invalid_request_error",
                code="previous_response_not_found",
                message="Not found.",
                reason=error_pb2.ERROR_REASON_PREVIOUS_RESPONSE_NOT_FOUND,
            ),
        ),
    )

    assert to_value(event) == {
        "type": "error",
        "stream_id": "main",
        "event_id": "e1",
        "status": 400,
        "error": {
            "type": "invalid_request_error",
            "code": "previous_response_not_found",
            "message": "Not found.",
            "param": None,
        },
    }


def test_an_envelope_without_an_event_has_no_json() -> None:
    with pytest.raises(ValueError, match="without an event"):
        to_value(server_event_pb2.ServerEvent(sequence_number=1))


def test_a_union_without_a_value_is_null() -> None:
    assert to_value(content_pb2.Content()) is None
    assert to_value(item_pb2.MessageItem(role="user"))["content"] is None


def test_content_is_a_string_or_an_array() -> None:
    parts = content_pb2.ContentPartList(
        parts=[content_pb2.ContentPart(input_text={"text": "a"})],
    )

    assert to_value(content_pb2.Content(text="a")) == "a"
    assert to_value(content_pb2.Content(parts=parts)) == [{"type": "input_text", "text": "a"}]
    assert to_value(content_pb2.Content(parts={})) == []


def test_a_conversation_is_an_id_or_an_object_without_type() -> None:
    reference = client_event_pb2.ConversationReference

    assert to_value(reference(id="conv_1")) == "conv_1"
    assert to_value(reference(object={"id": "conv_1"})) == {"id": "conv_1"}


def test_json_text_is_shown_as_the_value_itself() -> None:
    tool = tool_pb2.Tool(function={"name": "f", "parameters": '{"type":"object"}'})

    assert dumps(tool) == (
        b'{"type":"function","name":"f","description":null,"parameters":{"type":"object"},'
        b'"strict":null}'
    )


def test_json_text_that_is_empty_is_null() -> None:
    event = server_event_pb2.ServerEvent(response_shell_call_output_content_done={})

    assert to_value(event)["output"] is None


def test_unknown_members_come_last_and_never_replace_known_ones() -> None:
    item = item_pb2.Item(
        message=item_pb2.MessageItem(role="user", extra_json='{"role":"system","agent":{"a":1}}')
    )

    assert dumps(item) == b'{"type":"message","role":"user","content":null,"agent":{"a":1}}'


def test_a_member_may_have_another_name_than_its_field() -> None:
    assert to_value(item_pb2.FunctionCallItem(is_async=True))["async"] is True


def test_a_status_that_says_nothing_or_is_of_a_newer_version_is_null() -> None:
    assert to_value(item_pb2.MessageItem(status=item_pb2.ITEM_STATUS_UNSPECIFIED))["status"] is None
    assert to_value(item_pb2.MessageItem(status=99))["status"] is None  # type: ignore[arg-type]


def test_empty_lists_of_two_messages_are_not_one_list() -> None:
    first, second = to_value(response_pb2.Response()), to_value(response_pb2.Response())

    first["output"].append("mine")

    assert second["output"] == []


def test_a_map_is_written_in_the_order_of_its_keys_however_it_was_filled() -> None:
    forth, back = client_event_pb2.ResponseCreate(), client_event_pb2.ResponseCreate()
    for key in "abcdefgh":
        forth.metadata[key] = key
    for key in "hgfedcba":
        back.metadata[key] = key
    assert list(to_value(forth)["metadata"]) == list("abcdefgh")
    assert dumps(forth) == dumps(back)
