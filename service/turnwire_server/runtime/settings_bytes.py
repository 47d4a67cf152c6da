"""The settings of a create as bytes that can be compared.

A message type of its own has all members of a create but those `OF_ONE_TURN`, messages and texts
as bytes: so a create is taken apart and put together again by the protobuf library, without one
step of Python per member, and numbers that are equal to Python (0.0 and -0.0) stay apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor

from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire_server.session.create_rules import OF_ONE_TURN

__all__ = ["Settings", "sent_settings", "settings_of"]


class Settings(Protocol):
    """The settings of one create."""

    @property
    def tools(self) -> Sequence[bytes]:
        """The tools, serialized."""
        ...

    def SerializeToString(self) -> bytes:
        """Return the settings: creates with the same bytes have the same settings."""
        ...


class _Message(Settings, Protocol):
    @property
    def response_create(self) -> Sequence[_Message]: ...
    def DiscardUnknownFields(self) -> None: ...


class _Type(Protocol):
    def FromString(self, data: bytes) -> _Message: ...


def settings_of(create: ResponseCreate) -> Settings:
    """Return the settings of a create."""
    settings = _SETTINGS.FromString(create.SerializeToString())
    settings.DiscardUnknownFields()
    return settings


def sent_settings(event: bytes) -> Settings | None:
    """Return the settings of the create in a serialized `ClientEvent`, None if there is not one."""
    creates = _EVENT.FromString(event).response_create
    if len(creates) != 1:
        return None
    settings = creates[0]
    settings.DiscardUnknownFields()
    return settings


def _types() -> tuple[_Type, _Type]:
    """Return the types of an event and of the settings of its creates."""
    file = descriptor_pb2.FileDescriptorProto(name="turnwire/settings.proto", syntax="proto2")
    settings = file.message_type.add(name="Settings")
    for member in ResponseCreate.DESCRIPTOR.fields:
        if member.name not in OF_ONE_TURN:
            settings.field.append(_as_bytes(member))
    event = file.message_type.add(name="Event")
    # Repeated, so that one which is sent in several parts can be told from one.
    event.field.add(
        name="response_create",
        number=ClientEvent.RESPONSE_CREATE_FIELD_NUMBER,
        label=FieldDescriptor.LABEL_REPEATED,
        type=FieldDescriptor.TYPE_MESSAGE,
        type_name="Settings",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = (pool.FindMessageTypeByName(name) for name in ("Event", "Settings"))
    own_event, own_settings = (message_factory.GetMessageClass(one) for one in found)
    return cast(_Type, own_event), cast(_Type, own_settings)


def _as_bytes(member: FieldDescriptor) -> descriptor_pb2.FieldDescriptorProto:
    """Return a member of settings: as it is in a create, but for what is longer than a number."""
    own = descriptor_pb2.FieldDescriptorProto(name=member.name, number=member.number)
    if member.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING):
        # Repeated, because the parts of a message that comes in several parts are all its own.
        own.type, own.label = own.TYPE_BYTES, own.LABEL_REPEATED
    else:
        own.type = cast(descriptor_pb2.FieldDescriptorProto.Type.ValueType, member.type)
        own.label = own.LABEL_REPEATED if member.is_repeated else own.LABEL_OPTIONAL
    return own


_EVENT, _SETTINGS = _types()
