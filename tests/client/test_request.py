from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass
from typing import Any

import pytest

import turnwire
from harness.client_events import text_turn
from harness.client_wires import MemoryWire, memory_session
from turnwire._create import Create, input_items
from turnwire._request import CreateOptions, KnownOptions, build_create, build_event, build_late
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate


def look_up(name: str = "look_up") -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"key": {"type": ["string", "null"]}}},
    }


@dataclass
class Effort:
    """Has the same JSON as a dict for some encoders."""

    effort: str


def options(**changed: Any) -> CreateOptions:
    settings: Any = {
        "tools": [look_up(), look_up("other")],
        "instructions": "Be brief.",
        "include": ["turnwire.timing"],
        "metadata": {"trace": "1"},
        "reasoning": {"effort": "low"},
        "store": False,
        "temperature": None,
        **changed,
    }
    return settings  # type: ignore[no-any-return]


def event_create(
    given: CreateOptions, known: KnownOptions, value: Any = "Hi", **rest: Any
) -> ResponseCreate:
    return build_event(value, given, known, model=rest.pop("model", "m"), **rest).response_create


def plain(given: CreateOptions, value: Any = "Hi", **rest: Any) -> ResponseCreate:
    """Return the create as it is without anything remembered."""
    return build_create(value, given, model=rest.pop("model", "m"), **rest)


@pytest.mark.parametrize("value", ["Hi", None, [{"type": "message", "role": "user"}]])
def test_options_that_come_again_make_the_same_create(value: Any) -> None:
    known = KnownOptions()
    for rest in (
        {},
        {"previous_response_id": "resp_1"},
        {"generate": False, "model": None},
        {"rollout": True, "model": "other"},
    ):
        for _ in range(3):
            assert event_create(options(), known, value, **rest) == plain(options(), value, **rest)


@pytest.mark.parametrize("value", ["Hé", None, [{"type": "message", "role": "user"}] * 2])
def test_a_create_of_known_options_needs_no_message_and_becomes_the_same(value: Any) -> None:
    known = KnownOptions()
    event_create(options(), known)
    for rest in (
        {},
        {"previous_response_id": "resp_1", "generate": False},
        {"rollout": True},
    ):
        given: Any = options(metadata={"b": "2", "a": "1"})
        created = build_late(value, given, known, model="m", **rest)
        assert isinstance(created, Create)
        assert input_items(created) == {str: 1, type(None): 0, list: 2}[type(value)]
        given["metadata"].clear()
        given["tools"].clear()
        created.event_id, created.stream_id = "evt_1", "a"
        expected = plain(options(metadata={"b": "2", "a": "1"}), value, **rest)
        event = ClientEvent(event_id="evt_1", stream_id="a", response_create=expected)
        assert created.whole == event
        assert input_items(event) == input_items(created)


def test_the_input_of_a_create_is_held_once_however_it_was_looked_at() -> None:
    known = KnownOptions()
    event_create(options(), known)
    for value in ([{"type": "message", "role": "user", "content": "Hé"}], []):
        created = build_late(value, options(), known, model="m")
        assert isinstance(created, Create)
        own, count = created.own(), input_items(created)
        whole = created.whole
        assert created.given is whole.response_create.input
        assert (created.own(), input_items(created)) == (own, count)


@pytest.mark.parametrize(
    "unusual",
    [
        {"value": "\ud800"},
        {"value": 1},
        {"metadata": {"a": "\ud800"}},
        {"metadata": {"\ud800": "a"}},
        {"metadata": {"a": 1}},
        {"metadata": [("a", "b")]},
        {"previous_response_id": "\ud800"},
        {"previous_response_id": 1},
        {"generate": "yes"},
        {"rollout": "yes"},
    ],
)
def test_what_has_no_place_in_a_create_is_told_in_the_same_words(unusual: dict[str, Any]) -> None:
    known = KnownOptions()
    event_create(options(), known)
    given = options(**{name: unusual.pop(name) for name in ("metadata",) if name in unusual})
    value = unusual.pop("value", "Hi")
    with pytest.raises((ValueError, TypeError)) as expected:
        plain(given, value, **unusual)
    with pytest.raises(expected.type) as failure:
        build_late(value, given, known, model="m", **unusual)
    assert str(failure.value) == str(expected.value)


def test_options_are_compared_by_what_they_are_now() -> None:
    known = KnownOptions()
    given: Any = options()
    for change in (
        lambda: None,
        lambda: given["tools"][0].update(name="renamed"),
        lambda: given["tools"][1]["parameters"]["properties"].update(more={"type": "string"}),
        lambda: given["tools"].append(look_up("third")),
        lambda: given["tools"].pop(0),
        lambda: given["include"].append("reasoning.encrypted_content"),
        lambda: given["metadata"].update(trace="2", more="x"),
        lambda: given["reasoning"].update(effort="high"),
        lambda: given.update(instructions="Be long."),
        lambda: given.update(temperature=0.5),
        lambda: given.pop("tools"),
    ):
        change()
        before = copy.deepcopy(given)
        for _ in range(2):
            assert event_create(given, known) == plain(before)
        assert given == before


def test_a_create_belongs_to_one_turn() -> None:
    known = KnownOptions()
    expected = plain(options())
    for _ in range(3):
        create = event_create(options(), known)
        assert create == expected
        create.tools[0].function.name = "changed"
        create.metadata["trace"] = "changed"
        create.input.text = "changed"


@pytest.mark.parametrize(
    ("good", "bad", "where"),
    [
        ({"store": True}, {"store": 1}, "store"),
        ({"max_output_tokens": 1}, {"max_output_tokens": True}, "max_output_tokens"),
        ({"max_output_tokens": 1}, {"max_output_tokens": 1.0}, "max_output_tokens"),
        ({"temperature": None}, {"temperature": float("nan")}, "temperature"),
        ({"reasoning": {"effort": "low"}}, {"reasoning": Effort("low")}, "reasoning"),
        ({"metadata": {"a": "b"}}, {"metadata": {"a": b"b"}}, r"metadata\.a"),
        ({"metadata": {"a": "b"}}, {"metadata": {b"a": "b"}}, "metadata"),
        ({"metadata": {"a": "b"}}, {"metadata": {"a": None}}, r"metadata\.a"),
        ({"metadata": {"a": "b"}}, {"metadata": {"a": "\ud800"}}, r"metadata\.a: has a lone"),
        ({"metadata": {"a": "b"}}, {"metadata": [("a", "b")]}, "metadata"),
        ({"tools": [look_up()]}, {"tools": "look_up"}, "tools: a list"),
    ],
)
def test_what_is_refused_is_so_whatever_came_before(
    good: dict[str, Any], bad: dict[str, Any], where: str
) -> None:
    known = KnownOptions()
    event_create(options(**good), known)
    for _ in range(2):
        with pytest.raises(ValueError, match=where):
            event_create(options(**bad), known)
    assert event_create(options(**good), known) == plain(options(**good))


@pytest.mark.parametrize("value", [0.0, -0.0, 0, False, 1, 1.0, True, "1", None])
@pytest.mark.parametrize("before", [0.0, -0.0, 0, False, 1, 1.0, True, "1", None])
def test_values_that_are_equal_to_python_only_are_not_taken_for_each_other(
    before: object, value: object
) -> None:
    def given(content: object) -> CreateOptions:
        tool = {**look_up(), "parameters": {"type": "object", "default": content}}
        is_number = isinstance(content, int | float) and not isinstance(content, bool)
        return options(tools=[tool], temperature=content if is_number else None)

    known = KnownOptions()
    event_create(given(before), known)
    for _ in range(2):
        create = event_create(given(value), known)
        assert create.SerializeToString() == plain(given(value)).SerializeToString()


def test_metadata_of_other_kinds_of_text_is_taken() -> None:
    class Text(str):
        pass

    create = event_create(options(metadata={"a": "b", Text("c"): Text("d")}), KnownOptions())
    assert dict(create.metadata) == {"a": "b", "c": "d"}


def test_tools_with_functions_are_taken_each_time() -> None:
    known = KnownOptions()
    for name in ("first", "second", "first"):
        tool = turnwire.tool(lambda: None, name=name, description="x")
        given = options(tools=[tool, look_up()])
        assert [each.function.name for each in event_create(given, known).tools] == [
            name,
            "look_up",
        ]


def test_tools_with_credentials_are_not_remembered() -> None:
    known = KnownOptions()
    mcp = {"type": "mcp", "server_label": "files", "authorization": "SECRET"}
    for _ in range(2):
        given = options(tools=[look_up(), mcp])
        assert event_create(given, known) == plain(given)
    assert not known._known


def test_few_and_small_options_are_remembered() -> None:
    known = KnownOptions()
    for number in range(20):
        given = options(instructions=f"Be {number}.")
        assert event_create(given, known) == plain(given)
    assert len(known._known) == 4
    large = options(instructions="x" * 100_000)
    for _ in range(2):
        assert event_create(large, known) == plain(large)
    assert len(known._known) == 4
    assert sum(len(text) for _, text in known._known) < 10_000


def test_metadata_that_changes_makes_nothing_to_remember() -> None:
    known = KnownOptions()
    for number in range(3):
        given = options(metadata={"trace": str(number), f"also_{number}": "x"})
        assert event_create(given, known) == plain(given)
    assert event_create(options(metadata=None), known) == plain(options(metadata=None))
    assert len(known._known) == 1


async def test_changing_what_was_given_changes_the_next_turn_alone() -> None:
    wire = MemoryWire(lambda event: text_turn(event, f"resp_{event.event_id}", "Hello"))
    given: Any = options()
    async with asyncio.timeout(20), memory_session(wire) as session:
        for name in ("a", "b", "b"):
            given["tools"][0]["name"] = name
            turn = session.create("Hi", **given)
            given["tools"][0]["name"] = "too_late"
            await turn.response()
        session.model = "n"
        await session.create("Hi", **given).response()
    sent = [event.response_create for event in wire.sent]
    assert [create.tools[0].function.name for create in sent] == ["a", "b", "b", "too_late"]
    assert [create.model for create in sent] == ["m", "m", "m", "n"]
