"""Check of the JSON text inside messages that did not come as JSON.

A codec that meets `"{"` in a field of JSON text would write broken JSON to another peer, so
whoever takes a message from gRPC checks it once, at the edge.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from turnwire._codec import options
from turnwire._codec.compiling import compiled_once
from turnwire._codec.errors import DecodeError
from turnwire.v1 import annotations_pb2, tool_pb2

__all__ = ["verify"]

_Check = Callable[[Any], None]

_TOOL = options.descriptor_of(tool_pb2.Tool).full_name
_HEADERS = options.descriptor_of(tool_pb2.McpTool).full_name + ".headers"
_MAX_REMEMBERED_CHARS = 8_192
_MAX_REMEMBERED = 1_024
_MANY = 2
"""From so many tools on, comparing a list with one that was checked is worth it."""
_MAX_LISTS = 64
_MAX_LIST_BYTES = 262_144

_by_type: dict[type[Message], _Check] = {}


def verify(message: Message) -> None:
    """Check that every field of JSON text in `message` holds JSON.

    Args:
        message: Any message of `turnwire.v1`.

    Raises:
        DecodeError: One does not; `path` is the member's in the public JSON.
    """
    check = _by_type.get(type(message))
    if check is None:
        check = _by_type[type(message)] = _members(options.descriptor_of(message), None)
    check(message)


@compiled_once
def _members(descriptor: Descriptor, kind: None) -> _Check:
    """Return the check of a message type, which is the same for every use: `kind` is None."""
    checks = {
        field: _named(field, check)
        for field in descriptor.fields
        if (check := _check(field)) is not None
    }

    def check_members(message: Any) -> None:
        for field, value in message.ListFields():
            check = checks.get(field)
            if check is not None:
                check(value)

    return check_members


def _check(field: FieldDescriptor) -> _Check | None:
    if options.is_extra(field):
        return _object_text
    if options.is_json_text(field):
        element: _Check = _secret_text if field.full_name == _HEADERS else _text
    elif field.message_type is not None and not options.is_map(field):
        element = _members(field.message_type, None)
        if field.is_repeated and field.message_type.full_name == _TOOL:
            return _CheckedTools(_each(element))
    else:
        return None
    return _each(element) if field.is_repeated else element


def _each(element: _Check) -> _Check:
    def check(values: Any) -> None:
        for index, value in enumerate(values):
            try:
                element(value)
            except DecodeError as error:
                raise error.within(index) from None

    return check


class _CheckedTools:
    """The check of a list of tools, which remembers lists that passed.

    Clients send the same tools with every turn.
    """

    def __init__(self, check: _Check) -> None:
        self._check = check
        self._passed: dict[tuple[int, bytes, bytes], list[Message]] = {}
        """By what tells most lists apart, copies of the tools; oldest first."""

    def __call__(self, values: Any) -> None:
        if len(values) < _MANY:
            return self._check(values)
        key = (len(values), values[0].SerializeToString(), values[-1].SerializeToString())
        if values == self._passed.get(key):
            return None
        self._check(values)
        encoded = [value.SerializeToString() for value in values]
        if sum(map(len, encoded)) > _MAX_LIST_BYTES or _hold_credentials(values):
            return None
        if len(self._passed) >= _MAX_LISTS:
            del self._passed[next(iter(self._passed))]
        self._passed[key] = [
            type(value).FromString(one) for value, one in zip(values, encoded, strict=True)
        ]


def _hold_credentials(tools: Any) -> bool:
    """Return whether tools hold what is not to be remembered."""
    return any(tool.HasField("mcp") or _hold_credentials(tool.namespace.tools) for tool in tools)


def _named(field: FieldDescriptor, check: _Check) -> _Check:
    """Return `check` with the field's member in the path of its errors."""
    owner = field.containing_type
    is_object = owner is None or options.shape(owner) == annotations_pb2.SHAPE_OBJECT
    if not is_object or options.is_extra(field):
        return check  # An arm is the object itself, and so are the members of `extra_json`.
    name = options.public_name(field)

    def check_named(value: Any) -> None:
        try:
            check(value)
        except DecodeError as error:
            raise error.within(name) from None

    return check_named


def _text(text: str) -> None:
    if len(text) > _MAX_REMEMBERED_CHARS or not _is_json(text):
        _secret_text(text)


def _secret_text(text: str) -> None:
    """Check text that is not to be remembered."""
    if not _parses(text):
        raise DecodeError("json", "is not JSON text")


def _object_text(text: str) -> None:
    try:
        is_object = isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        is_object = False
    if not is_object:
        raise DecodeError("json", "has an `extra_json` that is not the JSON text of an object")


def _parses(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


_is_json = lru_cache(_MAX_REMEMBERED)(_parses)
"""Remembers: clients send the same tools with every turn."""
