"""Server events as the user sees them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from turnwire._json import JSONValue, plain
from turnwire._response import Response
from turnwire.v1 import annotations_pb2, response_pb2
from turnwire.v1.item_pb2 import Item
from turnwire.v1.server_event_pb2 import ServerEvent

__all__ = [
    "DELTA_ARMS",
    "MIDDLE_ARMS",
    "PUBLIC_TYPES",
    "RESPONSE_ENDS",
    "TERMINAL_ARMS",
    "Event",
    "terminal_event",
]

Made = TypeVar("Made")

PUBLIC_TYPES: Mapping[str, str] = {
    arm.name: arm.GetOptions().Extensions[annotations_pb2.public_type]
    for arm in ServerEvent.DESCRIPTOR.oneofs_by_name["event"].fields
}
"""From an arm's name to the public JSON `type`."""

DELTA_ARMS = frozenset(arm for arm in PUBLIC_TYPES if arm.endswith("_delta"))
"""Arms that carry a piece of what the model writes."""

RESPONSE_ENDS = frozenset({"response_completed", "response_incomplete", "response_failed"})
"""Arms that end a turn that began."""

MIDDLE_ARMS = (
    frozenset(arm for arm in PUBLIC_TYPES if re.match("response_(?!steer_)", arm))
    - RESPONSE_ENDS
    - {"response_created", "response_done"}
)
"""Arms that are of one turn and matter to it alone: it neither begins, pauses nor ends."""

TERMINAL_ARMS = RESPONSE_ENDS | {"error"}
"""Arms that end a turn: nothing of the turn follows them."""


class Event:
    """One event of a turn.

    Attributes:
        type: The public JSON type, for example `response.output_text.delta`.
        message: The message of that type (`turnwire.v1`), for example `ResponseOutputTextDelta`;
            its fields are those of the public JSON. It is yours, but shared with the response:
            do not change it.
    """

    __slots__ = (
        "_delta",
        "_event",
        "_make",
        "_of",
        "_response_id",
        "arm",
        "create_id",
        "number",
        "size",
        "stream_id",
    )

    def __init__(self, event: ServerEvent, size: int = 0, create_id: str | None = None) -> None:
        self._event = event
        self.arm: str = event.WhichOneof("event") or ""
        """Name of the oneof arm: `type` with underscores; "" for a type of a later version."""
        number = event.sequence_number
        self.number = number if number or event.HasField("sequence_number") else -1
        """As `sequence_number`, -1 for None."""
        self.stream_id: str | None = event.stream_id if event.HasField("stream_id") else None
        """The lane; None for the default lane."""
        self.size = size
        """Payload bytes that it took."""
        self.create_id = create_id
        """The create that it belongs to, on wires where each create has its own exchange."""
        self._delta: str | None = None
        """What `delta` returns, if that is known already."""
        self._make: Callable[[Any], ServerEvent] | None = None
        """Makes `_event` of `_of`, while nobody has asked for it."""
        self._of: Any = None
        self._response_id: str | None = None
        """What `response_id` returns, if that is known already."""

    @classmethod
    def late(
        cls,
        arm: str,
        size: int,
        number: int,
        stream_id: str | None,
        delta: str | None,
        make: Callable[[Made], ServerEvent],
        of: Made,
        response_id: str = "",
    ) -> Event:
        """Return an event that is made when somebody asks for more than this.

        Args:
            arm: Name of its arm.
            size: Payload bytes that it took.
            number: As `number`.
            stream_id: The lane.
            delta: As `delta`, or None to be read from the event.
            make: Makes it of `of`, and cannot fail.
            of: What it is made of.
            response_id: As `response_id`.
        """
        event = cls.__new__(cls)
        event.arm = arm
        event.number = number
        event.stream_id = stream_id
        event.size = size
        event.create_id = None
        event._delta = delta
        event._make = make
        event._of = of
        event._response_id = response_id
        return event

    def amend(self, change: Callable[[ServerEvent], None]) -> None:
        """Have the whole event changed, or looked at, before anybody sees it and not earlier.

        Args:
            change: Gets it, changed by those before. Must not fail, nor ask this event for it.
        """
        of = self._event if self._make is None else self._of
        self._make, self._of = _amended, (self._make, of, change)

    @property
    def whole(self) -> ServerEvent:
        """The message around `message`."""
        if self._make is not None:
            self._event = self._make(self._of)
            self._make = self._of = None
        return self._event

    def __getstate__(self) -> object:
        _ = self.whole  # How it is made is of this process.
        return super().__getstate__()

    @property
    def response_id(self) -> str:
        """Id of the response of a terminal event; to know it, the event is not made."""
        if self._response_id is None:
            self._response_id = getattr(self._event, self.arm).response.id
        return self._response_id

    @property
    def type(self) -> str:
        """The public JSON type."""
        return PUBLIC_TYPES[self.arm]

    @property
    def message(self) -> Message:
        """The message of that type."""
        message: Message = getattr(self.whole, self.arm)  # The arm is a message by rule.
        return message

    @property
    def sequence_number(self) -> int | None:
        """Position in its response, from 0 without a gap; None on events outside a response."""
        return self.number if self.number >= 0 else None

    @property
    def delta(self) -> str | None:
        """The piece of text of a delta event; None on other events."""
        if self.arm not in DELTA_ARMS:
            return None
        if self._delta is not None:
            return self._delta
        return cast(str, self.message.delta)  # type: ignore[attr-defined]  # By name of the arm.

    @property
    def item(self) -> Item | None:
        """The item of an `output_item` event; None on other events."""
        match self.arm:
            case "response_output_item_added":
                return self.whole.response_output_item_added.item
            case "response_output_item_done":
                return self.whole.response_output_item_done.item
            case _:
                return None

    @property
    def response(self) -> Response | None:
        """The response of an event about a whole response; None on other events."""
        message = self.message
        if "response" not in message.DESCRIPTOR.fields_by_name:
            return None
        return Response(message.response)  # type: ignore[attr-defined]  # Checked just above.

    def to_dict(self) -> dict[str, JSONValue]:
        """Return the event as in the public JSON."""
        return plain(self.whole)

    def __repr__(self) -> str:
        place = "" if self.sequence_number is None else f" {self.sequence_number}"
        lane = "" if self.stream_id is None else f" on {self.stream_id!r}"
        return f"<Event {self.type}{place}{lane}>"


def _amended(
    made_of: tuple[Callable[[Any], ServerEvent] | None, Any, Callable[[ServerEvent], None]],
) -> ServerEvent:
    make, of, change = made_of
    event: ServerEvent = of if make is None else make(of)
    change(event)
    return event


def terminal_event(response: response_pb2.Response, stream_id: str | None) -> Event:
    """Return the event that ends the turn of a response that was fetched; it has no number."""
    event = ServerEvent(stream_id=stream_id)
    match response.status:
        case response_pb2.RESPONSE_STATUS_COMPLETED:
            arm = "response_completed"
        case response_pb2.RESPONSE_STATUS_FAILED:
            arm = "response_failed"
        case _:
            arm = "response_incomplete"
    getattr(event, arm).response.CopyFrom(response)
    return Event(event)
