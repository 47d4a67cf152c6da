from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired, TypedDict

import pytest

import turnwire
from turnwire import FunctionCall
from turnwire._tools import as_tools, call_tool


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


@dataclasses.dataclass
class Place:
    city: str
    floor: int = 0


class Range(TypedDict):
    low: float
    high: NotRequired[float]


def everything(
    place: Place,
    unit: Unit,
    names: list[str],
    span: Range,
    mode: Literal["fast", "slow"],
    limit: int | None = None,
    ratio: Annotated[float, "Between 0 and 1."] = 0.5,
    flags: dict[str, bool] | None = None,
) -> list[object]:
    """Do everything at once.

    And more.

    Args:
        place: Where.
        names: Who,
            in order.

    Returns:
        What came in.
    """
    return [place, unit, names, span, mode, limit, ratio, flags]


def test_the_schema_comes_from_the_signature_and_the_docstring() -> None:
    made = turnwire.tool(everything)
    assert made.name == "everything"
    assert made.description == "Do everything at once.\n\nAnd more."
    assert made.parameters == {
        "type": "object",
        "properties": {
            "place": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "floor": {"type": "integer"}},
                "required": ["city"],
                "additionalProperties": False,
                "description": "Where.",
            },
            "unit": {"enum": ["c", "f"]},
            "names": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Who, in order.",
            },
            "span": {
                "type": "object",
                "properties": {"low": {"type": "number"}, "high": {"type": "number"}},
                "required": ["low"],
                "additionalProperties": False,
            },
            "mode": {"enum": ["fast", "slow"]},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "ratio": {"type": "number", "description": "Between 0 and 1.", "default": 0.5},
            "flags": {
                "anyOf": [
                    {"type": "object", "additionalProperties": {"type": "boolean"}},
                    {"type": "null"},
                ]
            },
        },
        "required": ["place", "unit", "names", "span", "mode"],
        "additionalProperties": False,
    }
    assert json.loads(made.message.function.parameters) == made.parameters


async def _call(made: turnwire.Tool, arguments: object, *, timeout_s: float = 5.0) -> str:
    call = FunctionCall(made.name, "call_1", json.dumps(arguments))
    async with asyncio.timeout(20):
        return await call_tool({made.name: made}, call, timeout_s=timeout_s)


async def test_arguments_arrive_in_the_types_of_the_signature() -> None:
    seen = []

    def keep(place: Place, unit: Unit, names: Sequence[str], span: Range, ratio: float) -> str:
        seen.extend([place, unit, names, span, ratio])
        return "kept"

    arguments = {
        "place": {"city": "Bern"},
        "unit": "f",
        "names": ["a"],
        "span": {"low": 1},
        "ratio": 1,
    }
    assert await _call(turnwire.tool(keep), arguments) == "kept"
    assert seen == [Place("Bern"), Unit.FAHRENHEIT, ["a"], {"low": 1.0}, 1.0]
    assert isinstance(seen[4], float)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "missing argument 'count'"),
        ({"count": 1, "more": 2}, "unknown argument 'more'"),
        ({"count": "1"}, "count: expected an integer"),
        ({"count": True}, "count: expected an integer"),
        ({"count": 1, "hard": 1}, "hard: expected a boolean"),
        ([], "not a JSON object"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_to_the_model(
    arguments: object, text: str
) -> None:
    def wait(count: int, hard: bool = False) -> str:
        raise AssertionError("must not run")

    output = await _call(turnwire.tool(wait), arguments)
    assert output.startswith("Error: ") and text in output


async def test_what_a_tool_raises_is_told_to_the_model_and_bounded() -> None:
    def fail() -> None:
        raise RuntimeError("x" * 10_000)

    output = await _call(turnwire.tool(fail), {})
    assert output.startswith("Error: RuntimeError: xxx")
    assert len(output) == 2000


async def test_async_tools_and_results_of_every_kind_become_text() -> None:
    async def place() -> Place:
        return Place("Bern", 3)

    async def number() -> int:
        return 4

    assert json.loads(await _call(turnwire.tool(place), {})) == {"city": "Bern", "floor": 3}
    assert await _call(turnwire.tool(number), {}) == "4"


async def test_a_tool_that_takes_too_long_is_given_up() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    output = await _call(turnwire.tool(wait), {}, timeout_s=0.01)
    assert "did not finish within 0.01 s" in output


async def test_a_timeout_of_the_tool_itself_is_its_own_error() -> None:
    async def wait() -> None:
        raise TimeoutError("the other side")

    assert await _call(turnwire.tool(wait), {}) == "Error: TimeoutError: the other side"


async def test_a_custom_tool_gets_its_input_as_text() -> None:
    made = turnwire.tool(lambda text: text.upper(), name="shout", custom=True)
    call = FunctionCall("shout", "call_1", "not json", is_custom=True)
    assert made.message.WhichOneof("tool") == "custom"
    assert await call_tool({"shout": made}, call, timeout_s=5.0) == "NOT JSON"


async def test_an_unknown_tool_is_told_to_the_model() -> None:
    output = await call_tool({}, FunctionCall("nope", "call_1", "{}"), timeout_s=5.0)
    assert output.startswith("Error: there is no tool named 'nope'")


def test_a_schema_of_ones_own_is_sent_as_it_is() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}

    @turnwire.tool(name="own", description="Mine.", parameters=schema, strict=True)
    def function(**arguments: object) -> str:
        return str(arguments)

    assert (function.name, function.description) == ("own", "Mine.")
    assert json.loads(function.message.function.parameters) == schema
    assert function.message.function.strict
    assert function(x="1") == "{'x': '1'}"


def test_a_type_that_json_does_not_have_is_a_type_error_that_names_the_parameter() -> None:
    def draw(canvas: complex) -> None: ...

    with pytest.raises(TypeError, match="canvas"):
        turnwire.tool(draw)


def test_tools_are_given_by_name_or_in_a_list() -> None:
    def f() -> None: ...

    made = turnwire.tool(f, name="given")
    own, hosted = as_tools({"named": f, "renamed": made})
    assert [(one.name, one.message.function.name) for one in own] == [
        ("named", "named"),
        ("renamed", "renamed"),
    ]
    own, hosted = as_tools([made, f, {"type": "web_search"}])
    assert [one.name for one in own] == ["given", "f"]
    assert hosted == [{"type": "web_search"}]


def test_two_tools_of_one_name_are_refused() -> None:
    def f() -> None: ...

    with pytest.raises(ValueError, match="'f'"):
        as_tools([f, turnwire.tool(f)])
    with pytest.raises(ValueError, match="name"):
        as_tools([lambda: None])
    with pytest.raises(TypeError, match="neither"):
        as_tools([3])  # type: ignore[list-item]
