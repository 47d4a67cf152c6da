from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from turnwire import _codec
from turnwire.v1.error_pb2 import ErrorBody
from turnwire.v1.item_pb2 import Item
from turnwire.v1.response_pb2 import Response
from turnwire.v1.server_event_pb2 import ServerEvent, SessionError
from turnwire_server.codec.lifecycle import _CHANGING as CHANGING
from turnwire_server.codec.lifecycle import LifecycleEncoder, SettledMemo

Change = Callable[[Response], object]

TOOLS = [
    {"type": "function", "name": "look", "parameters": {"a": [1, 2.50]}, "vendor": "ü"},
    {"type": "custom", "name": "say", "description": "x" * 100},
    {"type": "web_search"},
]
SETTINGS: dict[str, Any] = {
    "instructions": 'Be "kind".\n' * 20,
    "max_output_tokens": 7,
    "model": "m",
    "background": True,
    "parallel_tool_calls": True,
    "prompt_cache_key": "k",
    "reasoning": {"effort": "low"},
    "safety_identifier": "who",
    "store": True,
    "temperature": 0.3,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"b": 1}}},
    "tool_choice": {"type": "function", "name": "look"},
    "tools": TOOLS,
    "top_p": 0.5,
    "truncation": "auto",
    "user": "u",
    "metadata": {"z": "1", "a": "2", "m": "x" * 70},
    "conversation": {"id": "conv_1"},
    "prompt": {"id": "pmpt_1", "variables": {"x": "y"}},
    "prompt_cache_options": {},
    "prompt_cache_retention": "24h",
}


def response_of(settings: dict[str, Any], response_id: str = "resp_1") -> Response:
    return _codec.parse(
        Response,
        {"id": response_id, "object": "response", "created_at": 5, "status": "in_progress"}
        | settings,
    )


def event_of(arm: str, response: Response, number: int | None = 0, lane: str | None = None):
    event = ServerEvent(sequence_number=number, stream_id=lane)
    getattr(event, arm).response.CopyFrom(response)
    return event


def encode(encoder: LifecycleEncoder, event: ServerEvent) -> bytes | None:
    return encoder.encode(event, event.WhichOneof("event") or "")


settings = st.lists(st.sampled_from(sorted(SETTINGS)), unique=True).map(
    lambda names: {name: SETTINGS[name] for name in names}
)
ITEM = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
}
changes = st.lists(
    st.sampled_from(
        [
            {"completed_at": 9, "status": "completed"},
            {"error": {"code": "server_error", "message": "no"}, "status": "failed"},
            {"incomplete_details": {"reason": "max_output_tokens"}, "status": "incomplete"},
            {"output": [ITEM, ITEM]},
            {"previous_response_id": "resp_0"},
            {"usage": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}},
            {"warnings": [{"code": "c", "message": "m"}]},
            {"turnwire": {"event_id": "e"}},
        ]
    ),
    max_size=4,
).map(lambda found: {name: value for one in found for name, value in one.items()})
turns = st.tuples(
    settings,
    changes,
    changes,
    st.sampled_from(["response_completed", "response_incomplete", "response_failed"]),
    st.sampled_from([None, "lane.1"]),
)


@given(st.lists(turns, min_size=1, max_size=5))
def test_what_is_spliced_is_what_the_generic_codec_writes_byte_for_byte(given_turns) -> None:
    encoder = LifecycleEncoder(SettledMemo(max_bytes=20_000))
    for index, (chosen, early, late, end, lane) in enumerate(given_turns):
        begun = response_of(chosen | early, f"resp_{index}")
        over = response_of(chosen | late, f"resp_{index}")
        for event in (
            event_of("response_created", begun, 0, lane),
            event_of("response_in_progress", begun, 1, lane),
            event_of("response_in_progress", begun, None, lane),
            event_of(end, over, 300, lane),
        ):
            assert encode(encoder, event) == _codec.dumps(event)


def test_every_field_of_a_response_either_changes_or_is_kept() -> None:
    fields = set(Response.DESCRIPTOR.fields_by_name)
    # What no response of this server has yet is taken for what does not change.
    unset = {"moderation", "access_programs", "image", "input_transformations", "tool_usage"}
    unset |= {"prompt_cache_diagnostics", "presence_penalty", "frequency_penalty"}
    unset |= {"top_logprobs", "max_tool_calls"}
    assert fields - CHANGING - unset == SETTINGS.keys() | {"object", "service_tier"}


def test_tools_that_changed_are_not_those_of_the_turn_before() -> None:
    encoder = LifecycleEncoder(SettledMemo())
    for tools in (TOOLS, TOOLS[:1], [], TOOLS):
        for arm in ("response_created", "response_completed"):
            encoded = encode(encoder, event_of(arm, response_of({"tools": tools})))
            assert encoded is not None
            shown = json.loads(encoded)["response"]["tools"]
            assert [tool.get("name") for tool in shown] == [tool.get("name") for tool in tools]


def test_an_encoder_that_meets_a_response_late_encodes_it_all_the_same() -> None:
    event = event_of("response_completed", response_of(SETTINGS))
    assert encode(LifecycleEncoder(SettledMemo()), event) == _codec.dumps(event)


items = st.builds(
    lambda text, status: ITEM | {"status": status, "content": [{"type": "output_text"} | text]},
    st.sampled_from([{"text": ""}, {"text": 'a "ü"'}, {"text": "x" * 200}, {"annotations": []}]),
    st.sampled_from(["completed", "incomplete"]),
) | st.sampled_from(
    [
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "vendor": {"a": 1.50}},
    ]
)


@given(
    st.lists(st.tuples(items, st.integers(0, 300), st.sampled_from([None, "lane.1"])), max_size=5),
    st.lists(items, max_size=3),
)
def test_items_are_shown_as_the_generic_codec_shows_them_and_again_in_the_terminal_event(
    done, others
) -> None:
    encoder = LifecycleEncoder(SettledMemo())
    for index, (item, number, lane) in enumerate(done):
        event = ServerEvent(sequence_number=number, stream_id=lane)
        event.response_output_item_done.output_index = index
        event.response_output_item_done.item.CopyFrom(_codec.parse(Item, item))
        assert encode(encoder, event) == _codec.dumps(event)
    # Also when it has items that were not shown, or others than those that were.
    shown = [item for item, _, _ in done]
    for output in (shown + others, others + shown):
        event = event_of("response_completed", response_of({"output": output}))
        assert encode(encoder, event) == _codec.dumps(event)


def test_an_item_is_encoded_once_though_it_is_shown_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, encoded = LifecycleEncoder(SettledMemo()), []
    to_value = _codec.to_value

    def noted(message: Message) -> Any:
        encoded.append(type(message))
        return to_value(message)

    monkeypatch.setattr(_codec, "to_value", noted)
    event = ServerEvent()
    event.response_output_item_done.item.CopyFrom(_codec.parse(Item, ITEM))
    encode(encoder, event)
    encode(encoder, event_of("response_completed", response_of({"output": [ITEM]})))
    assert encoded == [Item]


def test_items_are_forgotten_at_the_end_and_bounded_before() -> None:
    encoder = LifecycleEncoder(SettledMemo())
    for index in range(200):
        event = ServerEvent()
        event.response_output_item_done.item.message.id = f"msg_{index}"
        encode(encoder, event)
        assert 1 <= len(encoder._items) <= 64
    encode(encoder, event_of("response_completed", response_of({})))
    assert not encoder._items


def test_events_without_a_response_are_not_its_business() -> None:
    error = ServerEvent(error=SessionError(error=ErrorBody(code="c")))
    assert LifecycleEncoder().encode(error, "error") is None


def test_the_same_settings_are_encoded_once_for_every_connection() -> None:
    memo = SettledMemo()
    for index in range(3):
        encoder = LifecycleEncoder(memo)
        encode(encoder, event_of("response_created", response_of(SETTINGS, f"resp_{index}")))
    assert len(memo) == 1


@pytest.mark.parametrize(("max_bytes", "kept"), [(1, 0), (5_000, 1), (1_000_000, 3)])
def test_the_memory_is_bounded_in_bytes(max_bytes: int, kept: int) -> None:
    memo = SettledMemo(max_bytes=max_bytes)
    for model in ("a", "b", "c"):
        memo.of(response_of({"model": model}))
    assert len(memo) == kept


def test_what_was_used_last_stays() -> None:
    memo = SettledMemo(max_bytes=10_000)
    first = memo.of(response_of({"model": "a"}))
    memo.of(response_of({"model": "b"}))
    assert memo.of(response_of({"model": "a"})) is first
    memo.of(response_of({"model": "c"}))
    assert memo.of(response_of({"model": "a"})) is first


def test_open_responses_are_forgotten_at_their_end_and_bounded_before() -> None:
    encoder = LifecycleEncoder(SettledMemo())
    for index in range(100):
        encode(encoder, event_of("response_created", response_of({}, f"resp_{index}")))
        assert len(encoder._open) <= 32
    for index in range(100):
        encode(encoder, event_of("response_completed", response_of({}, f"resp_{index}")))
    assert not encoder._open
