from __future__ import annotations

import re
from typing import Any

import pytest

from turnwire_server.adapters.engines.schema_example import NoExample, example_of


def required(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, "text"),
        (True, "text"),
        ({"type": "string"}, "text"),
        ({"type": "string", "minLength": 6}, "textxx"),
        ({"type": "string", "maxLength": 2}, "te"),
        ({"type": "string", "format": "date"}, "2026-01-01"),
        ({"type": "integer"}, 1),
        ({"type": "integer", "minimum": 2.5}, 3),
        ({"type": "integer", "maximum": -2}, -2),
        ({"type": "integer", "exclusiveMinimum": 4, "multipleOf": 5}, 5),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"type": "number", "minimum": 0.5}, 0.5),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"type": ["null", "integer"]}, 1),
        ({"enum": ["b", "c"]}, "b"),
        ({"const": {"a": [1]}}, {"a": [1]}),
        ({"type": "array"}, []),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        (
            {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2, "uniqueItems": True},
            ["x", "y"],
        ),
        ({"prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 2}, [1, 2]),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {}),
        (required(a={"type": "string"}, b={"type": "boolean"}), {"a": "text", "b": True}),
        ({"properties": {"a": {"const": 1}}, "minProperties": 1}, {"a": 1}),
        ({"type": "object", "minProperties": 1}, {"key0": "text"}),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "text"),
        ({"oneOf": [False, {"const": 3}]}, 3),
        (
            {"allOf": [required(a={"const": 1}), required(b={"const": 2})]},
            {"a": 1, "b": 2},
        ),
        ({"$defs": {"n": {"type": "integer"}}, **required(a={"$ref": "#/$defs/n"})}, {"a": 1}),
    ],
)
def test_an_example_satisfies_its_schema(schema: object, value: object) -> None:
    assert example_of(schema) == value


def test_a_recursive_schema_ends_where_it_may() -> None:
    node = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["next"],
    }
    value = example_of({"$defs": {"node": node}, "$ref": "#/$defs/node"})
    while isinstance(value, dict):
        value = value["next"]
    assert value is None


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[a-z]{3,5}-\d+$",
        r"^(?:foo|bar)\w+\s?$",
        r"^[^a1]+$",
        r"^[^/]*\.txt$",
        r"^\+?[0-9]{10}$",
        r"^[A-Fa-f\d]{4}(-[A-F]{2})*$",
    ],
)
def test_a_simple_pattern_is_matched(pattern: str) -> None:
    value = example_of({"type": "string", "pattern": pattern})
    assert isinstance(value, str)
    assert re.search(pattern, value)


@pytest.mark.parametrize("pattern", ["(", "a{999999}", "(?=b)a", "x" * 1000])
def test_a_pattern_that_is_too_hard_is_ignored(pattern: str) -> None:
    assert example_of({"type": "string", "pattern": pattern}) == "text"


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"$ref": "#/$defs/none"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "strange"},
        {"anyOf": [{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, {"$ref": "#"}]},
    ],
)
def test_a_schema_without_an_example_is_told(schema: object) -> None:
    with pytest.raises(NoExample):
        example_of(schema)
