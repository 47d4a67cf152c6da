"""What `annotations.proto` says of messages and fields, read once at compile time."""

from __future__ import annotations

from typing import cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from turnwire.v1 import annotations_pb2
from turnwire.v1.annotations_pb2 import Shape

__all__ = [
    "MAX_SECONDS",
    "MAX_UINT32",
    "TIMESTAMP",
    "arms_of",
    "descriptor_of",
    "enum_names",
    "is_always",
    "is_enum",
    "is_extra",
    "is_json_text",
    "is_list",
    "is_map",
    "is_string",
    "is_wire_only",
    "message_type_of",
    "only_field",
    "public_name",
    "public_type",
    "shape",
    "untyped_key",
]

MAX_UINT32 = 2**32 - 1
MAX_SECONDS = 253_402_300_799
"""The end of year 9999, where protobuf's timestamps end."""
TIMESTAMP = "google.protobuf.Timestamp"
"""Whole seconds in the public JSON."""


def descriptor_of(message: Message | type[Message]) -> Descriptor:
    """Return the descriptor of a message or of a message type."""
    # The stubs also name the C class, which has the same interface.
    return cast(Descriptor, message.DESCRIPTOR)


def message_type_of(field: FieldDescriptor) -> Descriptor:
    """Return the message type of a field that is known to hold messages."""
    message_type = field.message_type
    assert message_type is not None
    return message_type


def shape(descriptor: Descriptor) -> Shape.ValueType:
    """Return the message's shape; `SHAPE_OBJECT` when it says nothing."""
    found = descriptor.GetOptions().Extensions[annotations_pb2.shape]
    return annotations_pb2.SHAPE_OBJECT if found == annotations_pb2.SHAPE_UNSPECIFIED else found


def public_name(field: FieldDescriptor) -> str:
    """Return the name of the field's JSON member."""
    return field.GetOptions().Extensions[annotations_pb2.public_name] or str(field.name)


def public_type(field: FieldDescriptor) -> str:
    """Return the JSON `type` that a oneof arm stands for; "" when it stands for none."""
    return field.GetOptions().Extensions[annotations_pb2.public_type]


def untyped_key(field: FieldDescriptor) -> str:
    """Return the member by which an object without `type` is this arm; "" when there is none."""
    return field.GetOptions().Extensions[annotations_pb2.untyped_key]


def is_json_text(field: FieldDescriptor) -> bool:
    """Tell whether the field holds JSON text."""
    return field.GetOptions().Extensions[annotations_pb2.json_text]


def is_always(field: FieldDescriptor) -> bool:
    """Tell whether the JSON always has the field's member."""
    return field.GetOptions().Extensions[annotations_pb2.always]


def is_extra(field: FieldDescriptor) -> bool:
    """Tell whether the field holds the members that this version does not know."""
    return field.GetOptions().Extensions[annotations_pb2.extra]


def is_wire_only(field: FieldDescriptor) -> bool:
    """Tell whether the JSON does not show the field."""
    return field.GetOptions().Extensions[annotations_pb2.wire_only]


def is_map(field: FieldDescriptor) -> bool:
    """Tell whether the field is a map."""
    message_type = field.message_type
    return message_type is not None and bool(message_type.GetOptions().map_entry)


def is_enum(field: FieldDescriptor) -> bool:
    """Tell whether the field is of an enum type."""
    return field.enum_type is not None


def is_string(field: FieldDescriptor) -> bool:
    """Tell whether the field is a string."""
    return bool(field.type == FieldDescriptor.TYPE_STRING)


def is_list(field: FieldDescriptor) -> bool:
    """Tell whether the field is of a message type that is a JSON array."""
    message_type = field.message_type
    return message_type is not None and shape(message_type) == annotations_pb2.SHAPE_LIST


def enum_names(field: FieldDescriptor) -> dict[int, str]:
    """Return the JSON name of each number of the field's enum; zero has none.

    `ITEM_STATUS_IN_PROGRESS` is `in_progress`: lower case, without the enum's own name.
    """
    enum = cast(EnumDescriptor, field.enum_type)
    zero = enum.values_by_number[0].name
    prefix = zero.removesuffix("UNSPECIFIED")
    return {
        value.number: value.name.removeprefix(prefix).lower()
        for value in enum.values
        if value.number
    }


def arms_of(descriptor: Descriptor) -> list[FieldDescriptor]:
    """Return the arms of the message's real oneof, in order of declaration.

    An `optional` field is a oneof of its own to protobuf; those are not meant.
    """
    return next(list(oneof.fields) for oneof in descriptor.oneofs if len(oneof.fields) > 1)


def only_field(descriptor: Descriptor) -> FieldDescriptor:
    """Return the one field of a `SHAPE_LIST` message."""
    (field,) = descriptor.fields
    return field
