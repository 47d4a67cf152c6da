"""A value that satisfies a JSON Schema, for a model that only acts as if it could read one.

Covers what tool schemas use: types, required members, enum, const, references, combinations,
bounds, formats; patterns as far as a simple walk goes. The same schema gives the same value.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Json", "NoExample", "example_of"]

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_MAX_DEPTH = 24
_MAX_NODES = 5_000
_MAX_LENGTH = 4_096
_MAX_PATTERN = 512

_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "user@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}

# What the pattern's walk meets where the parser's output is not what it knows.
_UNKNOWN_SHAPES = (ImportError, AttributeError, KeyError, StopIteration, TypeError, ValueError)


class NoExample(Exception):
    """No value was found: the schema is contradictory, or too deep for the search."""


def example_of(schema: object) -> Json:
    """Return a small value that satisfies `schema`, best effort.

    Raises:
        NoExample: none was found within the bounds of the search.
    """
    return _Search(schema).value(schema, 0)


class _Search:
    def __init__(self, root: object) -> None:
        self._root = root
        self._nodes = 0

    def value(self, schema: object, depth: int) -> Json:
        self._nodes += 1
        if depth > _MAX_DEPTH or self._nodes > _MAX_NODES:
            raise NoExample
        if schema is False:
            raise NoExample
        if not isinstance(schema, Mapping):
            return "text"
        if "$ref" in schema:
            return self.value(self._resolved(schema["$ref"]), depth + 1)
        if "const" in schema:
            return _json(schema["const"])
        if isinstance(schema.get("enum"), Sequence) and schema["enum"]:
            return _json(schema["enum"][0])
        if isinstance(schema.get("allOf"), Sequence):
            return self.value(self._joined(schema), depth + 1)
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), Sequence) and schema[key]:
                outer = {name: part for name, part in schema.items() if name != key}
                branches = [self._merged(outer, self._flat(branch)) for branch in schema[key]]
                return self._first(branches, depth)
        return self._typed(schema, depth)

    def _first(self, branches: Sequence[object], depth: int) -> Json:
        """Return a value of the first branch that has one, null last: it says the least."""
        for branch in sorted(branches, key=_is_null):
            try:
                return self.value(branch, depth + 1)
            except NoExample:
                continue
        raise NoExample

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Json:
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._first([{**schema, "type": one} for one in kind], depth)
        if kind is None:
            kind = _implied_type(schema)
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return _string(schema)
            case "integer" | "number":
                return _number(schema, whole=kind == "integer")
            case "boolean":
                return True
            case "null":
                return None
            case _:
                raise NoExample

    def _object(self, schema: Mapping[str, Any], depth: int) -> Json:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            properties = {}
        names = [name for name in schema.get("required", ()) if isinstance(name, str)]
        least = _whole(schema.get("minProperties"), 0)
        names += [name for name in properties if name not in names][: max(0, least - len(names))]
        others = schema.get("additionalProperties", True)
        value = {name: self.value(properties.get(name, others), depth + 1) for name in names}
        for index in range(min(least, _MAX_LENGTH) - len(value)):
            value[f"key{index}"] = self.value(others, depth + 1)
        return value

    def _array(self, schema: Mapping[str, Any], depth: int) -> Json:
        first = schema.get("prefixItems")
        first = list(first) if isinstance(first, Sequence) else []
        least = min(_whole(schema.get("minItems"), 0), _MAX_LENGTH)
        items = schema.get("items", True)
        shapes = [*first[:least], *[items] * (least - len(first))]
        values = [self.value(shape, depth + 1) for shape in shapes]
        if schema.get("uniqueItems") and values:
            values = [_varied(value, index, items) for index, value in enumerate(values)]
        return values

    def _resolved(self, reference: object) -> object:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise NoExample
        place = self._root
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(place, Mapping) and part in place:
                place = place[part]
            elif isinstance(place, list) and part.isdecimal() and int(part) < len(place):
                place = place[int(part)]
            else:
                raise NoExample
        return place

    def _flat(self, schema: object) -> object:
        """Follow references until there are members to merge."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                return schema
            schema = self._resolved(schema["$ref"])
        raise NoExample

    def _joined(self, schema: Mapping[str, Any]) -> object:
        joined: object = {name: part for name, part in schema.items() if name != "allOf"}
        for part in schema["allOf"]:
            joined = self._merged(joined, self._flat(part))
        return joined

    def _merged(self, left: object, right: object) -> object:
        if left is False or right is False:
            return False
        if not isinstance(left, Mapping) or not left:
            return right if right is not True else left
        if not isinstance(right, Mapping):
            return left
        merged = {**left, **right}
        for key in ("properties", "$defs"):
            if isinstance(left.get(key), Mapping) and isinstance(right.get(key), Mapping):
                merged[key] = {**left[key], **right[key]}
        if isinstance(left.get("required"), list) and isinstance(right.get("required"), list):
            merged["required"] = list(dict.fromkeys([*left["required"], *right["required"]]))
        if isinstance(left.get("allOf"), list) and isinstance(right.get("allOf"), list):
            merged["allOf"] = [*left["allOf"], *right["allOf"]]
        return merged


def _json(value: object) -> Json:
    return value  # type: ignore[return-value]  # a schema read from JSON holds JSON


def _is_null(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"


def _implied_type(schema: Mapping[str, Any]) -> str:
    if "properties" in schema or "required" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    if {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"} & set(schema):
        return "number"
    return "string"


def _whole(value: object, default: int) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else default


def _string(schema: Mapping[str, Any]) -> str:
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        text = _matching(pattern)
        if text is not None:
            return text
    shape = schema.get("format")
    text = _FORMATS.get(shape, "text") if isinstance(shape, str) else "text"
    least = min(_whole(schema.get("minLength"), 0), _MAX_LENGTH)
    text += "x" * (least - len(text))
    return text[: _whole(schema.get("maxLength"), len(text))]


def _number(schema: Mapping[str, Any], *, whole: bool) -> int | float:
    step = schema.get("multipleOf")
    step = step if isinstance(step, int | float) and step > 0 else None
    low, high = _bound(schema, "minimum", 1), _bound(schema, "maximum", -1)
    if low is None:
        value: int | float = 1 if high is None or high >= 1 else high
    else:
        value = low
    if whole or step is not None:
        unit = step or 1
        value = math.ceil(value / unit) * unit if low is not None else value // unit * unit
        if not whole or float(value).is_integer():
            value = int(value) if float(value).is_integer() else value
    if high is not None and value > high:
        raise NoExample
    return value


def _bound(schema: Mapping[str, Any], name: str, inward: int) -> int | float | None:
    """Return the bound, an exclusive one moved inward by one or half the room."""
    plain = schema.get(name)
    strict = schema.get(f"exclusive{name.capitalize()}")
    plain = plain if isinstance(plain, int | float) else None
    if isinstance(strict, bool) or not isinstance(strict, int | float):
        return plain
    other = schema.get("maximum" if inward > 0 else "minimum")
    other = schema.get("exclusiveMaximum" if inward > 0 else "exclusiveMinimum", other)
    room = abs(other - strict) if isinstance(other, int | float) else math.inf
    moved = strict + inward * (1 if room > 1 else room / 2)
    return moved if plain is None else (max if inward > 0 else min)(plain, moved)


def _varied(value: Json, index: int, shape: object) -> Json:
    """Return another value for each index, as far as that is easy."""
    choices = shape.get("enum") if isinstance(shape, Mapping) else None
    if isinstance(choices, list) and index < len(choices):
        return _json(choices[index])
    if isinstance(value, bool):
        return index % 2 == 0
    if isinstance(value, int | float):
        return value + index
    return f"{value}{index}" if isinstance(value, str) and index else value


def _matching(pattern: str) -> str | None:
    """Return a text that the pattern was made for, None when it is too complicated."""
    if len(pattern) > _MAX_PATTERN:
        return None
    try:
        # The standard library's own parser: private, but the same since 3.11.
        parsed = importlib.import_module("re._parser").parse(pattern)
        text = _walk(parsed, 0)
    except (re.error, RecursionError, OverflowError, NoExample, *_UNKNOWN_SHAPES):
        return None
    return text if len(text) <= _MAX_LENGTH else None


def _walk(parsed: Any, depth: int) -> str:
    if depth > _MAX_DEPTH:
        raise NoExample
    out = ""
    for operation, argument in parsed:
        match str(operation):
            case "LITERAL":
                out += chr(argument)
            case "NOT_LITERAL":
                out += "a" if argument != ord("a") else "b"
            case "ANY":
                out += "a"
            case "IN":
                out += _member(argument)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                low, _, inner = argument
                once = _walk(inner, depth + 1)
                if len(once) * int(low) > _MAX_LENGTH:
                    raise NoExample
                out += once * int(low)
            case "SUBPATTERN":
                out += _walk(argument[-1], depth + 1)
            case "ATOMIC_GROUP":
                out += _walk(argument, depth + 1)
            case "BRANCH":
                out += _walk(argument[1][0], depth + 1)
            case "AT":
                pass
            case _:
                raise NoExample
        if len(out) > _MAX_LENGTH:
            raise NoExample
    return out


def _member(choices: Any) -> str:
    """Return a character of a class."""
    kinds = [(str(operation), argument) for operation, argument in choices]
    if kinds[0][0] == "NEGATE":
        return next(
            character
            for character in "a1 _-~é世"
            if not any(_covers(kind, argument, character) for kind, argument in kinds[1:])
        )
    kind, argument = kinds[0]
    if kind == "LITERAL":
        return chr(argument)
    if kind == "RANGE":
        return chr(argument[0])
    return next(character for character in "a1 _-" if _covers(kind, argument, character))


def _covers(kind: str, argument: Any, character: str) -> bool:
    if kind == "LITERAL":
        return bool(ord(character) == argument)
    if kind == "RANGE":
        return bool(argument[0] <= ord(character) <= argument[1])
    name = str(argument)
    inside = {
        "DIGIT": character.isdecimal(),
        "SPACE": character.isspace(),
        "WORD": character.isalnum() or character == "_",
    }[name.removeprefix("CATEGORY_").removeprefix("NOT_")]
    return inside is not ("NOT_" in name)
