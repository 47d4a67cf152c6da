"""From events to bytes: one encoder per wire format, one instance per connection.

A delta goes through a template made once per open part; every other event is a message that is
serialized or turned to public JSON by the compiled codec. JSON of a whole response is spliced from
parts that are encoded once; protobuf serializes one faster than a part could be cut out. Framing
(WebSocket, SSE) is the transport's; that of a `ServerFrame` is the codec's, because it is protobuf.
"""

from __future__ import annotations

from typing import Any

from turnwire import _codec
from turnwire.v1 import annotations_pb2, server_event_pb2
from turnwire.v1.client_event_pb2 import (
    ClientEvent,
    Input,
    ResponseCreate,
    ResponseInject,
    ResponseSteer,
)
from turnwire_server.codec.deltas import DeltaTemplate
from turnwire_server.codec.faults import Fault
from turnwire_server.codec.frames import frame_entry
from turnwire_server.codec.lifecycle import LifecycleEncoder
from turnwire_server.codec.requests import salvaged, text_of
from turnwire_server.codec.status import reason_of_code
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import TERMINAL_ARMS, Delta, Outgoing, Part

__all__ = [
    "JsonEncoder",
    "ProtoEncoder",
    "is_terminal",
    "public_type",
    "refused_event",
    "rejection_of",
]

MAX_OPEN_TEMPLATES = 32
"""Templates kept per connection; more open parts than that are only slower."""

_PUBLIC_TYPES: dict[str, str] = {
    field.name: field.GetOptions().Extensions[annotations_pb2.public_type]
    for field in server_event_pb2.ServerEvent.DESCRIPTOR.oneofs_by_name["event"].fields
}


def public_type(event: Outgoing) -> str:
    """Return the public JSON `type`, for example `response.output_text.delta`."""
    if isinstance(event, Delta):
        return _PUBLIC_TYPES[event.part.kind]
    return _PUBLIC_TYPES[event.WhichOneof("event") or ""]


def is_terminal(event: Outgoing) -> bool:
    """Return whether `event` ends its turn."""
    return not isinstance(event, Delta) and event.WhichOneof("event") in TERMINAL_ARMS


def rejection_of(fault: Fault) -> Rejection:
    """Return the rejection for JSON that could not be decoded."""
    return Rejection(
        reason=reason_of_code(fault.code),
        message=fault.message,
        param=fault.param,
    )


def refused_event(data: str) -> ClientEvent | None:
    """Return what a session must know of an event that could not be decoded.

    Args:
        data: JSON that the codec refused.

    Returns:
        A create, a steer or an inject with no more than the response that it names, and an input
        that is a text; None when the JSON is none of them.
    """
    value = salvaged(data)
    match value.get("type"):
        case "response.create":
            create = ResponseCreate(previous_response_id=text_of(value, "previous_response_id"))
            return ClientEvent(response_create=create)
        case "response.steer":
            target = text_of(value, "previous_response_id")
            steer = ResponseSteer(previous_response_id=target, input=_text_input(value))
            return ClientEvent(response_steer=steer)
        case "response.inject":
            target = text_of(value, "response_id")
            inject = ResponseInject(response_id=target, input=_text_input(value))
            return ClientEvent(response_inject=inject)
    return None


def _text_input(value: dict[str, Any]) -> Input | None:
    text = text_of(value, "input")
    return None if text is None else Input(text=text)


class _Templates(dict[Part, DeltaTemplate]):
    """Templates of the open parts, made on first use."""

    def __missing__(self, part: Part) -> DeltaTemplate:
        if len(self) >= MAX_OPEN_TEMPLATES:
            self.clear()
        template = self[part] = DeltaTemplate(
            part.kind, part.item_id, part.output_index, part.index, part.stream_id
        )
        return template


class ProtoEncoder:
    """Encodes events as entries of a `ServerFrame`."""

    __slots__ = ("_templates",)

    def __init__(self) -> None:
        self._templates = _Templates()

    def encode(self, event: Outgoing) -> bytes:
        """Return tag, length and serialized event. Keeps no reference to the event."""
        if isinstance(event, Delta):
            return self._templates[event.part].entry(event.sequence_number, event.text)
        if event.WhichOneof("event") in TERMINAL_ARMS:
            self._templates.clear()
        return frame_entry(event.SerializeToString())


class JsonEncoder:
    """Encodes events as public JSON, UTF-8, without framing."""

    __slots__ = ("_lifecycle", "_templates")

    def __init__(self) -> None:
        self._templates = _Templates()
        self._lifecycle = LifecycleEncoder()

    def encode(self, event: Outgoing) -> bytes:
        """Return one JSON object. Keeps no reference to the event."""
        if isinstance(event, Delta):
            return self._templates[event.part].json(event.sequence_number, event.text)
        arm = event.WhichOneof("event") or ""
        if arm in TERMINAL_ARMS:
            self._templates.clear()
        encoded = self._lifecycle.encode(event, arm)
        return _codec.dumps(event) if encoded is None else encoded
