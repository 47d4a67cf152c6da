"""Items while the model writes them.

They write themselves into messages that are there: to make a message and copy it takes twice as
long, and the end of a turn waits for it. Their one part has index 0, which is what is not set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from turnwire.v1 import content_pb2, item_pb2, server_event_pb2
from turnwire_server.session.events import DeltaKind, Part
from turnwire_server.session.output import CallStarted, OutputPiece, ReasoningDelta, TextDelta

__all__ = [
    "OpenCall",
    "OpenItem",
    "OpenMessage",
    "OpenReasoning",
    "OpenReasoningSummary",
    "OpenRefusal",
    "continues",
]

ServerEvent = server_event_pb2.ServerEvent


class OpenItem(Protocol):
    """An item that is being written."""

    id: str
    output_index: int
    text: bytearray
    """The deltas so far, UTF-8: a list of them would be gone through again at the end."""
    part: Part | None
    """Where its deltas go; set by `open`."""
    has_part: bool
    """Whether its text is in a content part, which has events of its own."""

    def open(self, stream_id: str | None) -> None:
        """Fix where the deltas go."""
        ...

    def write(
        self, item: item_pb2.Item, status: item_pb2.ItemStatus.ValueType, text: str | None
    ) -> None:
        """Make `item`, which is empty, this one; `text` is all of it, None while it is written."""
        ...

    def write_part(self, event: ServerEvent, text: str, *, is_added: bool) -> None:
        """Make `event` the one that says that its content part began, or else is over."""
        ...

    def write_done(self, event: ServerEvent, text: str) -> None:
        """Make `event` the one that says that the text is whole."""
        ...


class _Base:
    __slots__ = ("id", "output_index", "part", "text")

    kind: DeltaKind
    has_part = True

    def __init__(self, item_id: str, output_index: int) -> None:
        self.id = item_id
        self.output_index = output_index
        self.text = bytearray()
        self.part: Part | None = None

    def open(self, stream_id: str | None) -> None:
        self.part = Part(self.kind, self.id, self.output_index, 0, stream_id)

    def write_part(self, event: ServerEvent, text: str, *, is_added: bool) -> None:
        body = event.response_content_part_added if is_added else event.response_content_part_done
        body.item_id, body.output_index = self.id, self.output_index
        self.fill_part(body.part, text)

    def fill_part(self, part: content_pb2.ContentPart, text: str) -> None:
        """Make `part`, which is empty, its content part with `text`; of items that have one."""


class OpenMessage(_Base):
    """An assistant message with one text part."""

    __slots__ = ()

    kind: DeltaKind = "response_output_text_delta"

    def write(
        self, item: item_pb2.Item, status: item_pb2.ItemStatus.ValueType, text: str | None
    ) -> None:
        message = item.message
        message.id, message.role, message.status = self.id, "assistant", status
        if text is None:
            message.content.parts.SetInParent()
        else:
            self.fill_part(message.content.parts.parts.add(), text)

    def fill_part(self, part: content_pb2.ContentPart, text: str) -> None:
        part.output_text.text = text

    def write_done(self, event: ServerEvent, text: str) -> None:
        done = event.response_output_text_done
        done.item_id, done.output_index = self.id, self.output_index
        done.text = text


class OpenRefusal(OpenMessage):
    """An assistant message with one refusal part."""

    __slots__ = ()

    kind: DeltaKind = "response_refusal_delta"

    def fill_part(self, part: content_pb2.ContentPart, text: str) -> None:
        part.refusal.refusal = text

    def write_done(self, event: ServerEvent, text: str) -> None:
        done = event.response_refusal_done
        done.item_id, done.output_index = self.id, self.output_index
        done.refusal = text


class OpenReasoning(_Base):
    """Reasoning with one raw part."""

    __slots__ = ("_seal",)

    kind: DeltaKind = "response_reasoning_text_delta"

    def __init__(
        self, item_id: str, output_index: int, seal: Callable[[str], str] | None = None
    ) -> None:
        """Make it; with `seal`, which seals a text, the whole item has `encrypted_content`."""
        super().__init__(item_id, output_index)
        self._seal = seal

    def write(
        self, item: item_pb2.Item, status: item_pb2.ItemStatus.ValueType, text: str | None
    ) -> None:
        reasoning = item.reasoning
        reasoning.id, reasoning.status = self.id, status
        if text is not None:
            self.fill_part(self.add_part(reasoning), text)
            if self._seal is not None:
                reasoning.encrypted_content = self._seal(text)

    def add_part(self, reasoning: item_pb2.ReasoningItem) -> content_pb2.ContentPart:
        """Return the new part that its text goes into."""
        return reasoning.content.add()

    def fill_part(self, part: content_pb2.ContentPart, text: str) -> None:
        part.reasoning_text.text = text

    def write_done(self, event: ServerEvent, text: str) -> None:
        done = event.response_reasoning_text_done
        done.item_id, done.output_index = self.id, self.output_index
        done.text = text


class OpenReasoningSummary(OpenReasoning):
    """Reasoning whose text is shown as its summary."""

    __slots__ = ()

    kind: DeltaKind = "response_reasoning_summary_text_delta"

    def add_part(self, reasoning: item_pb2.ReasoningItem) -> content_pb2.ContentPart:
        return reasoning.summary.add()

    def fill_part(self, part: content_pb2.ContentPart, text: str) -> None:
        part.summary_text.text = text

    def write_part(self, event: ServerEvent, text: str, *, is_added: bool) -> None:
        body = (
            event.response_reasoning_summary_part_added
            if is_added
            else event.response_reasoning_summary_part_done
        )
        body.item_id, body.output_index = self.id, self.output_index
        self.fill_part(body.part, text)

    def write_done(self, event: ServerEvent, text: str) -> None:
        done = event.response_reasoning_summary_text_done
        done.item_id, done.output_index = self.id, self.output_index
        done.text = text


class OpenCall(_Base):
    """A call of a function or custom tool."""

    __slots__ = ("_started", "call_id", "kind")

    has_part = False

    def __init__(self, ids: tuple[str, str], output_index: int, started: CallStarted) -> None:
        super().__init__(ids[0], output_index)
        self.call_id = ids[1]
        self._started = started
        self.kind = (
            "response_custom_tool_call_input_delta"
            if started.custom
            else "response_function_call_arguments_delta"
        )

    def write(
        self, item: item_pb2.Item, status: item_pb2.ItemStatus.ValueType, text: str | None
    ) -> None:
        if self._started.custom:
            item.custom_tool_call.input = text or ""
            call: item_pb2.CustomToolCallItem | item_pb2.FunctionCallItem = item.custom_tool_call
        else:
            item.function_call.arguments = text or ""
            call = item.function_call
        call.id, call.call_id, call.status = self.id, self.call_id, status
        call.name = self._started.name
        if self._started.namespace is not None:
            call.namespace = self._started.namespace

    def write_done(self, event: ServerEvent, text: str) -> None:
        if self._started.custom:
            custom = event.response_custom_tool_call_input_done
            custom.item_id, custom.output_index, custom.input = self.id, self.output_index, text
        else:
            done = event.response_function_call_arguments_done
            done.item_id, done.output_index, done.arguments = self.id, self.output_index, text
            done.name = self._started.name


def continues(item: OpenItem | None, piece: OutputPiece) -> bool:
    """Return whether a piece is of the item that is open; pieces of a call always are."""
    match piece:
        case TextDelta():
            return isinstance(item, OpenMessage)
        case ReasoningDelta():
            return isinstance(item, OpenReasoning)
        case CallStarted():
            return False
        case _:
            return True
