"""Client events to their JSON: settings that come with each create are encoded once."""

from __future__ import annotations

from typing import Any

import orjson
from google.protobuf.message import Message

from turnwire import _codec
from turnwire._create import Create
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate

__all__ = ["EventWriter"]

_OF_ONE_TURN = frozenset({"generate", "input", "metadata", "previous_response_id", "rollout"})
_CREATE = _codec.Splicer(ResponseCreate, _OF_ONE_TURN)
_MAX_KNOWN_BYTES = 65_536


class EventWriter:
    """Writes the events of one connection.

    The settings of the newest create with tools are known again by what they are as bytes. Tools
    that bring credentials are not remembered.
    """

    def __init__(self) -> None:
        self._known: tuple[bytes, _codec.Settled] = b"", {}
        """A create of the settings alone, serialized, and its members."""
        self._known_late: tuple[bytes, _codec.Settled] = b"", {}
        """The same of the newest create without a message: its very settings, and their members."""

    def write(self, event: ClientEvent) -> bytes:
        """Return the public JSON of an event, with its members in any order."""
        create = event.response_create
        if not create.tools:
            return _codec.dumps(event)
        settings: Message = ResponseCreate()
        settings.CopyFrom(create)
        for name in _OF_ONE_TURN:
            settings.ClearField(name)
        key = settings.SerializeToString()
        known, settled = self._known
        if key != known:
            settled = _CREATE.settled(settings)
            if len(key) <= _MAX_KNOWN_BYTES and _codec.CREDENTIALS not in orjson.dumps(settled):
                self._known = key, settled
        value: dict[str, Any] = {"type": "response.create"}
        if event.HasField("event_id"):
            value["event_id"] = event.event_id
        if event.HasField("stream_id"):
            value["stream_id"] = event.stream_id
        return orjson.dumps({**value, **_CREATE.value(create, settled)})

    def write_create(self, create: Create) -> bytes:
        """Return the public JSON of a create, as `write` does."""
        settings, settled = self._known_late
        if create.settings is not settings:
            settled = _CREATE.settled(ClientEvent.FromString(create.settings).response_create)
            self._known_late = create.settings, settled
        return orjson.dumps({**create.head(), **settled, **create.own()})
