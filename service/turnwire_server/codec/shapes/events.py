"""Client events: the envelope, and what each `type` adds to it."""

from __future__ import annotations

from typing import Literal

from turnwire.v1 import client_event_pb2
from turnwire_server.codec.shapes.base import ListOf, Shape, Uint32
from turnwire_server.codec.shapes.input import Input
from turnwire_server.codec.shapes.requests import ResponseCreate

__all__ = ["CLIENT_EVENTS", "Envelope", "ResponseCreateEvent"]


class Envelope(Shape):
    """What every client event may carry."""

    event_id: str | None = None
    stream_id: str | None = None


class ResponseCreateEvent(ResponseCreate, Envelope):
    """Starts a turn."""

    type: Literal["response.create"]


class ResponseAppendEvent(Envelope, message_type=client_event_pb2.ResponseAppend):
    """Gives a paused rollout what it waits for."""

    type: Literal["response.append"]
    response_id: str
    input: Input


class ResponseCancelEvent(Envelope, message_type=client_event_pb2.ResponseCancel):
    """Ends a turn."""

    type: Literal["response.cancel"]
    response_id: str | None = None


class ResponseSteerEvent(Envelope, message_type=client_event_pb2.ResponseSteer):
    """Adds user messages to a running turn. What is missing is told in its own failure event."""

    type: Literal["response.steer"]
    previous_response_id: str | None = None
    input: Input | None = None


class ResponseInjectEvent(Envelope, message_type=client_event_pb2.ResponseInject):
    """Adds tool outputs to a running turn. What is missing is told in its own failure event."""

    type: Literal["response.inject"]
    response_id: str | None = None
    input: Input | None = None


class ResponseProcessedEvent(Envelope, message_type=client_event_pb2.ResponseProcessed):
    """Says that a response was processed; ignored."""

    type: Literal["response.processed"]
    response_id: str | None = None


class SessionStartEvent(Envelope, message_type=client_event_pb2.TurnwireSessionStart):
    """Opens a session with its own settings."""

    type: Literal["turnwire.session.start"]
    resume: bool | None = None


class LastSeen(Shape, message_type=client_event_pb2.LastSeen):
    """The last event that a client saw on a lane."""

    stream_id: str | None = None
    response_id: str
    sequence_number: Uint32


class SessionResumeEvent(Envelope, message_type=client_event_pb2.TurnwireSessionResume):
    """Takes up a session after a lost connection."""

    type: Literal["turnwire.session.resume"]
    session_id: str
    token: str
    last_seen: ListOf[LastSeen] | None = None


CLIENT_EVENTS: dict[str, type[Envelope]] = {
    "response.append": ResponseAppendEvent,
    "response.cancel": ResponseCancelEvent,
    "response.create": ResponseCreateEvent,
    "response.inject": ResponseInjectEvent,
    "response.processed": ResponseProcessedEvent,
    "response.steer": ResponseSteerEvent,
    "turnwire.session.resume": SessionResumeEvent,
    "turnwire.session.start": SessionStartEvent,
}
"""The shape of each client event, by its `type`."""
