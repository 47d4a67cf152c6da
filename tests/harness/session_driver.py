"""Client events, and a driver that feeds a `Session` and remembers what came of it."""

from __future__ import annotations

import itertools
from typing import Any

from turnwire.v1.client_event_pb2 import (
    ClientEvent,
    Input,
    ResponseCreate,
    ResponseInject,
    ResponseSteer,
)
from turnwire.v1.content_pb2 import Content, ContentPart, ContentPartList, InputText, OutputText
from turnwire.v1.error_pb2 import ERROR_REASON_INVALID_TYPE
from turnwire.v1.item_pb2 import (
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    ItemList,
    MessageItem,
)
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.conversation import EMPTY
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Delta, Outgoing
from turnwire_server.session.session import Session
from turnwire_server.session.settings import SessionSettings
from turnwire_server.session.turns import Turn

__all__ = [
    "BAD_SHAPE",
    "SessionDriver",
    "as_message",
    "assistant",
    "call",
    "call_output",
    "cancel",
    "content",
    "create",
    "custom_call",
    "custom_output",
    "given",
    "new_ids",
    "user",
]

BAD_SHAPE = Rejection(ERROR_REASON_INVALID_TYPE, "Not a string.", param="input[0].content")
"""What an edge says of a create that it cannot decode."""


class _Ids:
    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def __call__(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"


def new_ids() -> _Ids:
    """Return a source of ids `resp_1`, `msg_2` and so on."""
    return _Ids()


def as_message(event: Outgoing) -> ServerEvent:
    """Return an event as a message, a delta too."""
    if not isinstance(event, Delta):
        return event
    part = event.part
    message = ServerEvent(sequence_number=event.sequence_number, stream_id=part.stream_id)
    body = getattr(message, part.kind)
    body.item_id, body.output_index, body.delta = part.item_id, part.output_index, event.text
    return message


def create(
    previous: str | None = None,
    *,
    stream_id: str | None = None,
    event_id: str | None = None,
    **fields: Any,
) -> ClientEvent:
    """Return a `response.create`."""
    body = ResponseCreate(model="m", previous_response_id=previous, **fields)
    return ClientEvent(event_id=event_id, stream_id=stream_id, response_create=body)


def cancel(
    *, response_id: str | None = None, stream_id: str | None = None, event_id: str | None = None
) -> ClientEvent:
    """Return a `response.cancel`."""
    event = ClientEvent(event_id=event_id, stream_id=stream_id)
    event.response_cancel.SetInParent()
    if response_id is not None:
        event.response_cancel.response_id = response_id
    return event


def content(text: str, arm: str = "input_text") -> Content:
    """Return content of one part."""
    if arm == "output_text":
        part = ContentPart(output_text=OutputText(text=text))
    else:
        part = ContentPart(input_text=InputText(text=text))
    return Content(parts=ContentPartList(parts=[part]))


def user(text: str = "hi", **fields: Any) -> Item:
    """Return a user message."""
    return Item(message=MessageItem(role="user", content=content(text), **fields))


def assistant(text: str = "yes", **fields: Any) -> Item:
    """Return an assistant message."""
    said = content(text, "output_text")
    return Item(message=MessageItem(role="assistant", content=said, **fields))


def call(call_id: str, **fields: Any) -> Item:
    """Return a call of a function."""
    body = FunctionCallItem(call_id=call_id, name="shell", arguments="{}", **fields)
    return Item(function_call=body)


def call_output(call_id: str, text: str = "done") -> Item:
    """Return the output of a function call."""
    body = FunctionCallOutputItem(call_id=call_id, output=Content(text=text))
    return Item(function_call_output=body)


def custom_call(call_id: str, **fields: Any) -> Item:
    """Return a call of a custom tool."""
    return Item(custom_tool_call=CustomToolCallItem(call_id=call_id, name="exec", **fields))


def custom_output(call_id: str, text: str = "done") -> Item:
    """Return the output of a custom tool call."""
    body = CustomToolCallOutputItem(call_id=call_id, output=Content(text=text))
    return Item(custom_tool_call_output=body)


def given(*items: Item) -> Input:
    """Return the input of a create."""
    return Input(items=ItemList(items=items))


class SessionDriver:
    """Feeds a session and pulls after each step, as the runtime does."""

    def __init__(
        self, settings: SessionSettings | None = None, *, resume_grace_s: float = 0.0
    ) -> None:
        self.session = Session(
            settings or SessionSettings(), new_id=new_ids(), resume_grace_s=resume_grace_s
        )
        self.events: list[ServerEvent] = []
        """All events so far; `take_events` empties it."""
        self.started: list[Turn] = []
        """All turns that were started, in order."""
        self.woken: list[Turn] = []
        """All paused turns that had to go on, in order."""
        self.told_to_end: list[Turn] = []
        """All turns that had to be cancelled, in order."""

    def send(self, *events: ClientEvent, size: int = 100) -> None:
        """Let the session receive the events."""
        for event in events:
            self.session.receive(event, size=size, now=0.0)
            self.pull()

    def refuse(
        self,
        body: ResponseCreate | ResponseSteer | ResponseInject | None,
        *,
        stream_id: str | None = None,
        event_id: str | None = None,
        rejection: Rejection = BAD_SHAPE,
    ) -> None:
        """Let the session take an event that could not be decoded."""
        event = None
        if isinstance(body, ResponseCreate):
            event = ClientEvent(response_create=body)
        elif isinstance(body, ResponseSteer):
            event = ClientEvent(response_steer=body)
        elif body is not None:
            event = ClientEvent(response_inject=body)
        self.session.refuse(
            rejection, event=event, stream_id=stream_id, event_id=event_id, size=10, now=0.0
        )
        self.pull()

    def run(self, event: ClientEvent) -> Turn:
        """Send a create that starts at once and return its turn."""
        before = len(self.started)
        self.send(event)
        (turn,) = self.started[before:]
        return turn

    def begin(self, event: ClientEvent, *, takes_steers: bool = True) -> Turn:
        """Send a create that starts at once, begin its response and return its turn."""
        turn = self.run(event)
        turn.begin(takes_steers=takes_steers)
        return turn

    def finish(self, turn: Turn, *, answer: ServerEvent | None = None, **fields: Any) -> None:
        """End a turn well, by `answer`: it becomes its lane's newest response."""
        outcome = CachedResponse(
            response_id=turn.response_id, conversation=EMPTY, lane=turn.lane, **fields
        )
        self.end(turn, outcome, answer)

    def fail(self, turn: Turn) -> None:
        """End a turn badly."""
        self.end(turn, None)

    def end(
        self, turn: Turn, outcome: CachedResponse | None, answer: ServerEvent | None = None
    ) -> None:
        """End a turn."""
        self.session.end_turn(turn, outcome, answer)
        self.pull()

    def pull(self) -> None:
        """Take what the session has to give."""
        self.told_to_end += self.session.turns_to_cancel()
        self.events += self.session.events_to_send()
        self.started += self.session.turns_to_start()
        self.woken += self.session.turns_to_wake()

    def take_events(self) -> list[ServerEvent]:
        """Return and forget the events."""
        events, self.events = self.events, []
        return events

    def take_errors(self) -> list[tuple[str, str | None, str | None]]:
        """Return and forget the events, all errors, as (code, stream_id, event_id)."""
        events = self.take_events()
        assert all(event.WhichOneof("event") == "error" for event in events)
        return [
            (
                event.error.error.code,
                event.stream_id if event.HasField("stream_id") else None,
                event.event_id if event.HasField("event_id") else None,
            )
            for event in events
        ]
