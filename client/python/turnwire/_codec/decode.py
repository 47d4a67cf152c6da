"""The public JSON to messages.

A value becomes nested keyword arguments first, then one call builds the message: protobuf fills
a tree from dicts about as fast as Python fills one message, and nothing is copied twice.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, TypeVar

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from turnwire._codec import options
from turnwire._codec.compiling import compiled_once
from turnwire._codec.errors import DecodeError, quoted, wrong_type
from turnwire._codec.options import MAX_SECONDS, MAX_UINT32
from turnwire.v1 import annotations_pb2, tool_pb2

__all__ = ["CREDENTIALS", "JSON_ONLY", "Decode", "loads", "parse"]

Decode = Callable[[Any], Any]
"""From a JSON value to a keyword argument of a message; raises `DecodeError`."""

AnyMessage = TypeVar("AnyMessage", bound=Message)

_MAX_KEY_CHARS = 64

_TOOL = options.descriptor_of(tool_pb2.Tool).full_name
_MAX_LISTS = 32
_MAX_LIST_BYTES = 262_144
JSON_ONLY = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
JSON_ONLY |= orjson.OPT_PASSTHROUGH_SUBCLASS
"""What no JSON parser returns is refused, but enums, UUIDs and NaN: they pass for their JSON."""
CREDENTIALS = b'"mcp"'  # In the JSON of all tools that bring some; those are not remembered.


def loads(message_type: type[AnyMessage], data: bytes | str) -> AnyMessage:
    """Build a message from JSON text.

    Args:
        message_type: The message type, for example `ServerEvent`.
        data: JSON text, in UTF-8 when bytes.

    Returns:
        A new message.

    Raises:
        DecodeError: `data` is not JSON, or not the public JSON of such a message.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        problem = f"is not valid JSON at line {error.lineno}, column {error.colno}"
        raise DecodeError("json", problem) from None
    return parse(message_type, value)


def parse(message_type: type[AnyMessage], value: object) -> AnyMessage:
    """Build a message from a JSON value.

    Members that are null are absent. Unknown members go to the message's `extra_json` where it
    has one and are ignored elsewhere.

    Args:
        message_type: The message type, for example `ResponseCreate`.
        value: What a JSON parser returned: dicts, lists, strings, numbers, booleans, None.

    Returns:
        A new message.

    Raises:
        DecodeError: `value` is not the public JSON of such a message.
    """
    try:
        arguments = _decoder(options.descriptor_of(message_type), False)(value)
    except RecursionError:
        raise DecodeError("json", "is nested too deep") from None
    return message_type(**arguments)


@compiled_once
def _decoder(descriptor: Descriptor, in_union: bool) -> Decode:
    """Return the decoder of a message type.

    Args:
        descriptor: The message type.
        in_union: Whether the object has a `type` beside the message's own members.
    """
    if descriptor.full_name == options.TIMESTAMP:
        return _timestamp
    shape = options.shape(descriptor)
    if shape == annotations_pb2.SHAPE_UNION:
        return _union(descriptor)
    if shape == annotations_pb2.SHAPE_LIST:
        return _list(descriptor)
    if shape == annotations_pb2.SHAPE_ENVELOPE:
        return _envelope(descriptor)
    return _object(descriptor, in_union)


def _object(descriptor: Descriptor, in_union: bool) -> Decode:
    members: dict[str, tuple[str, Decode]] = {}
    extra = ""
    for field in descriptor.fields:
        if options.is_extra(field):
            extra = field.name
        elif not options.is_wire_only(field):
            members[options.public_name(field)] = (field.name, _member(field))
    known_aside = "type" if in_union else None

    def decode(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_type("an object", value)
        arguments: dict[str, Any] = {}
        unknown: dict[str, Any] = {}
        for key, content in value.items():
            member = members.get(key)
            if member is None:
                if extra and key != known_aside:
                    unknown[key] = content
            elif content is not None:
                name, convert = member
                try:
                    arguments[name] = convert(content)
                except DecodeError as error:
                    raise error.within(key) from None
        if unknown:
            arguments[extra] = _json_text(unknown)
        return arguments

    return decode


def _member(field: FieldDescriptor) -> Decode:
    if options.is_map(field):
        return _strings
    element = _element(field)
    if not field.is_repeated:
        return element
    message_type = field.message_type
    is_tools = message_type is not None and message_type.full_name == _TOOL
    return _KnownTools(_each(element)) if is_tools else _each(element)


def _element(field: FieldDescriptor) -> Decode:
    if options.is_json_text(field):
        return _json_text
    if options.is_enum(field):
        return _enum(field)
    if field.message_type is not None:
        return _decoder(field.message_type, bool(options.public_type(field)))
    return _SCALARS[field.type]


def _each(element: Decode) -> Decode:
    def decode(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise wrong_type("an array", value)
        decoded: list[Any] = []
        try:
            for content in value:
                decoded.append(element(content))
        except DecodeError as error:
            raise error.within(len(decoded)) from None
        return decoded

    return decode


class _KnownTools:
    """Decodes lists of tools, and remembers them: the same ones come again and again."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: dict[bytes, list[tool_pb2.Tool]] = {}
        """By their JSON; oldest first."""

    def __call__(self, value: Any) -> list[Any]:
        try:
            text = orjson.dumps(value, option=JSON_ONLY)
        except orjson.JSONEncodeError:
            text = b""
        known = self._known.get(text)
        if known is None:
            decoded: list[Any] = self._decode(value)
            if not 0 < len(text) <= _MAX_LIST_BYTES or CREDENTIALS in text:
                return decoded
            known = [tool_pb2.Tool(**arguments) for arguments in decoded]
            if len(self._known) >= _MAX_LISTS:
                del self._known[next(iter(self._known))]
            self._known[text] = known
        return known  # Whoever builds a message of them copies them.


def _union(descriptor: Descriptor) -> Decode:
    arms: dict[str, tuple[str, Decode]] = {}
    untyped: list[tuple[str, tuple[str, Decode]]] = []
    text_arm = ""
    list_arm: tuple[str, Decode] | None = None
    plain_arm: tuple[str, Decode] | None = None
    for field in options.arms_of(descriptor):
        arm = (str(field.name), _element(field))
        public_type = options.public_type(field)
        if options.is_string(field):
            text_arm = field.name
        elif options.is_list(field):
            list_arm = arm
        elif public_type:
            arms[public_type] = arm
        else:
            plain_arm = arm
        if options.untyped_key(field):
            untyped.append((options.untyped_key(field), arm))
    kinds = ("a string", text_arm), ("an array", list_arm), ("an object", arms or plain_arm)
    expected = " or ".join(kind for kind, found in kinds if found)

    def decode(value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            name, convert = choose(value)
            return {name: convert(value)}
        if text_arm and isinstance(value, str):
            return {text_arm: _string(value)}
        if list_arm is not None and isinstance(value, list | tuple):
            name, convert = list_arm
            return {name: convert(value)}
        raise wrong_type(expected, value)

    def choose(value: dict[str, Any]) -> tuple[str, Decode]:
        if plain_arm is not None:
            return plain_arm
        if not arms:
            raise wrong_type(expected, value)
        public_type = value.get("type")
        if isinstance(public_type, str):
            arm = arms.get(public_type)
            if arm is None:
                raise DecodeError("value", f"has the unknown value {quoted(public_type)}", "type")
            return arm
        if public_type is not None:
            raise wrong_type("a string", public_type).within("type")
        for key, arm in untyped:
            if value.get(key) is not None:
                return arm
        raise DecodeError("missing", "is missing", "type")

    return decode


def _list(descriptor: Descriptor) -> Decode:
    field = options.only_field(descriptor)
    name = field.name
    elements = _each(_decoder(options.message_type_of(field), False))
    return lambda value: {name: elements(value)}


def _envelope(descriptor: Descriptor) -> Decode:
    fields = options.arms_of(descriptor)
    arms: dict[str, tuple[str, Decode]] = {
        options.public_type(field): (
            field.name,
            _decoder(options.message_type_of(field), True),
        )
        for field in fields
    }
    head = [
        (str(field.name), _element(field)) for field in descriptor.fields if field not in fields
    ]

    def decode(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_type("an object", value)
        public_type = value.get("type")
        if public_type is None:
            raise DecodeError("missing", "is missing", "type")
        if not isinstance(public_type, str):
            raise wrong_type("a string", public_type).within("type")
        arm = arms.get(public_type)
        if arm is None:
            raise DecodeError("value", f"has the unknown value {quoted(public_type)}", "type")
        name, convert = arm
        arguments = {name: convert(value)}
        for key, convert in head:
            content = value.get(key)
            if content is not None:
                try:
                    arguments[key] = convert(content)
                except DecodeError as error:
                    raise error.within(key) from None
        return arguments

    return decode


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_type("a string", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DecodeError("json", "has a lone surrogate, which UTF-8 cannot hold") from None
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong_type("a boolean", value)
    return value


def _uint32(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type("an integer", value)
    if not 0 <= value <= MAX_UINT32:
        raise DecodeError("value", f"is not an integer from 0 to {MAX_UINT32}")
    return value


def _double(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type("a number", value)
    try:
        number = float(value)
    except OverflowError:
        raise DecodeError("value", "is too large a number") from None
    if not isfinite(number):
        raise DecodeError("value", "is not a finite number")
    return number


def _timestamp(value: Any) -> dict[str, int]:
    seconds = _double(value)
    if not 0 <= seconds <= MAX_SECONDS:
        raise DecodeError("value", "is not a number of seconds since 1970")
    return {"seconds": int(seconds)}


def _strings(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise wrong_type("an object", value)
    decoded = {}
    for key, content in value.items():
        try:
            decoded[_string(key)] = _string(content)
        except DecodeError as error:
            raise error.within(str(key)[:_MAX_KEY_CHARS]) from None
    return decoded


def _json_text(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        # Deeper than orjson writes, beyond 64 bits, a lone surrogate, or no JSON at all.
        raise DecodeError("json", "is nested too deep, or not JSON") from None


def _enum(field: FieldDescriptor) -> Decode:
    numbers = {name: number for number, name in options.enum_names(field).items()}

    def decode(value: Any) -> int:
        if not isinstance(value, str):
            raise wrong_type("a string", value)
        number = numbers.get(value)
        if number is None:
            raise DecodeError("value", f"has the unknown value {quoted(value)}")
        return number

    return decode


_SCALARS: dict[int, Decode] = {
    FieldDescriptor.TYPE_BOOL: _boolean,
    FieldDescriptor.TYPE_DOUBLE: _double,
    FieldDescriptor.TYPE_STRING: _string,
    FieldDescriptor.TYPE_UINT32: _uint32,
}
"""Scalars that the contract uses; another one fails when its message type is compiled."""
