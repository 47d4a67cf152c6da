from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.ebnf import grammar_pattern
from turnwire_server.adapters.engines.json_grammar import (
    GrammarFailure,
    json_object_grammar,
    json_schema_grammar,
)


def accepts(schema: object, text: str, *, depth: int = 3) -> bool:
    grammar = json_schema_grammar(json.dumps(schema))
    return grammar_pattern(grammar, depth=depth).fullmatch(text) is not None


CITY = {"type": "string", "maxLength": 8}
TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["v"],
}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        # Compact JSON only: small models get lost in free white space.
        ({"type": "object", "properties": {"a": CITY}, "required": ["a"]}, '{"a":"x"}', True),
        ({"type": "object", "properties": {"a": CITY}, "required": ["a"]}, '{"a": "x"}', False),
        ({"type": "object", "properties": {"a": CITY}, "required": ["a"]}, "{}", False),
        ({"type": "object", "properties": {"a": CITY}, "required": ["a"]}, '{"a":1}', False),
        (CITY, '"Zürich"', True),
        (CITY, '"a\\"b\\n"', True),
        (CITY, '"123456789"', False),
        (CITY, '"a\nb"', False),
        (CITY, '"\\u0041"', False),
        ({"type": "string", "minLength": 2, "maxLength": 3}, '"a"', False),
        ({"type": "string", "minLength": 2, "maxLength": 3}, '"ab"', True),
        ({"type": "string", "minLength": 2, "maxLength": 3}, '"abcd"', False),
        # Without a limit there is one.
        ({"type": "string"}, f'"{"x" * 2047}"', True),
        ({"type": "string"}, f'"{"x" * 2048}"', False),
        ({"type": "string", "maxLength": 300}, f'"{"x" * 300}"', True),
        ({"type": "string", "maxLength": 300}, f'"{"x" * 301}"', False),
        ({"type": "string", "minLength": 140, "maxLength": 300}, f'"{"x" * 139}"', False),
        ({"type": "string", "minLength": 140, "maxLength": 300}, f'"{"x" * 140}"', True),
        ({"type": "array", "items": {"type": "null"}}, f"[{','.join(['null'] * 64)}]", True),
        ({"type": "array", "items": {"type": "null"}}, f"[{','.join(['null'] * 65)}]", False),
        ({"type": "array", "items": {"type": "null"}}, "[]", True),
        ({"type": "array", "items": {"type": "null"}, "minItems": 1}, "[]", False),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 0}, "[]", True),
        (
            {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}]},
            "[null,true]",
            True,
        ),
        # Members in order, optional ones left out in any combination.
        ({"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}}, "{}", True),
        (
            {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}},
            '{"a":1,"c":3}',
            True,
        ),
        (
            {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}},
            '{"b":2,"c":3}',
            True,
        ),
        ({"properties": {"a": {"const": 1}, "b": {"const": 2}}}, '{"b":2,"a":1}', False),
        ({"properties": {"a": {"const": 1}, "b": {"const": 2}}}, '{"a":1,}', False),
        ({"properties": {"a": {"const": 1}}, "required": ["a"]}, '{"a":1,"z":1}', False),
        ({"properties": {}, "required": ["k"]}, '{"k":null}', True),
        ({"type": "object", "additionalProperties": False}, "{}", True),
        ({"type": "object", "additionalProperties": False}, '{"a":1}', False),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"a":1,"b":2}', True),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"a":"x"}', False),
        ({"enum": ["a", 1, None]}, "null", True),
        ({"enum": ["a", 1, None]}, '"b"', False),
        ({"const": {"k": ["é", 1.5]}}, '{"k":["é",1.5]}', True),
        ({"type": ["integer", "null"]}, "null", True),
        ({"type": ["integer", "null"]}, "true", False),
        ({"anyOf": [{"type": "boolean"}, {"type": "integer"}]}, "7", True),
        ({"oneOf": [{"type": "boolean"}, {"type": "integer"}]}, '"7"', False),
        (
            {"allOf": [{"properties": {"a": {"const": 1}}}, {"required": ["a"]}]},
            '{"a":1}',
            True,
        ),
        (
            {"allOf": [{"properties": {"a": {"const": 1}}}, {"required": ["a"]}]},
            "{}",
            False,
        ),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "boolean"}}}, "true", True),
        (TREE, '{"v":1,"kids":[{"v":2},{"v":3,"kids":[]}]}', True),
        (TREE, '{"v":1,"kids":[{"kids":[]}]}', False),
        ({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}, '"AB-12"', True),
        ({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}, '"AB-"', False),
        ({"type": "string", "format": "date"}, '"2026-11-29"', False),
        ({"type": "string", "format": "date"}, '"2026-11-28"', True),
        ({"type": "string", "format": "uuid"}, '"0f8fad5b-d9cb-469f-a165-70867728950e"', True),
        ({"type": "number"}, "-3.25", True),
        ({"type": "number"}, "03", False),
        ({"type": "integer"}, "1.5", False),
    ],
)
def test_a_grammar_accepts_what_its_schema_allows_and_nothing_else(schema, text, expected):
    assert accepts(schema, text) is expected


def test_any_json_object_is_an_object_of_anything():
    pattern = grammar_pattern(json_object_grammar(), depth=2)
    assert pattern.fullmatch('{"a":[1,"x",null],"b":{}}')
    assert pattern.fullmatch("[]") is None


def test_equal_parts_share_one_rule():
    many = {"type": "object", "properties": {f"p{index}": {} for index in range(50)}}
    assert json_schema_grammar(json.dumps(many)).count("block{") == 1


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "false",
        '{"$ref":"#/nowhere"}',
        '{"$ref":"https://example.com/schema"}',
        '{"type":"text"}',
        '{"type":["text"]}',
        '{"anyOf":[false]}',
        '{"type":"string","minLength":5000}',
        '{"type":"array","minItems":129}',
        "[" * 100_000,
        json.dumps({"enum": ["x" * 300_000], "type": "string"}),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(schema):
    if schema.startswith('{"enum"'):
        schema = json.dumps({"properties": {"a": json.loads(schema)}})
    with pytest.raises(GrammarFailure):
        json_schema_grammar(schema)


def test_a_schema_nested_too_deeply_is_refused():
    schema: object = {"type": "null"}
    for _ in range(100):
        schema = {"type": "array", "items": schema}
    with pytest.raises(GrammarFailure, match="nested too deeply"):
        json_schema_grammar(json.dumps(schema))


SCALARS = st.sampled_from(
    [{"type": "boolean"}, {"type": "null"}, {"enum": ["a", "b"]}, {"type": "integer", "maximum": 9}]
)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: (
        st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
                "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
                "additionalProperties": st.just({"type": "null"}),
            }
        )
        | st.fixed_dictionaries({"type": st.just("array"), "items": inner, "maxItems": st.just(2)})
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(SCHEMAS, st.data())
def test_a_value_made_for_a_schema_is_accepted(schema, data):
    value = data.draw(_values(schema))
    assert accepts(schema, json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def _values(schema: dict) -> st.SearchStrategy:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "integer":
            return st.integers(-99, 9)
        case "array":
            return st.lists(_values(schema["items"]), max_size=2)
    members = dict(schema["properties"])
    needed = schema["required"]
    members |= {name: {"type": "null"} for name in sorted(set(needed) - set(members))}
    if not members:
        return st.just({})
    return (
        st.fixed_dictionaries({}, optional={name: _values(part) for name, part in members.items()})
        .map(
            # In the order of `members`, and with all that is needed.
            lambda drawn: {name: drawn[name] for name in members if name in drawn}
        )
        .filter(lambda drawn: set(needed) <= set(drawn))
    )
