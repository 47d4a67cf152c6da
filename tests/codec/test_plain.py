"""The short look at a create never lets pass what its shape would not."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from turnwire_server.codec import requests, shapes
from turnwire_server.codec.faults import Fault
from turnwire_server.codec.requests import decode_client_event
from turnwire_server.codec.shapes import plain
from turnwire_server.codec.shapes.content import InputText

SHAPE = shapes.ResponseCreateEvent
TYPE = {"type": "response.create"}
_is_plain = shapes.Plain(SHAPE)
USUAL: dict[str, Any] = {
    "type": "response.create",
    "event_id": "event_1",
    "model": "m",
    "input": "Hi",
    "instructions": "Be brief.",
    "previous_response_id": "resp_1",
    "store": False,
    "stream": True,
    "parallel_tool_calls": None,
    "temperature": 0.5,
    "max_output_tokens": 100,
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "reasoning": {"effort": "low", "summary": None},
    "text": {"verbosity": "low"},
    "stream_options": {"include_obfuscation": False},
    "image": [{"any": 1}],
    "unknown": {"of": ["any", 1]},
}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**32 - 1, 2**32, 10**400, 0.5, -0.0, 1e300),
    *(float("inf"), float("nan"), "", "text", "auto", "response.cancel"),
    *([], ["a"], ["a", 1], [None], {}, {"a": "b"}, {"a": 1}, {"a": None}),
    {str(number): "x" for number in range(2000)},
    *({"effort": "low"}, {"effort": 1}, {"verbosity": "x"}, {"format": {"type": "text"}}),
    *({"format": {}}, {"id": "x"}, {"id": 1}, {"include_obfuscation": 1}, {"prewarm": True}),
    *([{"role": "user", "content": "Hi"}], [{"type": "none"}], [{"type": "compaction"}]),
]


ITEMS: dict[str, dict[str, Any]] = {
    "message": {
        "type": "message",
        "id": "msg_1",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hi"}, {"type": "output_text", "text": "Ho"}],
        "status": "completed",
        "phase": None,
        "unknown": 1,
    },
    "short message": {"role": "developer", "content": "Hi"},
    "empty message": {"type": None, "role": "assistant", "content": None},
    "call": {
        "type": "function_call",
        "call_id": "call_1",
        "name": "f",
        "arguments": "{}",
        "async": True,
    },
    "output": {"type": "function_call_output", "call_id": None, "output": "x", "caller": [1]},
    "parts of an output": {
        "type": "function_call_output",
        "output": [{"type": "input_text", "text": "x"}],
    },
}
WRONG: list[Any] = [
    *(None, True, 1, 0.5, "", "text", "user", "tool", "message", "completed", "done", [], {}),
    *(["a"], [None], [[]], [{}], [{"type": []}], [{"type": "input_text"}], {"type": "message"}),
    *([{"type": "input_text", "text": 1}], [{"text": "x"}], [{"type": "text", "text": "x"}]),
    *([{"type": "output_text", "text": "x", "annotations": 1}], [{"type": "none"}]),
]


def is_plain(value: Any) -> bool:
    return _is_plain({**TYPE, **value} if isinstance(value, dict) else value)


def is_right(value: Any) -> bool:
    try:
        SHAPE.model_validate(value)
    except ValidationError:
        return False
    return True


def test_what_most_creates_are_made_of_passes() -> None:
    for name, content in USUAL.items():
        assert is_plain({name: content}), name
    assert is_plain(USUAL) and is_right(USUAL)


@pytest.mark.parametrize("name", sorted(SHAPE.model_fields))
def test_no_member_passes_that_its_shape_refuses(name: str) -> None:
    passed = 0
    for value in VALUES if name != "type" else ():
        if is_plain({name: value}):
            passed += 1
            assert is_right({"type": "response.create", name: value}), value
    assert passed or name == "type"


def test_a_wrong_member_among_right_ones_does_not_pass() -> None:
    chance = random.Random(1)
    names = [name for name in SHAPE.model_fields if name != "type"]
    results = set()
    for _ in range(3000):
        value = {**USUAL, chance.choice(names): chance.choice(VALUES)}
        passes = is_plain(value)
        assert is_right(value) or not passes
        results.add(passes)
    assert results == {True, False}


@pytest.mark.parametrize("value", [None, "x", ["x"], 1])
def test_only_objects_pass(value: Any) -> None:
    assert not is_plain(value)


def test_what_lacks_a_required_member_does_not_pass() -> None:
    assert _is_plain(USUAL)
    assert not _is_plain({name: value for name, value in USUAL.items() if name != "type"})


def test_a_list_of_objects_is_not_taken_for_one_of_them() -> None:
    assert isinstance(plain._look(InputText | None), shapes.Plain)
    assert plain._look(list[InputText]) is plain._look(list[InputText] | None) is None


@pytest.mark.parametrize("kind", ITEMS)
def test_the_items_that_agents_send_pass(kind: str) -> None:
    value = {**TYPE, "input": [ITEMS[kind], *ITEMS.values()]}
    assert is_plain(value) and is_right(value)


@pytest.mark.parametrize("kind", ITEMS)
def test_no_item_passes_that_its_shape_refuses(kind: str) -> None:
    item = ITEMS[kind]
    names = {*item, "type", "role", "content", "output", "name", "status", "async", "call_id"}
    results = set()
    for name in sorted(names):
        without = {other: value for other, value in item.items() if other != name}
        for wrong in (without, *({**item, name: value} for value in WRONG)):
            value = {**TYPE, "input": [ITEMS["short message"], wrong]}
            passes = is_plain(value)
            assert is_right(value) or not passes, wrong
            results.add(passes)
    assert results == {True, False}


@pytest.mark.parametrize("value", WRONG)
def test_an_input_passes_only_if_its_shape_lets_it(value: Any) -> None:
    for given in (value, [value]):
        assert is_right({**TYPE, "input": given}) or not is_plain({"input": given})


def test_a_usual_create_is_not_shown_to_pydantic_and_a_wrong_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Any] = []
    validate = SHAPE.model_validate

    def seen(value: Any) -> Any:
        shown.append(value)
        return validate(value)

    monkeypatch.setattr(SHAPE, "model_validate", seen)
    assert not isinstance(decode_client_event(orjson.dumps(USUAL)), Fault)
    assert not shown
    wrong = decode_client_event(orjson.dumps({**USUAL, "store": "yes"}))
    assert isinstance(wrong, Fault) and wrong.param == "store"
    assert len(shown) == 1
    assert set(requests._USUAL) == {shapes.ResponseCreate, SHAPE}
