"""Bad input of every kind: one clear error, and the connection lives."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson
import pytest

from harness.peers import HttpPeer, Peer, WebSocketPeer, create_of, message_of
from harness.reading import arm_of, code_of, failure_of, response_of, status_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import CUSTOM, SHELL, WEATHER, function, user
from turnwire_server.adapters.engines.sim import SimSettings

INVALID = ("invalid_value", 400)
MISSING = ("missing_required_parameter", 400)
TYPE = ("invalid_type", 400)
UNSUPPORTED = ("unsupported_parameter", 400)
UNSUPPORTED_VALUE = ("unsupported_value", 400)


class Row(NamedTuple):
    """What is sent, and what must come back."""

    name: str
    members: dict[str, Any]
    code: tuple[str, int]
    param: str | None


def _rows(*rows: Row) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in rows])


async def _still_works(peer: Peer) -> None:
    events = await peer.turn(input="Still there?")
    assert status_of(response_of(events)) == "completed"


async def _refused(peer: Peer, row: Row) -> None:
    # A message has `item` types as arms and cannot say what it does not know.
    (error,) = await peer.turn({"input": "Hi", **row.members})
    assert failure_of(error) == (*row.code, row.param)
    await _still_works(peer)


_PART = {"type": "input_text", "text": "x"}
_IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,"}
_CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
_OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "x"}


@requirement("errors.settings")
@_rows(
    Row("model missing", {"model": None}, MISSING, "model"),
    Row("model empty", {"model": ""}, MISSING, "model"),
    Row("model unknown", {"model": "nope"}, ("model_not_found", 404), "model"),
    Row(
        "conversation and parent",
        {"conversation": "conv_1", "previous_response_id": "resp_1"},
        INVALID,
        "conversation",
    ),
    Row("prompt", {"prompt": {"id": "pmpt_1"}}, INVALID, "prompt.id"),
    Row("multi_agent", {"multi_agent": {"enabled": True}}, UNSUPPORTED, "multi_agent"),
    Row(
        "compaction",
        {"context_management": [{"type": "compaction", "compact_threshold": 999}]},
        INVALID,
        "context_management[0].compact_threshold",
    ),
    Row("temperature", {"temperature": 2.5}, INVALID, "temperature"),
    Row("top_p", {"top_p": -0.1}, INVALID, "top_p"),
    Row("presence_penalty", {"presence_penalty": 3}, INVALID, "presence_penalty"),
    Row("frequency_penalty", {"frequency_penalty": -3}, INVALID, "frequency_penalty"),
    Row("top_logprobs", {"top_logprobs": 21}, INVALID, "top_logprobs"),
    Row("max_output_tokens", {"max_output_tokens": 0}, INVALID, "max_output_tokens"),
    Row("max_tool_calls", {"max_tool_calls": 0}, INVALID, "max_tool_calls"),
    Row("truncation", {"truncation": "some"}, INVALID, "truncation"),
    Row("service_tier", {"service_tier": "gold"}, INVALID, "service_tier"),
    Row("effort", {"reasoning": {"effort": "huge"}}, INVALID, "reasoning.effort"),
    Row("summary", {"reasoning": {"summary": "long"}}, INVALID, "reasoning.summary"),
    Row("verbosity", {"text": {"verbosity": "max"}}, INVALID, "text.verbosity"),
    Row("include", {"include": ["turnwire.timing", "all"]}, INVALID, "include[1]"),
    Row("metadata pairs", {"metadata": {str(n): "" for n in range(17)}}, INVALID, "metadata"),
    Row("metadata key", {"metadata": {"k" * 65: ""}}, INVALID, "metadata"),
    Row("metadata value", {"metadata": {"k": "v" * 513}}, INVALID, "metadata.k"),
    Row(
        "format name",
        {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
        INVALID,
        "text.format.name",
    ),
    Row(
        "format that allows nothing",
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "zzz"}}}},
        INVALID,
        "text.format.schema",
    ),
    Row("model name too long", {"model": "m" * 257}, ("model_not_found", 404), "model"),
    Row(
        "parent empty",
        {"previous_response_id": ""},
        ("previous_response_not_found", 400),
        "previous_response_id",
    ),
)
async def test_a_bad_setting_is_one_error(connect: Connect, row: Row) -> None:
    await _refused(await connect(), row)


@requirement("errors.items")
@_rows(
    Row("empty text", {"input": ""}, MISSING, "input"),
    Row("no input", {"input": []}, MISSING, "input"),
    Row("too many items", {"input": [user("x")] * 10_001}, INVALID, "input"),
    Row(
        "more bytes than any context holds",
        {"input": "x" * (32 * 131_072)},
        ("context_length_exceeded", 400),
        "input",
    ),
    Row("empty content", {"input": [user("")]}, INVALID, "input[0].content"),
    Row("content missing", {"input": [{"role": "user"}]}, MISSING, "input[0].content"),
    Row(
        "content null",
        {"input": [{"role": "user", "content": None}]},
        MISSING,
        "input[0].content",
    ),
    Row(
        "text missing",
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        MISSING,
        "input[0].content[0].text",
    ),
    Row("no parts", {"input": [{"role": "user", "content": []}]}, INVALID, "input[0].content"),
    Row(
        "image without a byte",
        {"input": [{"role": "user", "content": [_PART, _IMAGE]}]},
        INVALID,
        "input[0].content[1].image_url",
    ),
    Row(
        "file",
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        UNSUPPORTED_VALUE,
        "input[0].content[0]",
    ),
    Row(
        "output_text of a user",
        {"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]},
        INVALID,
        "input[0].content[0]",
    ),
    Row(
        "reference",
        {"input": [{"type": "item_reference", "id": "msg_x"}]},
        ("item_not_found", 404),
        "input[0].id",
    ),
    Row(
        "call_id of an output missing",
        {"input": [{**_OUTPUT, "call_id": ""}]},
        MISSING,
        "input[0].call_id",
    ),
    Row(
        "name of a call missing",
        {"input": [{**_CALL, "name": ""}, _OUTPUT]},
        MISSING,
        "input[0].name",
    ),
    Row("output without its call", {"input": [user("x"), _OUTPUT]}, INVALID, "input"),
    Row("call without its output", {"input": [_CALL, user("x")]}, INVALID, "input"),
    Row(
        "output of another kind",
        {"input": [_CALL, {**_OUTPUT, "type": "custom_tool_call_output"}]},
        INVALID,
        "input",
    ),
    Row(
        "uploaded image in an output",
        {"input": [_CALL, {**_OUTPUT, "output": [{"type": "input_image", "file_id": "f"}]}]},
        UNSUPPORTED_VALUE,
        "input[1].output[0].file_id",
    ),
    Row("second fault", {"input": [user("x"), user(""), user("")]}, INVALID, "input[1].content"),
)
async def test_a_bad_item_is_one_error_with_its_exact_path(connect: Connect, row: Row) -> None:
    await _refused(await connect(), row)


@requirement("errors.items_unsupported")
@pytest.mark.parametrize(
    "item",
    [
        {"type": "computer_call", "id": "x", "call_id": "c", "status": "completed"},
        {"type": "computer_call_output", "call_id": "c", "output": {}},
    ],
    ids=lambda item: item["type"],
)
async def test_an_item_that_is_known_and_not_supported_is_named(
    connect: Connect, item: dict[str, Any]
) -> None:
    row = Row("", {"input": [user("x"), item]}, UNSUPPORTED_VALUE, "input[1].type")
    await _refused(await connect(), row)


@requirement("errors.tools")
@_rows(
    Row("name missing", {"tools": [function("")]}, MISSING, "tools[0].name"),
    Row("name bad", {"tools": [SHELL, function("a b")]}, INVALID, "tools[1].name"),
    Row("name long", {"tools": [function("a" * 129)]}, INVALID, "tools[0].name"),
    Row("twice", {"tools": [SHELL, WEATHER, SHELL]}, INVALID, "tools[2].name"),
    Row(
        "forced and impossible",
        {
            "tools": [SHELL, {**function("f"), "parameters": {"$ref": "#/nope"}}],
            "tool_choice": {"type": "function", "name": "f"},
        },
        INVALID,
        "tools[1].parameters",
    ),
    Row(
        "grammar",
        {"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "yacc", "definition": "x"}}]},
        INVALID,
        "tools[0].format.syntax",
    ),
    Row(
        "namespace in a namespace",
        {
            "tools": [
                {
                    "type": "namespace",
                    "name": "n",
                    "description": "",
                    "tools": [{"type": "web_search"}],
                }
            ]
        },
        INVALID,
        "tools[0].tools[0].type",
    ),
    Row(
        "namespace name",
        {"tools": [{"type": "namespace", "name": "a.b", "description": "", "tools": []}]},
        INVALID,
        "tools[0].name",
    ),
    Row(
        "additional tools",
        {
            "input": [
                user("x"),
                {"type": "additional_tools", "role": "developer", "tools": [function("a b")]},
            ]
        },
        INVALID,
        "input[1].tools[0].name",
    ),
)
async def test_a_bad_tool_is_one_error_with_its_exact_path(connect: Connect, row: Row) -> None:
    await _refused(await connect(), row)


def _choice(choice: Any, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"tool_choice": choice, "tools": list(tools)}


@requirement("errors.tool_choice")
@_rows(
    Row("mode", _choice("always", SHELL), INVALID, "tool_choice"),
    Row("required without tools", _choice("required"), INVALID, "tool_choice"),
    Row(
        "required with hosted tools",
        _choice("required", {"type": "web_search"}),
        INVALID,
        "tool_choice",
    ),
    Row(
        "unknown function",
        _choice({"type": "function", "name": "nope"}, SHELL),
        INVALID,
        "tool_choice.name",
    ),
    Row(
        "function that is custom",
        _choice({"type": "function", "name": "apply"}, CUSTOM),
        INVALID,
        "tool_choice.name",
    ),
    Row(
        "unknown custom",
        _choice({"type": "custom", "name": "exec_command"}, SHELL),
        INVALID,
        "tool_choice.name",
    ),
    Row(
        "named without tools",
        _choice({"type": "function", "name": "f"}),
        INVALID,
        "tool_choice.name",
    ),
    Row("hosted", _choice({"type": "web_search"}, SHELL), UNSUPPORTED_VALUE, "tool_choice.type"),
    Row(
        "mcp",
        _choice({"type": "mcp", "server_label": "s"}, SHELL),
        UNSUPPORTED_VALUE,
        "tool_choice.type",
    ),
    Row(
        "allowed: mode",
        _choice(
            {
                "type": "allowed_tools",
                "mode": "none",
                "tools": [{"type": "function", "name": "exec_command"}],
            },
            SHELL,
        ),
        INVALID,
        "tool_choice.mode",
    ),
    Row(
        "allowed: unknown",
        _choice(
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [
                    {"type": "function", "name": "exec_command"},
                    {"type": "function", "name": "nope"},
                ],
            },
            SHELL,
        ),
        INVALID,
        "tool_choice.tools[1].name",
    ),
    Row(
        "allowed: none",
        _choice({"type": "allowed_tools", "mode": "auto", "tools": []}, SHELL),
        INVALID,
        "tool_choice.tools",
    ),
)
async def test_a_bad_tool_choice_is_one_error(connect: Connect, row: Row) -> None:
    await _refused(await connect(), row)


@requirement("errors.http_only")
@_rows(
    Row("stream_id", {"stream_id": "a"}, UNSUPPORTED, "stream_id"),
    Row("generate", {"generate": True}, UNSUPPORTED, "generate"),
    Row("warm-up", {"generate": False}, UNSUPPORTED, "generate"),
    Row("rollout", {"rollout": True}, UNSUPPORTED, "rollout"),
)
async def test_what_needs_a_connection_is_refused_over_http(connect: Connect, row: Row) -> None:
    peer = await connect()
    await peer.create({"input": "Hi", **row.members})
    assert failure_of(await peer.receive()) == (*row.code, row.param)
    await _still_works(peer)


@requirement("errors.background")
async def test_a_response_in_the_background_needs_a_request_of_its_own(connect: Connect) -> None:
    await _refused(await connect(), Row("", {"background": True}, UNSUPPORTED, "background"))


@requirement("errors.lane_names")
@pytest.mark.parametrize(
    "name", ["", "a b", "é", "x" * 257, "a/b"], ids=["empty", "space", "accent", "long", "slash"]
)
async def test_a_bad_lane_name_is_refused_without_it(connect: Connect, name: str) -> None:
    peer = await connect()
    await peer.create(input="Hi", stream_id=name)
    error = await peer.receive()
    assert failure_of(error) == ("invalid_stream_id", 400, "stream_id")
    assert not error.HasField("stream_id")
    longest = "Az0_.-" * 42 + "Az0_"
    assert status_of(response_of(await peer.turn(input="Hi", stream_id=longest))) == "completed"


@requirement("errors.lane_order")
async def test_a_refused_create_is_answered_when_its_turn_comes(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("first", after_steps=1)
    await peer.create(input="first")
    response_id = await stack.engine.held(hold)
    await peer.create(input="x", temperature=9)
    await peer.create(input="x", previous_response_id="resp_missing")
    await peer.create(input="third")
    stack.engine.release(hold)
    assert response_of(await peer.finish()).id == response_id
    assert code_of((await peer.finish())[0]) == "invalid_value"
    assert code_of((await peer.finish())[0]) == "previous_response_not_found"
    assert status_of(response_of(await peer.finish())) == "completed"


@requirement("errors.context")
async def test_an_input_beyond_the_context_is_refused(connect: Connect) -> None:
    connect.parts.sim = SimSettings(context_length=64)
    peer = await connect()
    (error,) = await peer.turn(input="word " * 100)
    assert failure_of(error) == ("context_length_exceeded", 400, "input")
    events = await peer.turn(input="Talk", metadata={"turnwire.sim": '{"tokens": 500}'})
    assert response_of(events).incomplete_details.reason == "max_output_tokens"
    assert response_of(events).usage.total_tokens == 64


@requirement("errors.shape")
@_rows(
    Row("input", {"input": 7}, TYPE, "input"),
    Row("input item", {"input": [7]}, TYPE, "input[0]"),
    Row("item type", {"input": [{"type": "nope"}]}, INVALID, "input[0].type"),
    Row("item without type", {"input": [{"foo": 1}]}, MISSING, "input[0].type"),
    Row("role", {"input": [{"role": "robot", "content": "x"}]}, INVALID, "input[0].role"),
    Row("content", {"input": [{"role": "user", "content": 7}]}, TYPE, "input[0].content"),
    Row(
        "part type",
        {"input": [{"role": "user", "content": [{"type": "input_smell"}]}]},
        INVALID,
        "input[0].content[0].type",
    ),
    Row("store", {"store": "yes"}, TYPE, "store"),
    Row("temperature", {"temperature": "hot"}, TYPE, "temperature"),
    Row("max_output_tokens", {"max_output_tokens": 1.5}, TYPE, "max_output_tokens"),
    Row("max_output_tokens negative", {"max_output_tokens": -1}, INVALID, "max_output_tokens"),
    Row("metadata", {"metadata": {"k": 1}}, TYPE, "metadata.k"),
    Row("tools", {"tools": {}}, TYPE, "tools"),
    Row("tool type", {"tools": [{"type": "magic"}]}, INVALID, "tools[0].type"),
    Row("tool name", {"tools": [{"type": "function"}]}, MISSING, "tools[0].name"),
    Row(
        "tool parameters",
        {"tools": [{"type": "function", "name": "f", "parameters": 7}]},
        TYPE,
        "tools[0].parameters",
    ),
    Row("include", {"include": "turnwire.timing"}, TYPE, "include"),
    Row("previous_response_id", {"previous_response_id": 7}, TYPE, "previous_response_id"),
)
async def test_json_of_a_wrong_shape_is_one_error_with_its_exact_path(
    connect: Connect, row: Row
) -> None:
    await _refused(await connect(), row)


@requirement("errors.nothing_asked")
@_rows(
    Row(
        "nulls",
        {
            "previous_response_id": None,
            "tools": None,
            "metadata": None,
            "instructions": None,
            "stream_options": None,
            "background": None,
        },
        INVALID,
        "",
    ),
    Row(
        "what other clients send",
        {
            "stream": True,
            "stream_options": {"include_obfuscation": True},
            "background": False,
            "client_metadata": {"a": "b"},
            "include": ["reasoning.encrypted_content"],
        },
        INVALID,
        "",
    ),
    Row("unknown members", {"brand_new_setting": {"x": [1]}}, INVALID, ""),
    Row("auto without tools", {"tool_choice": "auto", "tools": []}, INVALID, ""),
    Row("none without tools", {"tool_choice": "none"}, INVALID, ""),
    Row("sampling", {"temperature": 0, "top_p": 1, "presence_penalty": -2}, INVALID, ""),
)
async def test_what_asks_for_nothing_special_is_accepted(connect: Connect, row: Row) -> None:
    peer = await connect()
    events = await peer.turn({"input": "Hi", **row.members})
    assert status_of(response_of(events)) == "completed"


async def _raw(peer: Peer, data: bytes) -> None:
    if isinstance(peer, WebSocketPeer):
        await peer.send_raw(data)
    else:
        assert isinstance(peer, HttpPeer)
        await peer.post(data)


_DEEP = b'{"type":"response.create","model":"sim","stream":true,"input":%s}' % (
    b"[" * 10_000 + b"]" * 10_000
)


@requirement("errors.json")
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"not json", id="not JSON"),
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="array"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"type":"response.create"', id="cut"),
        pytest.param(b'{"type":"response.create","input":NaN}', id="NaN"),
        pytest.param(_DEEP, id="deep"),
        pytest.param(
            b'{"type":"response.create","model":"sim","input":"emoji \\ud83d"}', id="surrogate"
        ),
    ],
)
async def test_what_is_no_json_object_is_one_error(connect: Connect, data: bytes) -> None:
    peer = await connect()
    await _raw(peer, data)
    assert failure_of(await peer.receive())[:2] == ("invalid_json", 400)
    await _still_works(peer)


@requirement("errors.surrogates")
async def test_a_paired_escape_is_a_character(connect: Connect) -> None:
    peer = await connect()
    body = create_of({"input": "ESCAPED", "stream": True})
    await _raw(peer, orjson.dumps(body).replace(b"ESCAPED", rb"\ud83d\ude00"))
    assert status_of(response_of(await peer.finish())) == "completed"
    assert connect.stack.engine.requests[0].outline.last_user_text == "😀"


@requirement("errors.bounded")
async def test_an_error_is_small_whatever_was_sent(connect: Connect) -> None:
    peer = await connect()
    bad = [{"role": "user", "content": 7}] * 5_000
    (error,) = await peer.turn(input=[*bad, user("x" * 1_000_000)])
    assert failure_of(error) == (*TYPE, "input[0].content")
    assert error.ByteSize() < 4_096
    (error,) = await peer.turn(input=[{"type": "y" * 1_000_000}])
    assert error.ByteSize() < 4_096
    await _still_works(peer)


@requirement("errors.labels_bounded")
async def test_names_of_events_are_not_sent_back_without_a_bound(connect: Connect) -> None:
    peer = await connect()
    await peer.create(input="Hi", event_id="e" * 100_000)
    error = await peer.receive()
    assert failure_of(error) == (*INVALID, "event_id")
    assert error.ByteSize() < 4_096
    await _still_works(peer)


@requirement("errors.event_types")
@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        pytest.param({"type": "nope"}, "unknown_event_type", "type", id="unknown"),
        pytest.param({}, "missing_required_parameter", "type", id="missing"),
        pytest.param({"type": 7}, "invalid_type", "type", id="number"),
        pytest.param(
            {"type": "response.create", "response": {"model": "sim", "input": "x"}},
            "missing_required_parameter",
            "model",
            id="nested create",
        ),
        pytest.param(
            {"type": "response.create", "model": "sim", "stream_id": 7},
            "invalid_stream_id",
            "stream_id",
            id="lane of a wrong type",
        ),
        pytest.param(
            {"type": "response.cancel", "response_id": 7},
            "invalid_type",
            "response_id",
            id="cancel",
        ),
        pytest.param(
            {"type": "response.append"}, "missing_required_parameter", "response_id", id="append"
        ),
    ],
)
async def test_an_event_of_an_unknown_or_wrong_kind_is_one_error(
    connect: Connect, event: dict[str, Any], code: str, param: str
) -> None:
    peer = await connect()
    await peer.send({**event, "event_id": "e1"})
    error = await peer.receive()
    assert failure_of(error) == (code, 400, param)
    assert error.event_id == "e1"
    await _still_works(peer)


@requirement("errors.event_types")
async def test_an_error_of_a_wrong_event_evicts_nothing_and_names_its_lane(
    connect: Connect,
) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="one", store=False))
    await peer.send({"type": "nope", "stream_id": "a"})
    assert (await peer.receive()).stream_id == "a"
    await peer.send({"type": "nope", "stream_id": "x" * 100_000})
    error = await peer.receive()
    assert not error.HasField("stream_id") and error.ByteSize() < 4_096
    await peer.send(
        {
            "type": "response.create",
            "model": "sim",
            "stream_id": 7,
            "input": "x",
            "previous_response_id": first.id,
        }
    )
    assert code_of(await peer.receive()) == "invalid_stream_id"
    events = await peer.turn(input="two", store=False, previous_response_id=first.id)
    assert arm_of(events[-1]) == "response_completed"


@requirement("errors.binary")
async def test_a_binary_frame_is_read_as_json(connect: Connect) -> None:
    peer = await connect()
    assert isinstance(peer, WebSocketPeer)
    await peer.send_raw(orjson.dumps(create_of({"input": "Hi"})), binary=True)
    assert status_of(response_of(await peer.finish())) == "completed"
    await peer.send_raw(b"\x00\x01", binary=True)
    assert code_of(await peer.receive()) == "invalid_json"
    await _still_works(peer)


@requirement("errors.json_text")
async def test_a_field_of_json_text_that_holds_none_is_one_error(connect: Connect) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="one", store=False))
    event = message_of(create_of({"input": "x", "tools": [SHELL], "stream_id": "a"}))
    event.response_create.tools[0].function.output_schema = "{broken"
    await peer.send(event)
    error = await peer.receive()
    assert failure_of(error) == (*INVALID, "tools[0].output_schema")
    assert error.stream_id == "a"
    events = await peer.turn(input="two", store=False, previous_response_id=first.id)
    assert arm_of(events[-1]) == "response_completed"
