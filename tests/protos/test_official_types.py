"""The contract against the installed `openai` package, whatever its version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from turnwire._codec import options
from turnwire.v1 import client_event_pb2, item_pb2, response_pb2, server_event_pb2, tool_pb2

official = pytest.importorskip("openai.types.responses")

# The SDK's own types of what the protocol replaces: a flat error, which the service never sends.
REPLACED = {"ResponseErrorEvent"}


def classes_of(union: Any) -> Iterator[type[Any]]:
    """The classes of an annotated union, nested ones included."""
    if isinstance(union, type):
        yield union
    for part in get_args(union):
        if isinstance(part, type) or get_args(part):
            yield from classes_of(part)


def types_of(cls: type[Any]) -> list[str]:
    """The values of a class's `type`."""
    annotation = cls.model_fields["type"].annotation
    return [
        value
        for part in (annotation, *get_args(annotation))
        if get_origin(part) is Literal
        for value in get_args(part)
    ]


def pairs(union: str, message_type: type[Message]) -> list[Any]:
    arms = {
        options.public_type(field): options.message_type_of(field)
        for field in options.arms_of(options.descriptor_of(message_type))
        if options.public_type(field)
    }
    return [
        pytest.param(cls, public_type, arms.get(public_type), id=f"{public_type}-{cls.__name__}")
        for cls in classes_of(getattr(official, union))
        if hasattr(cls, "model_fields") and "type" in cls.model_fields
        if cls.__name__ not in REPLACED
        for public_type in types_of(cls)
    ]


EVENTS = pairs("ResponsesServerEvent", server_event_pb2.ServerEvent)
OTHERS = [
    *pairs("ResponsesClientEvent", client_event_pb2.ClientEvent),
    *pairs("ResponseInputItem", item_pb2.Item),
    *pairs("ResponseOutputItem", item_pb2.Item),
    *pairs("Tool", tool_pb2.Tool),
    *pairs("ResponseFormatTextConfig", response_pb2.TextFormat),
]


def members_of(cls: type[Any]) -> set[str]:
    return {field.alias or name for name, field in cls.model_fields.items()}


def required_of(cls: type[Any]) -> set[str]:
    return {field.alias or n for n, field in cls.model_fields.items() if field.is_required()}


def public_names(descriptor: Descriptor) -> set[str]:
    return {options.public_name(field) for field in descriptor.fields}


def test_the_inventory_is_not_empty() -> None:
    assert len(EVENTS) >= 62
    assert len(OTHERS) >= 2 + 31 + 28 + 16 + 3


@pytest.mark.parametrize(("cls", "public_type", "message"), EVENTS)
def test_an_official_event_has_an_arm_with_all_its_members(
    cls: type[Any], public_type: str, message: Descriptor | None
) -> None:
    assert message is not None, public_type
    envelope = {"type", "sequence_number", "stream_id"}

    assert members_of(cls) - envelope - {"agent"} <= public_names(message)


@pytest.mark.parametrize(("cls", "public_type", "message"), OTHERS)
def test_an_official_item_tool_or_format_has_an_arm_that_can_hold_it(
    cls: type[Any], public_type: str, message: Descriptor | None
) -> None:
    assert message is not None, public_type
    required = required_of(cls) - {"type", "stream_id"}

    assert required <= public_names(message)
    keeps_the_rest = any(options.is_extra(field) for field in message.fields)
    assert keeps_the_rest or members_of(cls) - {"type", "stream_id"} <= public_names(message)


def test_the_official_response_has_no_member_that_ours_lacks() -> None:
    ours = public_names(options.descriptor_of(response_pb2.Response))

    assert members_of(official.Response) <= ours
