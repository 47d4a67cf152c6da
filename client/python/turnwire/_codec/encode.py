"""Messages to the public JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from turnwire._codec import options
from turnwire._codec.compiling import compiled_once
from turnwire.v1 import annotations_pb2

__all__ = ["Asked", "Encode", "add_asked", "dumps", "members_of", "to_value"]

Encode = Callable[[Any], Any]
"""From what protobuf holds to what JSON shows."""

_Member: TypeAlias = tuple[str, Encode | None]
"""Name of a member, and its encoder; None when JSON shows the value as it is."""

Asked: TypeAlias = tuple[str, bool, bool, str, Encode | None]
"""A member that a message is asked for: its field, whether that has presence, whether a value that
is there is shown also when it is zero or empty; then name and encoder, as above."""

_LEAST_PLAIN = 2
"""So many members are worth being read in one call."""
_MOST_ASKED = 2
"""Where more members may be absent, it is quicker to have protobuf walk those that are there."""

_by_type: dict[type[Message], Encode] = {}
"""Encoders of the types that were encoded by themselves."""


def to_value(message: Message) -> Any:
    """Return the public JSON value of a message.

    Args:
        message: Any message of `turnwire.v1`. JSON text inside it must be JSON: what comes from
            a peer over gRPC passes `verify` first.

    Returns:
        A new dict, list or string, or None for a union without a value. Members that hold JSON
        text are `orjson.Fragment`, so that schemas and arguments are not parsed again.

    Raises:
        ValueError: An envelope without an event.
    """
    encode = _by_type.get(type(message)) or _encoder_of(message)
    return encode(message)


def dumps(message: Message) -> bytes:
    """Return the public JSON of a message, in UTF-8 without white space.

    Raises:
        ValueError: An envelope without an event.
    """
    encode = _by_type.get(type(message)) or _encoder_of(message)
    return orjson.dumps(encode(message))


def members_of(descriptor: Descriptor) -> dict[FieldDescriptor, _Member]:
    """Return each member of an object type: its name, and its encoder.

    The encoder is None when JSON shows the value as it is.
    """
    return {
        field: (options.public_name(field), _member(field))
        for field in descriptor.fields
        if not options.is_extra(field) and not options.is_wire_only(field)
    }


def _encoder_of(message: Message) -> Encode:
    encode = _by_type[type(message)] = _encoder(options.descriptor_of(message), "")
    return encode


@compiled_once
def _encoder(descriptor: Descriptor, public_type: str) -> Encode:
    """Return the encoder of a message type.

    Args:
        descriptor: The message type.
        public_type: `type` of the object when the message is an arm of a union, else "".
    """
    if descriptor.full_name == options.TIMESTAMP:
        return attrgetter("seconds")
    shape = options.shape(descriptor)
    if shape == annotations_pb2.SHAPE_UNION:
        return _union(descriptor)
    if shape == annotations_pb2.SHAPE_LIST:
        return _list(descriptor)
    if shape == annotations_pb2.SHAPE_ENVELOPE:
        return _envelope(descriptor)
    return _object(descriptor, public_type)


def _object(descriptor: Descriptor, public_type: str) -> Encode:
    # The template has what is there even when the message is empty.
    template: dict[str, Any] = {"type": public_type} if public_type else {}
    members = members_of(descriptor)
    for field, (name, _) in members.items():
        is_there = not field.has_presence and not field.is_repeated
        if is_there and not options.is_enum(field) and not options.is_json_text(field):
            template[name] = field.default_value
        elif is_there or options.is_always(field):
            template[name] = None
    extra = next((field for field in descriptor.fields if options.is_extra(field)), None)
    plain = [field for field, (_, convert) in members.items() if _is_plain(field, convert)]
    if len(plain) < _LEAST_PLAIN:
        plain = []
    others = {field: member for field, member in members.items() if field not in plain}
    if extra is not None or len(others) > _MOST_ASKED:
        return _listed(template, members, extra)
    return _asked(template, {members[field][0]: field.name for field in plain}, others)


def _is_plain(field: FieldDescriptor, convert: Encode | None) -> bool:
    """Return whether JSON always has the field's value, as it is."""
    return convert is None and not field.has_presence and not field.is_repeated


def _listed(
    template: dict[str, Any],
    members: dict[FieldDescriptor, _Member],
    extra: FieldDescriptor | None,
) -> Encode:
    """Return the encoder of an object with many members that may be absent.

    Protobuf itself walks those that are set, which is one call instead of two for each.

    Args:
        template: What an empty message has.
        members: All members.
        extra: Holds the members that this version does not know; None for none.
    """
    empties = [
        (name, dict if options.is_map(field) else list)
        for field, (name, _) in members.items()
        if field.is_repeated and options.is_always(field)
    ]

    def encode(message: Message) -> dict[str, Any]:
        out = template.copy()
        for name, make in empties:
            out[name] = make()
        more = ""
        for field, value in message.ListFields():
            member = members.get(field)
            if member is not None:
                name, convert = member
                out[name] = value if convert is None else convert(value)
            elif field == extra:
                more = value
        if more:
            for name, value in orjson.loads(more).items():
                out.setdefault(name, value)
        return out

    return encode


def _asked(
    template: dict[str, Any], plain: dict[str, str], others: dict[FieldDescriptor, _Member]
) -> Encode:
    """Return the encoder of an object with few members that may be absent: each is asked for.

    Args:
        template: What an empty message has.
        plain: Members of which JSON always has the value -> their fields: all are one call.
        others: The other members.
    """
    values = attrgetter(*plain.values()) if plain else None
    asked: list[Asked] = [
        (field.name, field.has_presence, _shows_zero(field, convert), name, convert)
        for field, (name, convert) in others.items()
    ]

    def encode(message: Message) -> dict[str, Any]:
        out = template.copy()
        if values is not None:
            out.update(zip(plain, values(message), strict=True))
        add_asked(out, message, asked)
        return out

    return encode


def add_asked(out: dict[str, Any], message: Message, asked: Sequence[Asked]) -> None:
    """Ask a message for members, and put into `out` what is shown of them."""
    for field, has_presence, shows_zero, name, convert in asked:
        if has_presence and not message.HasField(field):
            continue
        value = getattr(message, field)
        if value or shows_zero:
            out[name] = value if convert is None else convert(value)


def _shows_zero(field: FieldDescriptor, convert: Encode | None) -> bool:
    """Return whether a value that is there is shown also when it is zero or empty."""
    return field.has_presence or (options.is_always(field) if field.is_repeated else not convert)


def _member(field: FieldDescriptor) -> Encode | None:
    """Return the encoder of a field's value, None when JSON shows the value as it is."""
    if options.is_map(field):
        return _sorted_map
    element = _element(field)
    if not field.is_repeated:
        return element
    if element is None:
        return list
    return lambda values: list(map(element, values))


def _element(field: FieldDescriptor) -> Encode | None:
    if options.is_json_text(field):
        return _fragment
    if options.is_enum(field):
        return options.enum_names(field).get
    if field.message_type is not None:
        return _encoder(field.message_type, options.public_type(field))
    return None


def _sorted_map(pairs: Mapping[str, str]) -> dict[str, str]:
    # A message iterates a map in any order; the same message must give the same JSON.
    return dict(sorted(pairs.items()))


def _fragment(text: str) -> orjson.Fragment | None:
    return orjson.Fragment(text) if text else None


def _union(descriptor: Descriptor) -> Encode:
    arms = {field: _element(field) for field in options.arms_of(descriptor)}

    def encode(message: Message) -> Any:
        fields = message.ListFields()
        if not fields:
            return None
        field, value = fields[0]
        convert = arms[field]
        return value if convert is None else convert(value)

    return encode


def _list(descriptor: Descriptor) -> Encode:
    field = options.only_field(descriptor)
    name = field.name
    element = _encoder(options.message_type_of(field), "")
    return lambda message: list(map(element, getattr(message, name)))


def _envelope(descriptor: Descriptor) -> Encode:
    arms = {
        field: (options.public_type(field), _encoder(options.message_type_of(field), ""))
        for field in options.arms_of(descriptor)
    }

    def encode(message: Message) -> dict[str, Any]:
        out: dict[str, Any] = {"type": ""}
        event: dict[str, Any] | None = None
        for field, value in message.ListFields():
            arm = arms.get(field)
            if arm is None:
                out[field.name] = value
            else:
                out["type"], event = arm[0], arm[1](value)
        if event is None:
            raise ValueError(f"{descriptor.full_name} without an event")
        out.update(event)
        return out

    return encode
