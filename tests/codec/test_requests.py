from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from google.protobuf.message import Message

from turnwire._codec import parse
from turnwire.v1 import tool_pb2
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.conversation_pb2 import (
    CreateConversationItemsRequest,
    CreateConversationRequest,
    UpdateConversationRequest,
)
from turnwire.v1.responses_service_pb2 import CompactRequest
from turnwire_server.codec.faults import MAX_MESSAGE_CHARS, Fault
from turnwire_server.codec.memo import ToolsMemo
from turnwire_server.codec.requests import (
    RequestDecoder,
    decode_client_event,
    decode_compact,
    decode_conversation,
    decode_conversation_items,
    decode_conversation_update,
    decode_create,
)

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "vendor": 1}


def create(**members: Any) -> bytes:
    return orjson.dumps({"type": "response.create", "model": "m", **members})


def message(content: object, **members: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": content, **members}


def fault_of(decoded: Message | Fault) -> Fault:
    assert isinstance(decoded, Fault)
    return decoded


def create_of(decoded: Message | Fault) -> ResponseCreate:
    assert isinstance(decoded, ClientEvent), decoded
    return decoded.response_create


def test_a_create_is_decoded_with_its_envelope() -> None:
    event = decode_client_event(create(event_id="e1", stream_id="main", input="hi", stream=True))

    assert event == ClientEvent(
        event_id="e1",
        stream_id="main",
        response_create=ResponseCreate(model="m", input={"text": "hi"}, stream=True),
    )


def test_metadata_is_an_object_of_strings() -> None:
    decoded = create_of(decode_client_event(create(metadata={"a": "b", "c": ""})))

    assert dict(decoded.metadata) == {"a": "b", "c": ""}


def test_text_and_bytes_are_the_same() -> None:
    assert decode_client_event(create(input="é").decode()) == decode_client_event(create(input="é"))


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.append", "response_id": "resp_1", "input": []},
        {"type": "response.cancel"},
        {"type": "response.cancel", "response_id": "resp_1", "event_id": "e1"},
        {"type": "response.steer", "previous_response_id": "resp_1", "input": "more"},
        {"type": "response.steer"},
        {"type": "response.inject", "response_id": "resp_1", "input": []},
        {"type": "turnwire.session.start", "resume": True},
        {
            "type": "turnwire.session.resume",
            "session_id": "s",
            "token": "t",
            "last_seen": [{"response_id": "resp_1", "sequence_number": 3}],
        },
    ],
    ids=lambda event: "-".join(event),
)
def test_every_other_client_event_is_decoded(event: dict[str, Any]) -> None:
    assert decode_client_event(orjson.dumps(event)) == parse(ClientEvent, event)


def test_http_bodies_are_decoded_without_type() -> None:
    body = orjson.dumps({"model": "m", "input": "hi", "type": "response.create", "unknown": 1})

    assert decode_create(body) == ResponseCreate(model="m", input={"text": "hi"})
    assert decode_compact(body) == CompactRequest(model="m", input={"text": "hi"})


def test_bodies_of_conversations_are_decoded() -> None:
    item = {"role": "user", "content": "hi"}
    items = orjson.dumps({"items": [item], "metadata": {"a": "b"}, "unknown": 1})

    made = parse(CreateConversationRequest, {"items": [item], "metadata": {"a": "b"}})
    assert decode_conversation(items) == made
    assert decode_conversation(b"") == decode_conversation(b"{}") == CreateConversationRequest()
    added = parse(CreateConversationItemsRequest, {"items": [item]})
    assert decode_conversation_items(items) == added
    assert decode_conversation_update(items) == UpdateConversationRequest(metadata={"a": "b"})
    assert decode_conversation_update(b'{"metadata":null}') == UpdateConversationRequest()


@pytest.mark.parametrize(
    ("decode", "body", "code", "param"),
    [
        (decode_conversation, b"[]", "invalid_json", None),
        (decode_conversation, b'{"items":[{"role":7}]}', "invalid_type", "items[0].role"),
        (decode_conversation_update, b"{}", "missing_required_parameter", "metadata"),
        (decode_conversation_update, b'{"metadata":{"a":1}}', "invalid_type", "metadata.a"),
        (decode_conversation_items, b"{}", "missing_required_parameter", "items"),
        (decode_conversation_items, b"x", "invalid_json", None),
    ],
)
def test_a_bad_body_of_a_conversation_is_one_fault(
    decode: Any, body: bytes, code: str, param: str | None
) -> None:
    fault = decode(body)
    assert isinstance(fault, Fault)
    assert (fault.code, fault.param) == (code, param)


# What clients send back of our own output, with what they leave out or set to null.
@pytest.mark.parametrize(
    "item",
    [
        {"role": "developer", "content": [{"type": "input_text", "text": "x"}]},
        {
            "type": "message",
            "role": "assistant",
            "id": None,
            "status": "completed",
            "content": [{"type": "output_text", "text": "hello", "annotations": []}],
        },
        {
            "type": "message",
            "role": "assistant",
            "status": None,
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "", "annotations": None, "logprobs": None}],
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": [{"type": "input_text", "text": "lenient"}]},
        {"role": "user", "content": [{"type": "text", "text": "older"}], "name": "ann"},
        {"type": "reasoning", "id": None, "summary": []},
        {"type": "reasoning"},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "r"}],
            "encrypted_content": "…",
        },
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}", "id": None},
        {"type": "function_call_output", "call_id": "c", "output": "text"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_image", "image_url": "data:,"}],
        },
        {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "free"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "text"},
        {"type": "compaction", "encrypted_content": "…", "id": "cmp_1"},
        {"type": "compaction_trigger"},
        {"type": "item_reference", "id": "msg_1"},
        {"id": "msg_1"},
        {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]},
    ],
)
def test_items_are_accepted_as_lenient_clients_send_them(item: dict[str, Any]) -> None:
    decoded = create_of(decode_client_event(create(input=[item])))

    assert len(decoded.input.items.items) == 1


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"not json", "invalid_json", None),
        (b"[]", "invalid_json", None),
        (b"7", "invalid_json", None),
        (b'{"type":"response.create","model":NaN}', "invalid_json", None),
        (b'{"type":"response.create","model":"\\ud83d"}', "invalid_json", None),
        (b'{"type":"response.create","model":"\xff"}', "invalid_json", None),
        (b'{"type":"response.create","x":' + b"[" * 10_000, "invalid_json", None),
        (b'{"type":"response.create","x":' + b"9" * 1_000_000 + b"}", "invalid_json", None),
        (b"{}", "missing_required_parameter", "type"),
        (b'{"type":null}', "missing_required_parameter", "type"),
        (b'{"type":7}', "invalid_type", "type"),
        (b'{"type":"nope"}', "unknown_event_type", "type"),
        (create(stream_id=7), "invalid_stream_id", "stream_id"),
        (create(event_id=7), "invalid_type", "event_id"),
        (create(model=7), "invalid_type", "model"),
        (create(input=7), "invalid_type", "input"),
        (create(input=[7]), "invalid_type", "input[0]"),
        (create(input=[{}]), "missing_required_parameter", "input[0].type"),
        (create(input=[{"type": 7}]), "invalid_type", "input[0].type"),
        (create(input=["a", {"type": "nope"}]), "invalid_type", "input[0]"),
        (create(input=[message("a"), {"type": "nope"}]), "invalid_value", "input[1].type"),
        (create(input=[message(7)]), "invalid_type", "input[0].content"),
        (create(input=[message("a", role="robot")]), "invalid_value", "input[0].role"),
        (create(input=[message("a", role=7)]), "invalid_type", "input[0].role"),
        (create(input=[message("a", status="odd")]), "invalid_value", "input[0].status"),
        (
            create(input=[message("a"), message([{"type": "input_text"}])]),
            "missing_required_parameter",
            "input[1].content[0].text",
        ),
        (
            create(input=[message([{"type": "input_text", "text": "a"}, {"type": "video"}])]),
            "invalid_value",
            "input[0].content[1].type",
        ),
        (
            create(input=[{"type": "function_call", "call_id": "c", "name": "n"}]),
            "missing_required_parameter",
            "input[0].arguments",
        ),
        (create(tools={}), "invalid_type", "tools"),
        (create(tools={"a": 1}), "invalid_type", "tools"),
        (create(tools="x"), "invalid_type", "tools"),
        (create(tools=[7]), "invalid_type", "tools[0]"),
        (create(tools=[{"type": "function"}]), "missing_required_parameter", "tools[0].name"),
        (create(tools=[{"type": "laser"}]), "invalid_value", "tools[0].type"),
        (
            create(tools=[FUNCTION, {"type": "function", "name": "f", "parameters": "{}"}]),
            "invalid_type",
            "tools[1].parameters",
        ),
        (
            create(tools=[{"type": "namespace", "name": "n", "tools": [{"type": "namespace"}]}]),
            "invalid_value",
            "tools[0].tools[0].type",
        ),
        (
            create(tools=[{"type": "custom", "name": "c", "format": {"type": "grammar"}}]),
            "missing_required_parameter",
            "tools[0].format.syntax",
        ),
        (create(tool_choice="perhaps"), "invalid_value", "tool_choice"),
        (create(tool_choice=7), "invalid_type", "tool_choice"),
        (
            create(tool_choice={"type": "function"}),
            "missing_required_parameter",
            "tool_choice.name",
        ),
        (create(tool_choice={"type": "laser"}), "invalid_value", "tool_choice.type"),
        (
            create(tool_choice={"type": "allowed_tools", "mode": "auto", "tools": ["f"]}),
            "invalid_type",
            "tool_choice.tools[0]",
        ),
        (create(text={"format": {"type": "yaml"}}), "invalid_value", "text.format.type"),
        (
            create(text={"format": {"type": "json_schema", "name": "n"}}),
            "missing_required_parameter",
            "text.format.schema",
        ),
        (create(max_output_tokens=-1), "invalid_value", "max_output_tokens"),
        (create(max_output_tokens=1.0), "invalid_type", "max_output_tokens"),
        (create(max_output_tokens=True), "invalid_type", "max_output_tokens"),
        (create(temperature="hot"), "invalid_type", "temperature"),
        (create(store="yes"), "invalid_type", "store"),
        (create(metadata={"a": 1}), "invalid_type", "metadata.a"),
        (create(metadata={"a": "b", "c": None}), "missing_required_parameter", "metadata.c"),
        (create(metadata=[]), "invalid_type", "metadata"),
        (create(metadata={str(n): n for n in range(1_000)}), "invalid_type", "metadata.0"),
        (create(metadata={str(n): n for n in range(100_000)}), "invalid_value", "metadata"),
        (create(include="all"), "invalid_type", "include"),
        (create(reasoning=[]), "invalid_type", "reasoning"),
        (b'{"type":"response.append"}', "missing_required_parameter", "response_id"),
        (b'{"type":"turnwire.session.resume"}', "missing_required_parameter", "session_id"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_bad_input_is_one_fault_with_its_code_and_path(
    data: bytes, code: str, param: str | None
) -> None:
    fault = fault_of(decode_client_event(data))

    assert (fault.code, fault.param) == (code, param)
    assert 0 < len(fault.message) <= MAX_MESSAGE_CHARS


@pytest.mark.parametrize("decode", [decode_create, decode_compact])
def test_bad_bodies_are_one_fault(decode: Callable[[bytes], Message | Fault]) -> None:
    assert fault_of(decode(b"{")).code == "invalid_json"
    assert fault_of(decode(b'{"input":[{"role":7}]}')).param == "input[0].role"


def test_a_lane_over_http_is_unsupported() -> None:
    fault = fault_of(decode_create(b'{"model":"m","stream_id":"main"}'))

    assert (fault.code, fault.param) == ("unsupported_parameter", "stream_id")
    assert isinstance(decode_create(b'{"model":"m","stream_id":null}'), ResponseCreate)


def test_a_fault_names_the_event_and_the_lane_that_could_be_read() -> None:
    fault = fault_of(decode_client_event(create(event_id="e1", stream_id="main", input=7)))
    assert (fault.event_id, fault.stream_id) == ("e1", "main")

    fault = fault_of(decode_client_event(create(event_id="e1", stream_id=["main"])))
    assert (fault.event_id, fault.stream_id) == ("e1", None)


@pytest.mark.parametrize(
    ("data", "event_id", "stream_id"),
    [
        (rb'{"event_id":"e1","stream_id":"main","model":"\ud83d"}', "e1", "main"),
        (b'{"event_id":"e1","temperature":Infinity}', "e1", None),
        (rb'{"event_id":"\ud83d","stream_id":7}', None, None),
        (b"[NaN]", None, None),
        (b'{"event_id":"e1","a":' + b"[" * 100_000, None, None),
        (b'{"event_id":"e1","a":NaN,"b":"' + b"x" * 2_000_000 + b'"}', None, None),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_is_not_json_may_still_tell_whose_it_was(
    data: bytes, event_id: str | None, stream_id: str | None
) -> None:
    fault = fault_of(decode_client_event(data))

    assert fault.code == "invalid_json"
    assert (fault.event_id, fault.stream_id) == (event_id, stream_id)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (rb'{"event_id":"\ud83d"}', "surrogate"),
        (rb'{"event_id":"\ude00 hunter2"}', "surrogate"),
        (b"[" * 2000, "nested too deep"),
        (b'{"temperature":NaN}', "NaN"),
        (b'{"temperature": -Infinity}', "NaN"),
        ('{"input":"삶","temperature":Infinity}', "NaN"),
        (b'{"input":"hunter2\xff"}', "not UTF-8"),
        (b'{"input":hunter2NaN}', "column 10."),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_not_json_is_told_by_its_name(data: bytes | str, word: str) -> None:
    fault = fault_of(decode_client_event(data))

    assert fault.code == "invalid_json"
    assert word in fault.message
    assert "hunter2" not in fault.message


def test_an_escaped_pair_of_surrogates_is_a_character() -> None:
    decoded = decode_client_event(rb'{"type":"response.create","input":"\ud83d\ude00"}')

    assert create_of(decoded).input.text == "😀"


def test_members_below_response_are_pointed_out() -> None:
    nested = orjson.dumps({"type": "response.create", "response": {"model": "m", "input": "hi"}})

    fault = fault_of(decode_client_event(nested))

    assert (fault.code, fault.param) == ("missing_required_parameter", "model")
    assert "not below `response`" in fault.message
    assert isinstance(decode_client_event(create(response={"model": "x"})), ClientEvent)


def test_a_missing_model_is_left_to_the_session() -> None:
    assert decode_client_event(b'{"type":"response.create"}') == ClientEvent(response_create={})


@pytest.mark.parametrize("response_id", [7, None, "resp_1"])
def test_an_acknowledgement_is_never_a_fault(response_id: object) -> None:
    data = orjson.dumps({"type": "response.processed", "response_id": response_id, "stream_id": 7})

    decoded = decode_client_event(data)

    assert isinstance(decoded, ClientEvent)
    assert decoded.WhichOneof("event") == "response_processed"
    assert not decoded.HasField("stream_id")


def test_a_thousand_mistakes_and_a_megabyte_make_one_small_fault() -> None:
    data = create(input=[{"role": "user", "content": 7}] * 5_000, extra="x" * 1_000_000)

    fault = fault_of(decode_client_event(data))

    assert fault.param == "input[0].content"
    assert len(fault.message) < 200


@pytest.mark.parametrize(
    "data",
    [
        orjson.dumps({"type": "z" * 100_000}),
        create(input=[{"type": "z" * 100_000}]),
        create(tool_choice="z" * 100_000),
        create(metadata={"z" * 100_000: 7}),
    ],
    ids=["event", "item", "choice", "key"],
)
def test_a_fault_repeats_little_of_what_was_sent(data: bytes) -> None:
    fault = fault_of(decode_client_event(data))

    assert len(fault.message) <= MAX_MESSAGE_CHARS
    assert fault.param is not None
    assert len(fault.param) <= 256
    assert "z" * 300 not in fault.message


def test_a_fault_lists_what_is_supported_without_inner_marks() -> None:
    fault = fault_of(decode_client_event(create(text={"format": {"type": "yaml"}})))

    assert fault.message == (
        "Invalid value for 'text.format.type': 'yaml'. "
        "Supported values are: 'text', 'json_object', 'json_schema'."
    )


def test_nesting_that_cannot_be_written_again_is_refused() -> None:
    deep = b"[" * 400 + b"]" * 400

    tools = b'{"type":"response.create","tools":[{"type":"function","name":"f","x":%b}]}' % deep
    image = b'{"type":"response.create","image":%b}' % deep

    assert (fault_of(decode_client_event(tools)).code) == "invalid_json"
    assert fault_of(decode_client_event(tools)).param == "tools"
    assert (fault_of(decode_client_event(image)).code) == "invalid_json"
    assert fault_of(decode_client_event(image)).param == "image"


def test_the_last_of_two_equal_keys_counts() -> None:
    decoded = decode_client_event(b'{"type":"response.create","model":"a","model":"b"}')

    assert create_of(decoded).model == "b"


USUAL = {
    "instructions": "Be brief.",
    "input": [message("hi"), message([{"type": "input_text", "text": "you"}])],
    "include": ["turnwire.timing"],
    "metadata": {"a": "b"},
    "temperature": 0.5,
    "store": False,
    "previous_response_id": "resp_1",
    "event_id": "e1",
    "stream_id": "main",
    "top_p": None,
}


def test_a_usual_create_is_decoded_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parse(ClientEvent, orjson.loads(create(**USUAL)))
    monkeypatch.setattr(
        "turnwire_server.codec.requests.parse", lambda *_: pytest.fail("the long way")
    )

    assert decode_client_event(create(**USUAL)) == expected


@pytest.mark.parametrize(
    "unusual",
    [
        {"text": {"format": {"type": "text"}}},
        {"input": [message("hi", vendor=1)]},
        {"temperature": 1},
        {"vendor": {"a": 1}},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
    ],
    ids=str,
)
def test_an_unusual_create_comes_to_what_parse_makes_of_it(unusual: dict[str, Any]) -> None:
    data = create(**USUAL | unusual)

    assert decode_client_event(data) == parse(ClientEvent, orjson.loads(data))


def test_tools_seen_before_are_the_same_and_are_not_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = RequestDecoder()
    data = create(input="hi", tools=[FUNCTION, {"type": "custom", "name": "c"}])
    first = decoder.client_event(data)
    monkeypatch.setattr(
        "turnwire_server.codec.shapes.ToolList.model_validate", lambda _: pytest.fail("checked")
    )

    second = decoder.client_event(data)
    body = decoder.create(data)

    assert second == first
    assert body == create_of(first)
    assert create_of(first).tools[0].function.extra_json == '{"vendor":1}'
    assert first == parse(ClientEvent, orjson.loads(data))


def test_a_fault_beside_known_tools_is_still_found() -> None:
    decoder = RequestDecoder()

    assert isinstance(decoder.client_event(create(tools=[FUNCTION])), ClientEvent)
    fault = fault_of(decoder.client_event(create(tools=[FUNCTION], input=7, event_id="e")))
    assert (fault.param, fault.event_id) == ("input", "e")
    assert fault_of(decoder.create(create(tools=[FUNCTION], store=7))).param == "store"


def test_tools_with_credentials_are_not_remembered() -> None:
    decoder = RequestDecoder()
    mcp = {"type": "mcp", "server_label": "files", "server_url": "u", "authorization": "SECRET"}
    data = create(tools=[{**FUNCTION, "description": "x" * 2_000}, mcp])
    for _ in range(3):
        assert create_of(decoder.client_event(data)).tools[1].mcp.authorization == "SECRET"
    assert not len(decoder._memo) and not len(decoder._texts)


def test_bad_tools_are_not_remembered() -> None:
    memo = ToolsMemo()
    decoder = RequestDecoder(memo)

    fault = fault_of(decoder.client_event(create(tools=[{"type": "function"}], event_id="e")))

    assert (fault.param, fault.event_id, len(memo)) == ("tools[0].name", "e", 0)


def test_tools_of_the_right_shape_that_no_message_can_hold_are_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No such tools are known; should a shape ever be wider than its message, this is the answer.
    monkeypatch.setattr("turnwire_server.codec.shapes.ToolList.model_validate", lambda _: None)

    fault = fault_of(RequestDecoder().client_event(create(tools=[{"type": "laser"}])))

    assert (fault.code, fault.param) == ("invalid_value", "tools[0].type")
    assert fault.message == "Invalid 'tools[0].type': it has the unknown value 'laser'."


def test_decoded_tools_belong_to_one_request() -> None:
    decoder = RequestDecoder()
    data = create(tools=[FUNCTION])

    create_of(decoder.client_event(data)).tools[0].function.name = "changed"

    tool = create_of(decoder.client_event(data)).tools[0]
    assert tool == tool_pb2.Tool(
        function={"name": "f", "parameters": '{"type":"object"}', "extra_json": '{"vendor":1}'}
    )


def test_an_input_with_more_items_than_any_is_allowed_is_refused_before_they_are_read() -> None:
    many = [{"role": "user", "content": 7}] * 10_001

    fault = fault_of(RequestDecoder().client_event(create(input=many, event_id="e")))

    assert (fault.code, fault.param, fault.event_id) == ("invalid_value", "input", "e")
