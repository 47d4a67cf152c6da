r"""JSON Schema to a grammar (xgrammar's EBNF) whose every text is short, compact JSON.

Why not the engine's own conversion: it allows free white space anywhere, in which small models
get lost, and unlimited strings; and a schema that it refuses breaks the whole pipeline, with
all running generations. What this module writes is always a valid grammar.

The grammar is as strict as the schema or stricter: no white space, no `\u` escapes, members in
the order of `properties`, no members beyond them (unless there are none), strings of at most
2,047 characters and arrays of at most 64 elements where the schema says nothing. It is less
strict, because the grammar cannot say it, for: `multipleOf`, `uniqueItems`, `contains`, `not`,
`if`, `dependent*`, `propertyNames`, `patternProperties`, patterns that `regex_grammar` cannot
translate, and most `format`s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, cast

from turnwire_server.adapters.engines.number_grammar import integer_rule, number_rule
from turnwire_server.adapters.engines.regex_grammar import (
    UnsupportedPattern,
    json_text_rule,
    literal,
)

__all__ = ["GrammarFailure", "json_object_grammar", "json_schema_grammar"]

_LONGEST_GRAMMAR: Final = 200_000
"""Characters. The engine compiles a grammar between two steps of everyone's generations."""
_DEEPEST: Final = 48
_DEFAULT_STRING: Final = 2_047
_BLOCK: Final = 32
"""Long strings are counted in blocks: compiling `{0,1024}` takes seconds, blocks milliseconds."""
_LONGEST_STRING: Final = _BLOCK * 128 - 1
_DIRECT: Final = 127
"""Up to here counting characters one by one is as fast."""
_DEFAULT_ITEMS: Final = 64
_MOST_ITEMS: Final = 128
_FREE_MEMBERS: Final = 16
_SCALARS: Final = ("number", "boolean", "null")

_BASE_RULES: Final = {
    "char": r'[^"\\\x00-\x1f] | "\\" ["\\/bfnrt]',
    "block": f"char{{{_BLOCK}}}",
    "uint": '"0" | [1-9] [0-9]{0,14}',
    "fraction": '"." [0-9]{0,5} [1-9]',
    "integer": '"-"? uint',
    "number": '"-"? uint fraction?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "key": r'"\"" char{1,64} "\""',
    "date": '[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8])',
    "time": '("0" [0-9] | "1" [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] "Z"',
    "hex": "[0-9a-f]",
    "uuid": 'hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12}',
}
_FORMATS: Final = {"date": "date", "time": "time", "date-time": 'date "T" time', "uuid": "uuid"}
_TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")


class GrammarFailure(Exception):
    """The schema cannot become a grammar. `str()` says why and quotes nothing of it."""


def json_schema_grammar(schema: str) -> str:
    """Return the grammar of the JSON texts that `schema` (JSON text) allows.

    Raises:
        GrammarFailure: it is not JSON, allows nothing, or is too large.
    """
    try:
        parsed: object = json.loads(schema)
    except (ValueError, RecursionError):
        raise GrammarFailure("the schema is not JSON") from None
    return _Writer(parsed).write()


def json_object_grammar() -> str:
    """Return the grammar of any JSON object."""
    return _Writer({"type": "object"}).write()


class _Writer:
    """Writes the rules of one schema."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._references: dict[str, str] = {}
        self._length = 0

    def write(self) -> str:
        body = self._value(self._root, 0)
        used = {"root": body, **self._rules}
        return "".join(f"{name} ::= {rule}\n" for name, rule in used.items())

    # Rules.

    def _base(self, name: str) -> str:
        """Make sure that the fixed rule `name` is there, with all that it names."""
        if name not in self._rules:
            rule = _BASE_RULES[name]
            self._rules[name] = rule
            for other in _BASE_RULES:
                if other != name and other in _words(rule):
                    self._base(other)
        return name

    def _rule(self, body: str) -> str:
        """Return the name of the rule for `body`; the same text is compiled once only."""
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = f"r{len(self._names)}"
            self._set(name, body)
        return name

    def _set(self, name: str, body: str) -> None:
        self._length += len(body) + len(name)
        if self._length > _LONGEST_GRAMMAR:
            raise GrammarFailure("the schema is too large for constrained decoding")
        self._rules[name] = body

    # Values.

    def _value(self, schema: object, depth: int) -> str:
        """Return an expression, safe within a sequence, for the values of `schema`."""
        if depth > _DEEPEST:
            raise GrammarFailure("the schema is nested too deeply for constrained decoding")
        if schema is False:
            raise GrammarFailure("the schema allows no value")
        if not isinstance(schema, Mapping) or not schema:
            return self._free()
        schema = cast("Mapping[str, object]", schema)
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(reference, depth)
        if "const" in schema:
            return literal(_compact(schema["const"]))
        if isinstance(choices := schema.get("enum"), list) and choices:
            return _either([literal(_compact(choice)) for choice in choices])
        if isinstance(parts := schema.get("allOf"), list) and parts:
            return self._value(self._merged(schema, parts), depth + 1)
        for key in ("anyOf", "oneOf"):
            if isinstance(parts := schema.get(key), list) and parts:
                return self._any_of(schema, key, parts, depth)
        types = schema.get("type")
        if isinstance(types, list):
            known = [kind for kind in types if kind in _TYPES]
            if not known:
                raise GrammarFailure("the schema has no type that JSON has")
            return _either([self._typed(str(kind), schema, depth) for kind in known])
        if types is None:
            types = _implied_type(schema)
            if types is None:
                return self._free()
        return self._typed(str(types), schema, depth)

    def _typed(self, kind: str, schema: Mapping[str, object], depth: int) -> str:
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer":
                return integer_rule(schema) or self._base("integer")
            case "number":
                return number_rule(schema) or self._base("number")
            case "boolean" | "null":
                return self._base(kind)
            case _:
                raise GrammarFailure("the schema has a type that JSON has not")

    def _any_of(
        self, schema: Mapping[str, object], key: str, parts: Sequence[object], depth: int
    ) -> str:
        rest = {name: value for name, value in schema.items() if name != key}
        options = []
        for part in parts:
            if part is False:
                continue
            shared = rest if isinstance(part, Mapping) and "$ref" not in part else {}
            merged = self._merged(shared, [part]) if shared else part
            options.append(self._value(merged, depth + 1))
        if not options:
            raise GrammarFailure("the schema allows no value")
        return _either(options)

    def _merged(self, schema: Mapping[str, object], parts: Sequence[object]) -> dict[str, object]:
        """Return one schema for `schema` without `allOf`, and all of `parts`."""
        merged = {key: value for key, value in schema.items() if key != "allOf"}
        for part in parts:
            target = part
            for _ in range(_DEEPEST):
                if not isinstance(target, Mapping) or not isinstance(target.get("$ref"), str):
                    break
                target = self._find(str(target["$ref"]))
            if not isinstance(target, Mapping):
                continue
            for key, value in target.items():
                before = merged.get(key)
                if isinstance(before, dict) and isinstance(value, dict):
                    merged[key] = {**before, **value}
                elif key == "required" and isinstance(before, list) and isinstance(value, list):
                    merged[key] = [*before, *value]
                else:
                    merged[key] = value
        return merged

    def _reference(self, reference: str, depth: int) -> str:
        name = self._references.get(reference)
        if name is None:
            name = f"d{len(self._references)}"
            self._references[reference] = name
            # The rule goes in first, so that a schema may refer to itself.
            self._set(name, '""')
            self._set(name, self._value(self._find(reference), depth + 1))
        return name

    def _find(self, reference: str) -> object:
        if not reference.startswith("#"):
            raise GrammarFailure("the schema refers to another document")
        target = self._root
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                raise GrammarFailure("the schema refers to a part that it does not have")
        return target

    # Strings.

    def _string(self, schema: Mapping[str, object]) -> str:
        pattern, form = schema.get("pattern"), schema.get("format")
        if isinstance(pattern, str):
            try:
                return self._rule(f'"\\"" {json_text_rule(pattern)} "\\""')
            except UnsupportedPattern:
                pass  # the text is then free; the module's docstring says so
        elif isinstance(form, str) and form in _FORMATS:
            for name in _words(_FORMATS[form]):
                if name in _BASE_RULES:
                    self._base(name)
            return f'"\\"" {_FORMATS[form]} "\\""'
        least = _bound(schema, "minLength", 0)
        most = _bound(schema, "maxLength", max(_DEFAULT_STRING, least))
        most = max(least, min(most, _LONGEST_STRING))
        if least > _LONGEST_STRING:
            raise GrammarFailure(f"the schema wants a text of over {_LONGEST_STRING} characters")
        return self._rule(f'"\\"" {self._characters(least, most)} "\\""')

    def _characters(self, least: int, most: int) -> str:
        self._base("char")
        if most <= _DIRECT:
            return f"char{{{least},{most}}}"
        self._base("block")
        blocks, extra = divmod(least, _BLOCK)
        required = f"block{{{blocks}}} " if blocks else ""
        required += f"char{{{extra}}} " if extra else ""
        blocks, extra = divmod(most - least, _BLOCK)
        if extra == _BLOCK - 1:
            return f"{required}block{{0,{blocks}}} char{{0,{extra}}}"
        full = f"block{{{blocks}}} char{{0,{extra}}}" if blocks else f"char{{0,{extra}}}"
        if not blocks:
            return required + full
        return f"{required}(block{{0,{blocks - 1}}} char{{0,{_BLOCK - 1}}} | {full})"

    # Arrays and objects.

    def _array(self, schema: Mapping[str, object], depth: int) -> str:
        first = [self._value(part, depth + 1) for part in _list(schema, "prefixItems")]
        least = _bound(schema, "minItems", 0)
        default = max(_DEFAULT_ITEMS, least)
        most = max(least, min(_bound(schema, "maxItems", default), _MOST_ITEMS))
        if least > _MOST_ITEMS:
            raise GrammarFailure(f"the schema wants an array of over {_MOST_ITEMS} elements")
        if first:
            # Elements behind the prefix are never needed for a valid array, unless counted.
            first = first[: max(most, 0)]
            if least > len(first):
                item = self._items(schema, depth)
                first += [item] * (least - len(first))
            return '"[" ' + ' "," '.join(first) + ' "]"'
        if most == 0:
            return '"[]"'
        item = self._items(schema, depth)
        more = f'("," {item}){{{max(least - 1, 0)},{most - 1}}}'
        body = f'"[" {item} {more} "]"'
        return self._rule(f'"[]" | {body}' if least == 0 else body)

    def _items(self, schema: Mapping[str, object], depth: int) -> str:
        items = schema.get("items", True)
        if isinstance(items, list):
            items = True
        return self._rule(self._value(items, depth + 1))

    def _object(self, schema: Mapping[str, object], depth: int) -> str:
        properties = schema.get("properties")
        required = _list(schema, "required")
        needed = {name for name in required if isinstance(name, str)}
        members = dict(properties) if isinstance(properties, Mapping) else {}
        for name in sorted(needed - set(members)):
            extra = schema.get("additionalProperties", True)
            members[name] = extra if isinstance(extra, Mapping) else True
        pairs = [
            (f"{literal(_compact(name) + ':')} {self._rule(self._value(part, depth + 1))}", name)
            for name, part in members.items()
            if part is not False or name in needed
        ]
        if not pairs:
            return self._free_object(schema, depth)
        return f'"{{" {self._members([(pair, name in needed) for pair, name in pairs])} "}}"'

    def _members(self, pairs: Sequence[tuple[str, bool]]) -> str:
        """Return an expression for members in order, those not needed each optional."""
        after = '""'  # what may follow the members so far
        first = '""'  # what may come while there is no member yet
        for pair, is_needed in reversed(pairs):
            if is_needed:
                first = self._rule(f"{pair} {after}")
                after = self._rule(f'"," {pair} {after}')
            else:
                first = self._rule(f"{pair} {after} | {first}")
                after = self._rule(f'("," {pair})? {after}')
        return first

    def _free_object(self, schema: Mapping[str, object], depth: int) -> str:
        extra = schema.get("additionalProperties", True)
        if extra is False:
            return '"{}"'
        if isinstance(extra, Mapping) and extra:
            return self._members_of(self._rule(self._value(extra, depth + 1)))
        return self._members_of(self._free())

    def _free(self) -> str:
        """Return the rule for any value; it refers to itself, so levels are not limited."""
        name = "any"
        if name not in self._rules:
            self._set(name, '""')
            options = [self._string({}), *(self._base(kind) for kind in _SCALARS)]
            options += [self._members_of(name), self._elements_of(name)]
            self._set(name, " | ".join(options))
        return name

    def _members_of(self, value: str) -> str:
        """Return a rule for an object of a few members of any name, each a `value`."""
        pair = self._rule(f'{self._base("key")} ":" {value}')
        return self._rule(f'"{{}}" | "{{" {pair} ("," {pair}){{0,{_FREE_MEMBERS - 1}}} "}}"')

    def _elements_of(self, value: str) -> str:
        return self._rule(f'"[]" | "[" {value} ("," {value}){{0,{_FREE_MEMBERS - 1}}} "]"')


def _implied_type(schema: Mapping[str, object]) -> str | None:
    for kind, keys in {
        "object": ("properties", "required", "additionalProperties"),
        "array": ("items", "prefixItems", "minItems", "maxItems"),
        "string": ("pattern", "minLength", "maxLength", "format"),
        "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }.items():
        if any(key in schema for key in keys):
            return kind
    return None


def _bound(schema: Mapping[str, object], key: str, default: int) -> int:
    value = schema.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return default
    return int(value)


def _list(schema: Mapping[str, object], key: str) -> list[object]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _either(options: Sequence[str]) -> str:
    return options[0] if len(options) == 1 else f"({' | '.join(options)})"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _words(rule: str) -> set[str]:
    return set("".join(character if character.isalpha() else " " for character in rule).split())
