"""Objects of which most is encoded once and then copied, byte for byte, into every JSON."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import orjson
from google.protobuf.message import Message

from turnwire._codec import options
from turnwire._codec.encode import Asked, add_asked, members_of, to_value

__all__ = ["Settled", "Splicer"]

Settled = Mapping[str, Any]
"""An object's members of which the large ones are encoded already."""

_LONG_TEXT = 64
"""Characters of a string from which on it is worth keeping it encoded."""


class Splicer:
    """Encodes objects of one type, given the members that do not change."""

    def __init__(self, message_type: type[Message], changing: Set[str]) -> None:
        """Make it.

        Args:
            message_type: A message type that is a JSON object.
            changing: Names of the fields that change.
        """
        members = members_of(options.descriptor_of(message_type))
        # As protobuf would list them; but to list all that is set takes longer than to ask for
        # the few that change.
        self._changing: list[Asked] = [
            (field.name, field.has_presence, field.has_presence, *member)
            for field, member in sorted(members.items(), key=lambda each: each[0].number)
            if field.name in changing
        ]

    def settled(self, message: Message) -> Settled:
        """Return what does not change.

        Args:
            message: A message without the fields that change.
        """
        value: dict[str, Any] = to_value(message)
        return {name: _encoded(member) for name, member in value.items()}

    def value(self, message: Message, settled: Settled) -> dict[str, Any]:
        """Return the public JSON value of a message.

        Args:
            message: The message.
            settled: What `settled` gave for a message that differs in fields that change only.
        """
        out = dict(settled)
        add_asked(out, message, self._changing)
        return out


def _encoded(member: Any) -> Any:
    is_large = len(member) > _LONG_TEXT if isinstance(member, str) else isinstance(member, list)
    if is_large or isinstance(member, dict):
        return orjson.Fragment(orjson.dumps(member))
    return member
