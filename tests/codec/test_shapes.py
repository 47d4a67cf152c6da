"""Every shape is the JSON of its message: same members, same `type`s, both ways."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from pydantic import TypeAdapter

from turnwire._codec import options
from turnwire.v1 import (
    annotations_pb2,
    client_event_pb2,
    content_pb2,
    conversation_pb2,
    item_pb2,
    response_pb2,
    responses_service_pb2,
    tool_pb2,
)
from turnwire_server.codec import shapes
from turnwire_server.codec.shapes import base, content, events, input, requests, tools

ENVELOPE = {"event_id", "stream_id"}


def all_shapes() -> list[type[shapes.Shape]]:
    def below(shape: type[shapes.Shape]) -> Iterator[type[shapes.Shape]]:
        for child in shape.__subclasses__():
            yield child
            yield from below(child)

    return sorted({s for s in below(base.Shape) if s is not events.Envelope}, key=str)


def sent_messages() -> dict[str, Descriptor]:
    """The message types that a client's JSON can reach."""
    found: dict[str, Descriptor] = {}

    def visit(descriptor: Descriptor) -> None:
        if descriptor.full_name in found or descriptor.GetOptions().map_entry:
            return
        found[descriptor.full_name] = descriptor
        for field in descriptor.fields:
            if field.message_type is not None:
                visit(field.message_type)

    visit(options.descriptor_of(client_event_pb2.ClientEvent))
    visit(options.descriptor_of(responses_service_pb2.CompactRequest))
    visit(options.descriptor_of(conversation_pb2.CreateConversationRequest))
    visit(options.descriptor_of(conversation_pb2.UpdateConversationRequest))
    visit(options.descriptor_of(conversation_pb2.CreateConversationItemsRequest))
    return found


def public_members(descriptor: Descriptor) -> set[str]:
    return {
        options.public_name(field)
        for field in descriptor.fields
        if not options.is_extra(field) and not options.is_wire_only(field)
    }


def public_types(shape: Any) -> set[str]:
    """The `type`s that a shape, or a union of shapes, takes."""
    if get_origin(shape) is Annotated:
        return public_types(get_args(shape)[0])
    if get_args(shape):
        return set().union(*(public_types(arm) for arm in get_args(shape)))
    if not isinstance(shape, type) or not issubclass(shape, base.Shape):
        return set()
    if "type" not in shape.model_fields:
        return set()
    annotation = shape.model_fields["type"].annotation
    return {
        value
        for part in (annotation, *get_args(annotation))
        if get_origin(part) is Literal
        for value in get_args(part)
    }


@pytest.mark.parametrize("shape", all_shapes(), ids=lambda shape: shape.__name__)
def test_a_shape_has_the_members_of_its_message_and_no_others(shape: type[shapes.Shape]) -> None:
    members = {field.alias or name for name, field in shape.model_fields.items()}
    if issubclass(shape, events.Envelope):
        assert ENVELOPE <= members
        members -= ENVELOPE
    if public_types(shape):
        members -= {"type"}

    assert members == public_members(options.descriptor_of(shape.message_type))


def test_every_message_that_a_client_sends_has_a_shape() -> None:
    shaped = {options.descriptor_of(shape.message_type).full_name for shape in all_shapes()}
    objects = {
        name
        for name, descriptor in sent_messages().items()
        if options.shape(descriptor) == annotations_pb2.SHAPE_OBJECT
    }

    assert shaped == objects


UNIONS: list[tuple[type[Message], Any]] = [
    (item_pb2.Item, input.Item),
    (content_pb2.ContentPart, content.ContentPart),
    (tool_pb2.Tool, tools.Tool),
    (tool_pb2.ToolChoice, tools.ToolChoice),
    (tool_pb2.CustomToolFormat, tools.CustomToolFormat),
    (response_pb2.TextFormat, requests.TextFormat),
    (content_pb2.Content, content.Content),
    (client_event_pb2.Input, input.Input),
    (client_event_pb2.ConversationReference, requests.ConversationReference),
]


@pytest.mark.parametrize(("message_type", "union"), UNIONS, ids=lambda value: str(value)[:30])
def test_a_union_takes_the_types_of_its_message_and_no_others(
    message_type: type[Message], union: Any
) -> None:
    arms = options.arms_of(options.descriptor_of(message_type))
    expected = {options.public_type(field) for field in arms} - {""}
    typed = public_types(union) if expected else set()

    assert typed == expected
    kinds = {"string" for field in arms if options.is_string(field)} | {
        "array" for field in arms if options.is_list(field)
    }
    schema = TypeAdapter(union).json_schema()
    arms_of_schema = schema.get("oneOf", [])
    assert kinds == {arm["type"] for arm in arms_of_schema if arm.get("type") in kinds}


def test_every_union_that_a_client_sends_is_held_to_its_message() -> None:
    unions = {
        descriptor.full_name
        for descriptor in sent_messages().values()
        if options.shape(descriptor) == annotations_pb2.SHAPE_UNION
    }

    assert unions == {options.descriptor_of(message).full_name for message, _ in UNIONS}


def test_an_arm_of_a_union_has_the_shape_of_its_message() -> None:
    by_message: defaultdict[str, set[str]] = defaultdict(set)
    for shape in all_shapes():
        by_message[shape.message_type.DESCRIPTOR.full_name] |= public_types(shape)

    for message_type, _ in UNIONS:
        for field in options.arms_of(options.descriptor_of(message_type)):
            if options.public_type(field):
                owner = options.message_type_of(field).full_name
                assert options.public_type(field) in by_message[owner]


def test_every_client_event_has_a_shape_under_its_type() -> None:
    arms = options.arms_of(options.descriptor_of(client_event_pb2.ClientEvent))

    assert {
        public_type: shape.message_type.DESCRIPTOR.full_name
        for public_type, shape in shapes.CLIENT_EVENTS.items()
    } == {options.public_type(field): options.message_type_of(field).full_name for field in arms}
    for public_type, shape in shapes.CLIENT_EVENTS.items():
        assert public_types(shape) == {public_type}
