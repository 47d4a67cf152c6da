"""Server events as the user sees them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

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

    __slots__ = ("_event", "arm", "number")

    def __init__(self, event: ServerEvent, arm: str) -> None:
        self._event = event
        self.arm = arm
        """Name of the oneof arm: `type` with underscores."""
        self.number = event.sequence_number if event.HasField("sequence_number") else -1
        """As `sequence_number`, -1 for None."""

    @property
    def type(self) -> str:
        """The public JSON type."""
        return PUBLIC_TYPES[self.arm]

    @property
    def message(self) -> Message:
        """The message of that type."""
        return cast(Message, getattr(self._event, self.arm))  # The arm is a message by rule.

    @property
    def sequence_number(self) -> int | None:
        """Position in its response, from 0 without a gap; None on events outside a response."""
        return self.number if self.number >= 0 else None

    @property
    def stream_id(self) -> str | None:
        """The lane; None for the default lane."""
        return self._event.stream_id if self._event.HasField("stream_id") else None

    @property
    def delta(self) -> str | None:
        """The piece of text of a delta event; None on other events."""
        if self.arm not in DELTA_ARMS:
            return None
        return cast(str, self.message.delta)  # type: ignore[attr-defined]  # By name of the arm.

    @property
    def item(self) -> Item | None:
        """The item of an `output_item` event; None on other events."""
        match self.arm:
            case "response_output_item_added":
                return self._event.response_output_item_added.item
            case "response_output_item_done":
                return self._event.response_output_item_done.item
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
        return plain(self._event)

    def __repr__(self) -> str:
        place = "" if self.sequence_number is None else f" {self.sequence_number}"
        lane = "" if self.stream_id is None else f" on {self.stream_id!r}"
        return f"<Event {self.type}{place}{lane}>"


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
    return Event(event, arm)
