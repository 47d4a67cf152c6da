from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from turnwire._codec import DecodeError, dumps, loads, parse
from turnwire._codec.decode import _KnownTools
from turnwire._codec.errors import kind_of_json
from turnwire.v1 import client_event_pb2, content_pb2, item_pb2, response_pb2, tool_pb2
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.server_event_pb2 import ServerEvent


def message(content: object) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": content}


def fault(message_type: type[Message], value: object) -> tuple[str, str]:
    with pytest.raises(DecodeError) as caught:
        parse(message_type, value)
    return caught.value.kind, caught.value.path


def test_a_create_becomes_a_message() -> None:
    event = parse(
        ClientEvent,
        {
            "type": "response.create",
            "stream_id": "main",
            "event_id": None,
            "model": "m",
            "store": False,
            "previous_response_id": None,
            "unknown": {"ignored": True},
            "input": [
                {"type": "function_call_output", "call_id": "call_1", "output": "…"},
                message([{"type": "input_text", "text": "Now optimize it."}]),
            ],
            "tools": [],
            "metadata": {"k": "v"},
        },
    )

    assert event == ClientEvent(
        stream_id="main",
        response_create=ResponseCreate(
            model="m",
            store=False,
            input={
                "items": {
                    "items": [
                        {"function_call_output": {"call_id": "call_1", "output": {"text": "…"}}},
                        {
                            "message": {
                                "role": "user",
                                "content": {
                                    "parts": {
                                        "parts": [{"input_text": {"text": "Now optimize it."}}]
                                    }
                                },
                            }
                        },
                    ]
                }
            },
            metadata={"k": "v"},
        ),
    )
    assert not event.HasField("event_id")
    assert not event.response_create.HasField("previous_response_id")


def test_an_item_without_type_is_known_by_its_members() -> None:
    assert parse(item_pb2.Item, {"role": "user", "content": "x"}).WhichOneof("item") == "message"
    assert parse(item_pb2.Item, {"id": "msg_1"}).WhichOneof("item") == "item_reference"
    assert parse(item_pb2.Item, {"id": "m", "role": "user"}).WhichOneof("item") == "message"


def test_null_is_absent_even_for_ids_and_lists() -> None:
    item = parse(item_pb2.Item, {"type": "reasoning", "id": None, "summary": None, "status": None})

    assert item == item_pb2.Item(reasoning={})


def test_unknown_members_of_an_item_are_kept_and_those_of_a_create_are_not() -> None:
    item = parse(item_pb2.Item, message("a") | {"agent": {"agent_name": "/root"}, "n": None})
    create = parse(ResponseCreate, {"client_metadata": {"a": "b"}})

    assert item.message.extra_json == '{"agent":{"agent_name":"/root"},"n":null}'
    assert create == ResponseCreate()


def test_unknown_members_of_tools_inside_a_namespace_come_back() -> None:
    text = (
        b'{"type":"namespace","name":"fs","tools":[{"type":"function","name":"read",'
        b'"description":null,"parameters":{"type":"object","x-hint":[1.0,2]},"strict":null,'
        b'"vendor":{"deep":[{}]}}],"policy":"keep"}'
    )

    assert dumps(loads(tool_pb2.Tool, text)) == text


def test_seconds_may_be_a_float() -> None:
    response = parse(response_pb2.Response, {"created_at": 1795958591.7, "completed_at": 3})

    assert (response.created_at.seconds, response.completed_at.seconds) == (1795958591, 3)
    assert response.created_at.nanos == 0


def test_an_integer_is_a_number_too() -> None:
    assert parse(ResponseCreate, {"temperature": 1}).temperature == 1.0


def test_tuples_are_arrays() -> None:
    assert list(parse(ResponseCreate, {"include": ("a", "b")}).include) == ["a", "b"]


def test_an_event_of_a_newer_server_says_that_its_type_is_unknown() -> None:
    with pytest.raises(DecodeError) as caught:
        loads(ServerEvent, b'{"type":"response.hologram.delta","sequence_number":3}')

    assert caught.value.path == "type"
    assert str(caught.value) == "type: has the unknown value 'response.hologram.delta'"


@pytest.mark.parametrize(
    ("message_type", "value", "kind", "path"),
    [
        (ResponseCreate, 7, "type", ""),
        (ResponseCreate, {"model": 7}, "type", "model"),
        (ResponseCreate, {"input": 7}, "type", "input"),
        (ResponseCreate, {"input": [message(7)]}, "type", "input[0].content"),
        (ResponseCreate, {"input": [message("a"), {"type": "nope"}]}, "value", "input[1].type"),
        (ResponseCreate, {"input": [{"type": 7}]}, "type", "input[0].type"),
        (ResponseCreate, {"input": [{}]}, "missing", "input[0].type"),
        (ResponseCreate, {"input": [7]}, "type", "input[0]"),
        (
            ResponseCreate,
            {"input": [message([{"type": "input_text", "text": 7}])]},
            "type",
            "input[0].content[0].text",
        ),
        (ResponseCreate, {"tools": {}}, "type", "tools"),
        (ResponseCreate, {"tool_choice": []}, "type", "tool_choice"),
        (ResponseCreate, {"store": 1}, "type", "store"),
        (ResponseCreate, {"max_output_tokens": True}, "type", "max_output_tokens"),
        (ResponseCreate, {"max_output_tokens": 1.0}, "type", "max_output_tokens"),
        (ResponseCreate, {"max_output_tokens": -1}, "value", "max_output_tokens"),
        (ResponseCreate, {"max_output_tokens": 2**32}, "value", "max_output_tokens"),
        (ResponseCreate, {"temperature": "1"}, "type", "temperature"),
        (ResponseCreate, {"temperature": False}, "type", "temperature"),
        (ResponseCreate, {"temperature": float("nan")}, "value", "temperature"),
        (ResponseCreate, {"temperature": 10**400}, "value", "temperature"),
        (ResponseCreate, {"metadata": []}, "type", "metadata"),
        (ResponseCreate, {"metadata": {"a": 7}}, "type", "metadata.a"),
        (ResponseCreate, {"metadata": {"k\ud83d": "v"}}, "json", "metadata.k\ud83d"),
        (ResponseCreate, {"model": "emoji \ud83d"}, "json", "model"),
        (ResponseCreate, {"image": "emoji \ud83d"}, "json", "image"),
        (ResponseCreate, {"image": object()}, "json", "image"),
        (ResponseCreate, {"conversation": 7}, "type", "conversation"),
        (ResponseCreate, {"conversation": {"id": 7}}, "type", "conversation.id"),
        (item_pb2.Item, message("a") | {"status": "done"}, "value", "status"),
        (item_pb2.Item, message("a") | {"status": "unspecified"}, "value", "status"),
        (item_pb2.Item, message("a") | {"status": 2}, "type", "status"),
        (content_pb2.Content, {}, "type", ""),
        (response_pb2.Response, {"created_at": "now"}, "type", "created_at"),
        (response_pb2.Response, {"created_at": -1}, "value", "created_at"),
        (ClientEvent, [], "type", ""),
        (ClientEvent, {}, "missing", "type"),
        (ClientEvent, {"type": 7}, "type", "type"),
        (ClientEvent, {"type": "nope"}, "value", "type"),
        (ClientEvent, {"type": "response.cancel", "event_id": 7}, "type", "event_id"),
    ],
)
def test_what_is_wrong_is_told_with_its_exact_path(
    message_type: type[Message], value: object, kind: str, path: str
) -> None:
    assert fault(message_type, value) == (kind, path)


@pytest.mark.parametrize("data", [b"", b"not json", b"[1", b"NaN", b'"\\ud83d"', b'"\xff"', "{"])
def test_what_is_not_json_is_told_with_its_place(data: bytes | str) -> None:
    with pytest.raises(DecodeError, match=r"^is not valid JSON at line 1, column \d+$") as caught:
        loads(ResponseCreate, data)

    assert (caught.value.kind, caught.value.path) == ("json", "")


def test_nesting_is_bounded_in_text_and_in_values() -> None:
    deep: Any = {"type": "function", "name": "f"}
    for _ in range(2_000):
        deep = {"type": "namespace", "name": "n", "tools": [deep]}

    assert fault(tool_pb2.Tool, deep)[0] == "json"
    with pytest.raises(DecodeError):
        loads(tool_pb2.Tool, b"[" * 10_000)


def test_an_error_never_repeats_more_than_a_little_of_the_value() -> None:
    with pytest.raises(DecodeError) as caught:
        parse(ClientEvent, {"type": "x" * 100_000})

    assert len(str(caught.value)) < 200


def test_wrong_types_are_called_by_their_json_names() -> None:
    values = [None, True, "a", 1, 1.5, {}, [], object()]

    assert [kind_of_json(value) for value in values] == [
        "null",
        "a boolean",
        "a string",
        "an integer",
        "a number",
        "an object",
        "an array",
        "something that is not JSON",
    ]


def test_what_a_union_may_be_is_told() -> None:
    expected = {
        content_pb2.Content: "a string or an array",
        tool_pb2.ToolChoice: "a string or an object",
        client_event_pb2.ConversationReference: "a string or an object",
        item_pb2.Item: "an object",
    }
    for message_type, text in expected.items():
        with pytest.raises(DecodeError) as caught:
            parse(message_type, 7)
        assert caught.value.problem == f"expected {text}, but got an integer instead"


def _tools_of(*tools: object) -> ResponseCreate:
    return parse(ResponseCreate, {"tools": list(tools)})


def test_tools_that_come_again_are_the_same_and_nobody_elses() -> None:
    tool = {"type": "function", "name": "known_again", "parameters": {"type": "object"}}
    first = _tools_of(tool)
    expected = first.SerializeToString()
    first.tools[0].function.name = "changed"
    assert _tools_of(tool).SerializeToString() == expected
    tool["name"] = "other"
    assert _tools_of(tool).tools[0].function.name == "other"


def test_tools_are_told_apart_by_their_kinds_of_values_too() -> None:
    assert _tools_of({"type": "function", "name": "kinds", "strict": True}).tools[0].function.strict
    with pytest.raises(DecodeError) as caught:
        _tools_of({"type": "function", "name": "kinds", "strict": 1})
    assert caught.value.path == "tools[0].strict"


@pytest.mark.parametrize("is_within", [False, True])
def test_tools_with_credentials_are_not_remembered(
    monkeypatch: pytest.MonkeyPatch, is_within: bool
) -> None:
    tool: dict[str, Any] = {"type": "mcp", "server_label": "files", "authorization": "SECRET"}
    if is_within:  # No rule allows it, but those come later.
        tool = {"type": "namespace", "name": "n", "tools": [tool]}
    remembered: list[str] = []
    of_list = _KnownTools.__call__

    def watched(known: _KnownTools, value: Any) -> list[Any]:
        decoded = of_list(known, value)
        remembered.append(repr(known._known))
        return decoded

    monkeypatch.setattr(_KnownTools, "__call__", watched)
    for _ in range(2):
        assert "SECRET" in str(_tools_of(tool))
    assert remembered and "SECRET" not in "".join(remembered)


def test_more_tools_than_are_remembered_are_decoded_all_the_same() -> None:
    for number in range(200):
        tool = {"type": "function", "name": f"many_{number}", "description": "x" * (number * 2_000)}
        for _ in range(2):
            assert _tools_of(tool).tools[0].function.name == f"many_{number}"


def test_tools_that_are_no_json_are_told_where() -> None:
    with pytest.raises(DecodeError) as caught:
        _tools_of({"type": "function", "name": object()})
    assert caught.value.path == "tools[0].name"
