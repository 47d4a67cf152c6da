"""A response that is over, told again as events: for clients that come when its own are gone."""

from __future__ import annotations

from collections.abc import Sequence

from turnwire.v1 import content_pb2, item_pb2, response_pb2, server_event_pb2
from turnwire_server.session.events import Delta, Outgoing
from turnwire_server.session.items import (
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    OpenReasoningSummary,
    OpenRefusal,
)
from turnwire_server.session.output import CallStarted

__all__ = ["is_over", "replay"]

_RUNNING = (response_pb2.RESPONSE_STATUS_QUEUED, response_pb2.RESPONSE_STATUS_IN_PROGRESS)

ServerEvent = server_event_pb2.ServerEvent


def is_over(response: response_pb2.Response) -> bool:
    """Return whether nothing more happens to a response."""
    return response.status not in _RUNNING


def replay(response: response_pb2.Response) -> list[Outgoing]:
    """Return the events of a response that is over, made anew from what was kept of it.

    Ids, items, texts and the terminal event are those that its first reader got. Each text comes
    as one delta, so the numbers, from 0 without a gap, are not those of the first time.
    """
    return _Replay(response).events()


class _Replay:
    def __init__(self, response: response_pb2.Response) -> None:
        self._response = response
        self._events: list[Outgoing] = []

    def events(self) -> list[Outgoing]:
        begun = response_pb2.Response()
        begun.CopyFrom(self._response)
        begun.status = response_pb2.RESPONSE_STATUS_IN_PROGRESS
        begun.ClearField("output")
        begun.ClearField("usage")
        begun.ClearField("completed_at")
        begun.ClearField("error")
        begun.ClearField("incomplete_details")
        if begun.HasField("turnwire"):
            begun.turnwire.ClearField("timing")
        self._next().response_created.response.CopyFrom(begun)
        self._next().response_in_progress.response.CopyFrom(begun)
        for index, item in enumerate(self._response.output):
            self._item(index, item)
        match self._response.status:
            case response_pb2.RESPONSE_STATUS_COMPLETED:
                self._next().response_completed.response.CopyFrom(self._response)
            case response_pb2.RESPONSE_STATUS_FAILED:
                self._next().response_failed.response.CopyFrom(self._response)
            case _:
                self._next().response_incomplete.response.CopyFrom(self._response)
        return self._events

    def _item(self, index: int, item: item_pb2.Item) -> None:
        added = self._next().response_output_item_added
        added.output_index = index
        writing = _as_written(index, item)
        if writing is None:
            added.item.CopyFrom(item)
        else:
            writing.write(added.item, item_pb2.ITEM_STATUS_IN_PROGRESS, None)
            self._text(writing)
        done = self._next().response_output_item_done
        done.output_index = index
        done.item.CopyFrom(item)

    def _text(self, item: OpenItem) -> None:
        item.open(None)
        text = item.text.decode()
        if item.has_part:
            item.write_part(self._next(), "", is_added=True)
        if text:
            assert item.part is not None  # set by `open`
            self._events.append(Delta(item.part, len(self._events), text))
        item.write_done(self._next(), text)
        if item.has_part:
            item.write_part(self._next(), text, is_added=False)

    def _next(self) -> ServerEvent:
        event = ServerEvent(sequence_number=len(self._events))
        self._events.append(event)
        return event


def _as_written(index: int, item: item_pb2.Item) -> OpenItem | None:
    """Return the item as it was while the model wrote it; None for one that came whole."""
    match item.WhichOneof("item"):
        case "message":
            return _message(index, item.message)
        case "reasoning":
            return _reasoning(index, item.reasoning)
        case "function_call":
            call = item.function_call
            namespace = call.namespace if call.HasField("namespace") else None
            started = CallStarted(call.name, namespace)
            return _with_text(OpenCall((call.id, call.call_id), index, started), call.arguments)
        case "custom_tool_call":
            custom = item.custom_tool_call
            namespace = custom.namespace if custom.HasField("namespace") else None
            started = CallStarted(custom.name, namespace, custom=True)
            return _with_text(OpenCall((custom.id, custom.call_id), index, started), custom.input)
        case _:
            return None


def _only(
    parts: Sequence[content_pb2.ContentPart],
) -> content_pb2.ContentPart | None:
    return parts[0] if len(parts) == 1 else None


def _with_text(item: OpenItem, text: str) -> OpenItem:
    item.text += text.encode()
    return item


def _message(index: int, message: item_pb2.MessageItem) -> OpenItem | None:
    part = _only(message.content.parts.parts)
    if part is None:
        return None
    match part.WhichOneof("part"):
        case "output_text":
            return _with_text(OpenMessage(message.id, index), part.output_text.text)
        case "refusal":
            return _with_text(OpenRefusal(message.id, index), part.refusal.refusal)
        case _:
            return None


def _reasoning(index: int, reasoning: item_pb2.ReasoningItem) -> OpenItem | None:
    if (part := _only(reasoning.content)) is not None:
        return _with_text(OpenReasoning(reasoning.id, index), part.reasoning_text.text)
    if (part := _only(reasoning.summary)) is not None:
        return _with_text(OpenReasoningSummary(reasoning.id, index), part.summary_text.text)
    return None
