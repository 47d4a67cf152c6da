"""Every message type of the contract, and hypothesis strategies for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from turnwire._codec import options
from turnwire.v1 import (
    annotations_pb2,
    client_event_pb2,
    content_pb2,
    error_pb2,
    item_pb2,
    models_service_pb2,
    response_pb2,
    responses_service_pb2,
    server_event_pb2,
    session_pb2,
    tool_pb2,
)

__all__ = ["FILES", "descriptors", "examples", "message_types", "messages"]


def examples(count: int) -> settings:
    """Return the settings of a test with `count` examples, the same in each run.

    Health checks judge the machine's speed: none of them.
    """
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


FILES = (
    client_event_pb2,
    content_pb2,
    error_pb2,
    item_pb2,
    models_service_pb2,
    response_pb2,
    responses_service_pb2,
    server_event_pb2,
    session_pb2,
    tool_pb2,
)

_MAX_DEPTH = 6
_texts = st.text(max_size=8)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=5,
)
# A top-level null would be an absent member.
_json_text = _json.filter(lambda value: value is not None).map(lambda v: orjson.dumps(v).decode())
_extra_text = st.dictionaries(_texts.map("x_".__add__), _json, min_size=1, max_size=2).map(
    lambda value: orjson.dumps(value).decode()
)
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    FieldDescriptor.TYPE_STRING: _texts,
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
}


def descriptors() -> Iterator[Descriptor]:
    """All message types of the package, map entries aside."""
    for file in FILES:
        yield from file.DESCRIPTOR.message_types_by_name.values()


def message_types() -> list[type[Message]]:
    """The classes of all message types."""
    return [message_factory.GetMessageClass(descriptor) for descriptor in descriptors()]


@st.composite
def messages(draw: st.DrawFn, message_type: type[Message]) -> Message:
    """Draw a message that the public JSON can show whole."""
    return message_type(**_arguments(draw, options.descriptor_of(message_type), 0))


def _arguments(draw: st.DrawFn, descriptor: Descriptor, depth: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    fields = list(descriptor.fields)
    if options.shape(descriptor) in (
        annotations_pb2.SHAPE_UNION,
        annotations_pb2.SHAPE_ENVELOPE,
    ):
        arms = options.arms_of(descriptor)
        arm = draw(st.sampled_from(arms))
        arguments[arm.name] = _element(draw, arm, depth)
        fields = [field for field in fields if field not in arms]
    for field in fields:
        if options.is_wire_only(field) or not draw(st.booleans()):
            continue
        if options.is_map(field):
            arguments[field.name] = draw(st.dictionaries(_texts, _texts, max_size=2))
        elif field.message_type is not None and depth > _MAX_DEPTH:
            continue
        elif field.is_repeated:
            size = draw(st.integers(0, 2))
            arguments[field.name] = [_element(draw, field, depth) for _ in range(size)]
        else:
            arguments[field.name] = _element(draw, field, depth)
    return arguments


def _element(draw: st.DrawFn, field: FieldDescriptor, depth: int) -> Any:
    if options.is_extra(field):
        return draw(_extra_text)
    if options.is_json_text(field):
        return draw(_json_text)
    if options.is_enum(field):
        return draw(st.sampled_from(sorted(options.enum_names(field))))
    if field.message_type is None:
        return draw(_SCALARS[field.type])
    if field.message_type.full_name == options.TIMESTAMP:
        return {"seconds": draw(st.integers(0, 253_402_300_799))}
    return _arguments(draw, field.message_type, depth + 1)
