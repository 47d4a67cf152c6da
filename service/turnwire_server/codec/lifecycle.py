"""Events of a response's life as JSON: what does not change of the response is encoded once.

`response.created`, `response.in_progress` and the terminal event each show the whole response, and
most of it is what the create said: tools, instructions, settings. That part is encoded when a
response begins, or not even then when another one was asked for with the same, and is copied into
each of the three. So are the items that were shown when they were done. A test holds them to what
the generic codec writes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import orjson
from google.protobuf.message import Message

from turnwire import _codec
from turnwire.v1 import annotations_pb2
from turnwire.v1.item_pb2 import Item
from turnwire.v1.response_pb2 import Response
from turnwire.v1.server_event_pb2 import ServerEvent

__all__ = ["LifecycleEncoder", "SettledMemo"]

_CHANGING = frozenset(
    {
        "id",
        "created_at",
        "previous_response_id",
        "completed_at",
        "status",
        "error",
        "incomplete_details",
        "output",
        "usage",
        "warnings",
        "turnwire",
    }
)
"""Fields that differ between responses to the same settings, or within the life of one."""

_OPENING_ARM = "response_created"
_ARMS = {
    field.name: field.GetOptions().Extensions[annotations_pb2.public_type]
    for field in ServerEvent.DESCRIPTOR.oneofs_by_name["event"].fields
    if field.name
    in {
        _OPENING_ARM,
        "response_in_progress",
        "response_completed",
        "response_incomplete",
        "response_failed",
    }
}
"""Arms that show the response -> their public type."""
_TERMINAL_ARMS = _ARMS.keys() - {_OPENING_ARM, "response_in_progress"}
_ITEM_ARM = "response_output_item_done"
_ITEM_TYPE = "response.output_item.done"

_MAX_OPEN = 32
"""Responses that one encoder knows; more open ones than that are only slower."""

_MAX_ITEMS = 64
"""Items that one encoder knows, until a response is over."""

_SPLICER = _codec.Splicer(Response, _CHANGING - {"output"})


class SettledMemo:
    """Unchanging parts of responses, encoded; the least recently used is forgotten.

    They are found by their content, so a part that changed is another one. One memory may serve
    every connection: agents of one kind send the same tools over all of theirs.
    """

    def __init__(self, *, max_bytes: int = 16_777_216) -> None:
        """Make an empty memory.

        Args:
            max_bytes: Most bytes kept, about.
        """
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: OrderedDict[bytes, _codec.Settled] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, response: Response) -> _codec.Settled:
        """Return the unchanging part of a response."""
        rest = Response()
        rest.CopyFrom(response)
        _clear(rest)
        key = rest.SerializeToString(deterministic=True)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        settled = _SPLICER.settled(rest)
        if _cost(key) > self._max_bytes:
            return settled
        self._known[key] = settled
        self._bytes += _cost(key)
        while self._bytes > self._max_bytes:
            forgotten, _ = self._known.popitem(last=False)
            self._bytes -= _cost(forgotten)
        return settled


def _clear(response: Message) -> None:
    for name in _CHANGING:
        response.ClearField(name)


def _cost(key: bytes) -> int:
    """Return the bytes that an entry takes, about: its JSON is somewhat longer than its key."""
    return 3 * len(key) + 4096


_MEMO = SettledMemo()


class LifecycleEncoder:
    """Encodes the events of one connection that show a whole response, or an item of one."""

    __slots__ = ("_items", "_memo", "_open")

    def __init__(self, memo: SettledMemo = _MEMO) -> None:
        """Make it; `memo` is shared by all of them unless one is given."""
        self._memo = memo
        self._open: dict[str, _codec.Settled] = {}
        self._items: dict[bytes, orjson.Fragment] = {}
        """Serialized item -> its JSON, of items that a terminal event may show again."""

    def encode(self, event: ServerEvent, arm: str) -> bytes | None:
        """Return the JSON of an event, None when it shows neither a response nor a whole item.

        Args:
            event: The event. Since `response.created` its response has changed in nothing but
                what a running response changes.
            arm: Which event it is.
        """
        public_type = _ARMS.get(arm)
        if public_type is None:
            return self._item_done(event) if arm == _ITEM_ARM else None
        response: Response = getattr(event, arm).response
        settled = None if arm == _OPENING_ARM else self._open.get(response.id)
        if settled is None:
            settled = self._memo.of(response)
        value = _SPLICER.value(response, settled)
        if response.output:
            value["output"] = list(map(self._item, response.output))
        if arm in _TERMINAL_ARMS:
            self._open.pop(response.id, None)
            self._items.clear()
        else:
            if len(self._open) >= _MAX_OPEN:
                self._open.clear()
            self._open[response.id] = settled
        return orjson.dumps(_head(event, public_type) | {"response": value})

    def _item_done(self, event: ServerEvent) -> bytes:
        done = event.response_output_item_done
        item = orjson.Fragment(orjson.dumps(_codec.to_value(done.item)))
        if len(self._items) >= _MAX_ITEMS:
            self._items.clear()
        self._items[done.item.SerializeToString()] = item
        shown = {"output_index": done.output_index, "item": item}
        return orjson.dumps(_head(event, _ITEM_TYPE) | shown)

    def _item(self, item: Item) -> Any:
        """Return the JSON value of an item, which was shown by itself before, as a rule."""
        known = self._items.get(item.SerializeToString()) if self._items else None
        return _codec.to_value(item) if known is None else known


def _head(event: ServerEvent, public_type: str) -> dict[str, Any]:
    """Return what an event's JSON begins with."""
    head: dict[str, Any] = {"type": public_type}
    if event.HasField("sequence_number"):
        head["sequence_number"] = event.sequence_number
    if event.HasField("stream_id"):
        head["stream_id"] = event.stream_id
    return head
