"""Conversations: immutable, with shared structure, so that a fork costs a pointer.

A conversation is a chain of nodes; each holds the items of one input or one output as
serialized bytes, and the facts that the next turn needs, so that nothing walks the history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from turnwire.v1 import content_pb2, item_pb2

__all__ = ["EMPTY", "Conversation", "OpenCalls", "item_text", "shown_items"]

_OUTPUT_OF_CALL: Mapping[str, str] = MappingProxyType(
    {
        "function_call": "function_call_output",
        "custom_tool_call": "custom_tool_call_output",
    }
)
"""Arms of the calls that a client answers, and of their answers."""

_OUTPUT_ARMS = frozenset(_OUTPUT_OF_CALL.values())
_NO_CALLS: Mapping[str, str] = MappingProxyType({})
_MAX_USER_TEXT = 4096


def item_text(content: content_pb2.Content) -> str:
    """Return the text of a content, its parts joined without a separator."""
    if content.WhichOneof("value") != "parts":
        return content.text
    texts = []
    for part in content.parts.parts:
        arm = part.WhichOneof("part")
        if arm in ("input_text", "output_text", "text"):
            texts.append(getattr(part, arm).text)
        elif arm == "refusal":
            texts.append(part.refusal.refusal)
    return "".join(texts)


def shown_items(items: Sequence[item_pb2.Item]) -> Sequence[item_pb2.Item]:
    """Return the items that a model is told: those that only offer tools say nothing."""
    if not any(item.WhichOneof("item") == "additional_tools" for item in items):
        return items
    return [item for item in items if item.WhichOneof("item") != "additional_tools"]


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """All items up to a point, and what the next turn must know of them."""

    parent: Conversation | None = None
    own_items: tuple[bytes, ...] = ()
    """Serialized `Item`s added by this node, oldest first."""
    item_count: int = 0
    """Items of the whole conversation."""
    byte_count: int = 0
    """Bytes of the serialized items of the whole conversation."""
    open_calls: Mapping[str, str] = field(default_factory=lambda: _NO_CALLS)
    """`call_id` -> arm of the output that must answer it."""
    cut_calls: Mapping[str, str] = field(default_factory=lambda: _NO_CALLS)
    """`call_id` -> arm of the output that may answer it: calls that ended incomplete."""
    tool_outputs: int = 0
    """Tool outputs after the last user message."""
    last_user_text: str = ""
    """Text of the last user message, cut to 4,096 characters."""
    added_tools: tuple[bytes, ...] = ()
    """Serialized `Tool`s that `additional_tools` items offered, oldest first."""
    screen_state: bytes = b""
    """What the screen wants to see again."""
    unscreened: tuple[bytes, ...] = ()
    """Serialized items that no verdict covers, oldest first: their turns ended before it came."""

    def extended(self, items: Sequence[item_pb2.Item]) -> Conversation:
        """Return this conversation followed by `items`. They must have passed the item rules."""
        if not items:
            return self
        calls = OpenCalls(self)
        tool_outputs, user_text, tools = self.tool_outputs, self.last_user_text, self.added_tools
        for item in items:
            calls.read(item)
            arm = item.WhichOneof("item")
            if arm in _OUTPUT_ARMS:
                tool_outputs += 1
            elif arm == "message" and item.message.role == "user":
                tool_outputs = 0
                user_text = item_text(item.message.content)[:_MAX_USER_TEXT]
            elif arm == "additional_tools":
                tools += tuple(tool.SerializeToString() for tool in item.additional_tools.tools)
        encoded = tuple(item.SerializeToString() for item in items)
        return Conversation(
            parent=self,
            own_items=encoded,
            item_count=self.item_count + len(encoded),
            byte_count=self.byte_count + sum(map(len, encoded)),
            open_calls=MappingProxyType(calls.open) if calls.open else _NO_CALLS,
            cut_calls=MappingProxyType(calls.cut) if calls.cut else _NO_CALLS,
            tool_outputs=tool_outputs,
            last_user_text=user_text,
            added_tools=tools,
            screen_state=self.screen_state,
            unscreened=self.unscreened,
        )

    def encoded_items(self) -> list[bytes]:
        """Return all items as bytes, oldest first. Walks the history: off the hot path."""
        nodes = []
        node: Conversation | None = self
        while node is not None:
            nodes.append(node.own_items)
            node = node.parent
        return [item for own in reversed(nodes) for item in own]

    def items(self) -> list[item_pb2.Item]:
        """Return all items, oldest first. Walks the history: off the hot path."""
        return [item_pb2.Item.FromString(encoded) for encoded in self.encoded_items()]

    def find_item(self, item_id: str) -> item_pb2.Item | None:
        """Return the newest item with this id, a new message; None when there is none."""
        needle = item_id.encode()
        node: Conversation | None = self
        while node is not None:
            for encoded in reversed(node.own_items):
                if needle not in encoded:  # much faster than to parse what cannot be it
                    continue
                item = item_pb2.Item.FromString(encoded)
                arm = item.WhichOneof("item")
                if arm is not None and getattr(item, arm).id == item_id:
                    return item
            node = node.parent
        return None


EMPTY = Conversation()
"""A conversation without items."""


class OpenCalls:
    """Which calls wait for an output, while items are read in order."""

    def __init__(self, conversation: Conversation) -> None:
        """Start behind the items of `conversation`."""
        self.open = dict(conversation.open_calls)
        """`call_id` -> arm of the output that must come."""
        self.cut = dict(conversation.cut_calls)
        """`call_id` -> arm of the output that may come: the call was cut, so it needs none."""

    def read(self, item: item_pb2.Item) -> bool:
        """Take the next item.

        Returns:
            False, and nothing changes, when it is an output without its call, or a call whose
            id belongs to a call that waits.
        """
        arm = item.WhichOneof("item")
        if arm is not None and arm in _OUTPUT_ARMS:
            call_id = getattr(item, arm).call_id
            for calls in (self.open, self.cut):
                if calls.get(call_id) == arm:
                    del calls[call_id]
                    return True
            return False
        if arm is None or arm not in _OUTPUT_OF_CALL:
            return True
        call = getattr(item, arm)
        if call.call_id in self.open:
            return False
        self.cut.pop(call.call_id, None)
        waiting = self.cut if call.status == item_pb2.ITEM_STATUS_INCOMPLETE else self.open
        waiting[call.call_id] = _OUTPUT_OF_CALL[arm]
        return True
