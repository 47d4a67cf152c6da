"""Items while the model writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from turnwire.v1 import content_pb2, item_pb2, server_event_pb2
from turnwire_server.session.events import DeltaKind, Part
from turnwire_server.session.output import CallStarted

__all__ = [
    "OpenCall",
    "OpenItem",
    "OpenMessage",
    "OpenReasoning",
    "OpenReasoningSummary",
    "OpenRefusal",
]

ServerEvent = server_event_pb2.ServerEvent


class OpenItem(Protocol):
    """An item that is being written."""

    id: str
    output_index: int
    texts: list[str]
    """The deltas so far."""
    part: Part | None
    """Where its deltas go; set by `open`."""

    def open(self, stream_id: str | None) -> None:
        """Fix where the deltas go."""
        ...

    def snapshot(self, status: item_pb2.ItemStatus.ValueType, *, is_whole: bool) -> item_pb2.Item:
        """Return the item as it stands, with its text if `is_whole`."""
        ...

    def part_message(self, text: str) -> content_pb2.ContentPart | None:
        """Return its content part with `text`, None for an item without parts."""
        ...

    def write_part(
        self, event: ServerEvent, part: content_pb2.ContentPart, *, is_added: bool
    ) -> None:
        """Make `event` the one that says that its content part began, or else is over."""
        ...

    def write_done(self, event: ServerEvent, text: str) -> None:
        """Make `event` the one that says that the text is whole."""
        ...


class _Base:
    kind: DeltaKind

    def __init__(self, item_id: str, output_index: int) -> None:
        self.id = item_id
        self.output_index = output_index
        self.texts: list[str] = []
        self.part: Part | None = None

    def open(self, stream_id: str | None) -> None:
        self.part = Part(self.kind, self.id, self.output_index, 0, stream_id)

    def write_part(
        self, event: ServerEvent, part: content_pb2.ContentPart, *, is_added: bool
    ) -> None:
        body = event.response_content_part_added if is_added else event.response_content_part_done
        body.item_id, body.output_index, body.content_index = self.id, self.output_index, 0
        body.part.CopyFrom(part)


class OpenMessage(_Base):
    """An assistant message with one text part."""

    kind: DeltaKind = "response_output_text_delta"

    def snapshot(self, status: item_pb2.ItemStatus.ValueType, *, is_whole: bool) -> item_pb2.Item:
        item = item_pb2.Item()
        message = item.message
        message.id, message.role, message.status = self.id, "assistant", status
        message.content.parts.SetInParent()
        if is_whole:
            message.content.parts.parts.append(self.part_message("".join(self.texts)))
        return item

    def part_message(self, text: str) -> content_pb2.ContentPart:
        return content_pb2.ContentPart(output_text=content_pb2.OutputText(text=text))

    def write_done(self, event: ServerEvent, text: str) -> None:
        done = event.response_output_text_done
        done.item_id, done.output_index, done.content_index = self.id, self.output_index, 0
        done.text = text


class OpenRefusal(OpenMessage):
    """An assistant message with one refusal part."""

    kind: DeltaKind = "response_refusal_delta"

    def part_message(self, text: str) -> content_pb2.ContentPart:
        return content_pb2.ContentPart(refusal=content_pb2.Refusal(refusal=text))

    def write_done(self, event: ServerEvent, text: str) -> None:
        done = event.response_refusal_done
        done.item_id, done.output_index, done.content_index = self.id, self.output_index, 0
        done.refusal = text


class OpenReasoning(_Base):
    """Reasoning with one raw part."""

    kind: DeltaKind = "response_reasoning_text_delta"

    def __init__(
        self, item_id: str, output_index: int, seal: Callable[[str], str] | None = None
    ) -> None:
        """Make it; with `seal`, which seals a text, the whole item has `encrypted_content`."""
        super().__init__(item_id, output_index)
        self._seal = seal

    def snapshot(self, status: item_pb2.ItemStatus.ValueType, *, is_whole: bool) -> item_pb2.Item:
        item = item_pb2.Item()
        item.reasoning.id, item.reasoning.status = self.id, status
        if is_whole:
            text = "".join(self.texts)
            self.write_text(item.reasoning, self.part_message(text))
            if self._seal is not None:
                item.reasoning.encrypted_content = self._seal(text)
        return item

    def write_text(self, reasoning: item_pb2.ReasoningItem, part: content_pb2.ContentPart) -> None:
        reasoning.content.append(part)

    def part_message(self, text: str) -> content_pb2.ContentPart:
        return content_pb2.ContentPart(reasoning_text=content_pb2.ReasoningText(text=text))

    def write_done(self, event: ServerEvent, text: str) -> None:
        done = event.response_reasoning_text_done
        done.item_id, done.output_index, done.content_index = self.id, self.output_index, 0
        done.text = text


class OpenReasoningSummary(OpenReasoning):
    """Reasoning whose text is shown as its summary."""

    kind: DeltaKind = "response_reasoning_summary_text_delta"

    def write_text(self, reasoning: item_pb2.ReasoningItem, part: content_pb2.ContentPart) -> None:
        reasoning.summary.append(part)

    def part_message(self, text: str) -> content_pb2.ContentPart:
        return content_pb2.ContentPart(summary_text=content_pb2.SummaryText(text=text))

    def write_part(
        self, event: ServerEvent, part: content_pb2.ContentPart, *, is_added: bool
    ) -> None:
        body = (
            event.response_reasoning_summary_part_added
            if is_added
            else event.response_reasoning_summary_part_done
        )
        body.item_id, body.output_index, body.summary_index = self.id, self.output_index, 0
        body.part.CopyFrom(part)

    def write_done(self, event: ServerEvent, text: str) -> None:
        done = event.response_reasoning_summary_text_done
        done.item_id, done.output_index, done.summary_index = self.id, self.output_index, 0
        done.text = text


class OpenCall(_Base):
    """A call of a function or custom tool."""

    def __init__(self, ids: tuple[str, str], output_index: int, started: CallStarted) -> None:
        super().__init__(ids[0], output_index)
        self.call_id = ids[1]
        self._started = started
        self.kind = (
            "response_custom_tool_call_input_delta"
            if started.custom
            else "response_function_call_arguments_delta"
        )

    def snapshot(self, status: item_pb2.ItemStatus.ValueType, *, is_whole: bool) -> item_pb2.Item:
        item = item_pb2.Item()
        text = "".join(self.texts) if is_whole else ""
        if self._started.custom:
            item.custom_tool_call.input = text
            call: item_pb2.CustomToolCallItem | item_pb2.FunctionCallItem = item.custom_tool_call
        else:
            item.function_call.arguments = text
            call = item.function_call
        call.id, call.call_id, call.status = self.id, self.call_id, status
        call.name = self._started.name
        if self._started.namespace is not None:
            call.namespace = self._started.namespace
        return item

    def part_message(self, text: str) -> None:
        return None

    def write_done(self, event: ServerEvent, text: str) -> None:
        if self._started.custom:
            custom = event.response_custom_tool_call_input_done
            custom.item_id, custom.output_index, custom.input = self.id, self.output_index, text
        else:
            done = event.response_function_call_arguments_done
            done.item_id, done.output_index, done.arguments = self.id, self.output_index, text
            done.name = self._started.name
