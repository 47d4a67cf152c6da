"""The public JSON in its usual form to keyword arguments of a message: `parse` without its words.

What an own server writes needs no conversion but for enums, unions and JSON text. So one loop looks
whether an object is of that kind; where it is not, right or wrong, `parse` knows what to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from turnwire._codec import options
from turnwire._codec.compiling import compiled_once
from turnwire._codec.options import MAX_SECONDS, MAX_UINT32
from turnwire.v1 import annotations_pb2, tool_pb2

__all__ = ["UNUSUAL", "flat_members", "is_flat", "quick_decoder"]

_Decode: TypeAlias = Callable[[Any], Any]
_Member: TypeAlias = tuple[str, type | None, _Decode | None]
"""Name of the field, type of its JSON (None for any), and how it is converted, if it is."""

_TOOL = options.descriptor_of(tool_pb2.Tool).full_name
_SCALARS: dict[int, type] = {
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_UINT32: int,
}


class _Unusual(Exception):
    """It is for `parse`."""


UNUSUAL = (_Unusual, LookupError, TypeError, AttributeError, RecursionError)
"""What a quick decoder raises at a value that has anything unusual, or wrong, or tools."""


def quick_decoder(message_type: type[Message]) -> Callable[[Any], dict[str, Any]]:
    """Return what makes of a JSON value the arguments that `parse` would build a message of.

    Building it of them cannot fail. The values must be orjson's: without lone surrogates and
    infinite numbers. Those of an envelope have the event in front.
    """
    decode: Callable[[Any], dict[str, Any]] = _decoder(options.descriptor_of(message_type), False)
    return decode


def flat_members(*descriptors: Descriptor) -> dict[str, type[Any]]:
    """Return the members of objects that are text, numbers from 0 on, or lists, by their names."""
    return {
        options.public_name(field): list if field.is_repeated else _SCALARS[field.type]
        for descriptor in descriptors
        for field in descriptor.fields
        if not options.is_map(field) and not options.is_json_text(field)
        if field.is_repeated or _SCALARS.get(field.type) in (str, int)
    }


def is_flat(value: dict[str, Any], members: dict[str, type[Any]]) -> bool:
    """Return whether an object has such members only, with empty lists: `parse` then takes it."""
    for name, content in value.items():
        kind = members.get(name)
        if type(content) is not kind:
            return False
        if kind is int:
            if not 0 <= content <= MAX_UINT32:
                return False
        elif kind is list and content:
            return False
    return True


@compiled_once
def _decoder(descriptor: Descriptor, in_union: bool) -> _Decode:
    """Return the decoder of a message type, as `parse` has them."""
    if descriptor.full_name == options.TIMESTAMP:
        return _timestamp
    shape = options.shape(descriptor)
    if shape == annotations_pb2.SHAPE_UNION:
        return _union(descriptor)
    if shape == annotations_pb2.SHAPE_LIST:
        field = options.only_field(descriptor)
        elements = _each(_decoder(options.message_type_of(field), False))
        return lambda value: {field.name: elements(value)}
    if shape == annotations_pb2.SHAPE_ENVELOPE:
        return _envelope(descriptor)
    return _object(descriptor, in_union)


def _object(descriptor: Descriptor, in_union: bool) -> _Decode:
    members = {
        options.public_name(field): _member(field)
        for field in descriptor.fields
        if not options.is_extra(field) and not options.is_wire_only(field)
    }
    has_extra = any(options.is_extra(field) for field in descriptor.fields)

    def decode(value: Any) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for key, content in value.items():
            member = members.get(key)
            if member is None:
                if has_extra and not (in_union and key == "type"):
                    raise _Unusual
                continue
            name, kind, convert = member
            if type(content) is not kind and kind is not None:
                if content is None:
                    continue
                if kind is not float or type(content) is not int:
                    raise _Unusual
                content = float(content)
            if kind is int and not 0 <= content <= MAX_UINT32:
                raise _Unusual
            if convert is None or (kind is list and not content):
                arguments[name] = content
            elif content is not None:
                arguments[name] = convert(content)
        return arguments

    return decode


def _member(field: FieldDescriptor) -> _Member:
    if options.is_map(field):
        return field.name, dict, _strings
    element, kind = _element(field), _kind(field)
    if not field.is_repeated:
        return field.name, kind, element
    message_type = field.message_type
    if message_type is not None and message_type.full_name == _TOOL:
        return field.name, list, _none
    if element is None:
        return field.name, list, _scalars(_SCALARS[field.type])
    return field.name, list, _each(element)


def _kind(field: FieldDescriptor) -> type[Any] | None:
    if options.is_json_text(field):
        return None
    if options.is_enum(field):
        return str
    return None if field.message_type is not None else _SCALARS[field.type]


def _element(field: FieldDescriptor) -> _Decode | None:
    if options.is_json_text(field):
        return _json_text
    if options.is_enum(field):
        return {name: number for number, name in options.enum_names(field).items()}.__getitem__
    if field.message_type is not None:
        return _decoder(field.message_type, bool(options.public_type(field)))
    return None


def _each(element: _Decode) -> _Decode:
    def decode(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _Unusual
        return list(map(element, value))

    return decode


def _scalars(kind: type[Any]) -> _Decode:
    def decode(value: Any) -> Any:
        for content in value:
            if type(content) is not kind or (kind is int and not 0 <= content <= MAX_UINT32):
                raise _Unusual
        return value

    return decode


def _none(value: Any) -> Any:
    """Take no tools: `parse` remembers them."""
    if value:
        raise _Unusual
    return value


def _union(descriptor: Descriptor) -> _Decode:
    arms: dict[str, tuple[str, _Decode]] = {}
    text_arm = list_arm = plain_arm = None
    for field in options.arms_of(descriptor):
        if options.is_string(field):
            text_arm = field.name
            continue
        element = _element(field)
        if element is None:
            continue  # There is none so far; it would be for `parse`.
        if options.is_list(field):
            list_arm = field.name, element
        elif options.public_type(field):
            arms[options.public_type(field)] = field.name, element
        else:
            plain_arm = field.name, element

    def decode(value: Any) -> dict[str, Any]:
        kind = type(value)
        if kind is dict:
            name, convert = plain_arm or arms[value["type"]]
            return {name: convert(value)}
        if kind is str and text_arm is not None:
            return {text_arm: value}
        if kind is list and list_arm is not None:
            name, convert = list_arm
            return {name: convert(value)}
        raise _Unusual

    return decode


def _envelope(descriptor: Descriptor) -> _Decode:
    fields = options.arms_of(descriptor)
    arms = {
        options.public_type(field): (field.name, _decoder(options.message_type_of(field), True))
        for field in fields
    }
    head = {field.name: _kind(field) for field in descriptor.fields if field not in fields}

    def decode(value: Any) -> dict[str, Any]:
        name, convert = arms[value["type"]]
        arguments = {name: convert(value)}
        for key, kind in head.items():
            content = value.get(key)
            if content is not None:
                if type(content) is not kind:
                    raise _Unusual
                if kind is int and not 0 <= content <= MAX_UINT32:
                    raise _Unusual
                arguments[key] = content
        return arguments

    return decode


def _timestamp(value: Any) -> dict[str, int]:
    if type(value) is not int or not 0 <= value <= MAX_SECONDS:
        raise _Unusual
    return {"seconds": value}


def _strings(value: Any) -> Any:
    for content in value.values():
        if type(content) is not str:
            raise _Unusual
    return value


def _json_text(value: Any) -> str:
    return orjson.dumps(value).decode()
