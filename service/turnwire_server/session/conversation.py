"""Conversations: immutable, with shared structure, so that a fork costs a pointer.

A conversation is a chain of nodes; each holds the items of one input or one output as
serialized bytes, and the facts that the next turn needs, so that nothing walks the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from google.protobuf.message import Message

from turnwire.v1 import content_pb2, item_pb2
from turnwire_server.session.packed import PackableItems, packable

__all__ = ["EMPTY", "Conversation", "OpenCalls", "call_key", "item_text"]

_OUTPUT_OF_CALL: Mapping[str, str] = MappingProxyType(
    {
        "function_call": "function_call_output",
        "custom_tool_call": "custom_tool_call_output",
        "local_shell_call": "local_shell_call_output",
        "shell_call": "shell_call_output",
        "apply_patch_call": "apply_patch_call_output",
        "tool_search_call": "tool_search_output",
        "mcp_approval_request": "mcp_approval_response",
        "program": "program_output",
    }
)
"""Arms of the calls that have an answer, and of their answers."""

_OUTPUT_ARMS = frozenset(_OUTPUT_OF_CALL.values())
_TOOL_OUTPUTS = _OUTPUT_ARMS - {"mcp_approval_response", "program_output", "tool_search_output"}
_MAY_STAY_OPEN = frozenset({"mcp_approval_request", "program"})
"""Arms of the calls that nobody must answer before the conversation goes on."""
_OFFERS = frozenset({"additional_tools", "tool_search_output"})
"""Arms of the items whose tools may be called from then on."""
_NO_CALLS: Mapping[str, str] = MappingProxyType({})
_MAX_USER_TEXT = 4096

_serialized = item_pb2.Item.SerializeToString


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


def call_key(item: item_pb2.Item) -> str:
    """Return what pairs a call with its answer, "" for an item that is not paired."""
    match item.WhichOneof("item"):
        case "mcp_approval_request":
            return item.mcp_approval_request.id
        case "mcp_approval_response":
            return item.mcp_approval_response.approval_request_id
        case "local_shell_call_output":
            # The public type has no `call_id`: its `id` is that of the call.
            return item.local_shell_call_output.call_id or item.local_shell_call_output.id
        case "tool_search_call" | "tool_search_output" as arm:
            search = getattr(item, arm)
            return "" if search.execution == "server" else str(search.call_id)
        case None:
            return ""
        case arm:
            is_paired = arm in _OUTPUT_OF_CALL or arm in _OUTPUT_ARMS
            return str(getattr(item, arm).call_id) if is_paired else ""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Conversation:
    """All items up to a point, and what the next turn must know of them. Never changed.

    Not frozen, since two are made per turn, and that takes thrice as long.
    """

    parent: Conversation | None = None
    own_items: Sequence[bytes] = ()
    """Serialized `Item`s added by this node, oldest first."""
    item_count: int = 0
    """Items of the whole conversation."""
    byte_count: int = 0
    """Bytes of the serialized items of the whole conversation."""
    open_calls: Mapping[str, str] = field(default_factory=lambda: _NO_CALLS)
    """`call_id` -> arm of the output that must answer it."""
    cut_calls: Mapping[str, str] = field(default_factory=lambda: _NO_CALLS)
    """`call_id` -> arm of the output that may answer it: calls that ended incomplete, and those
    that nobody must answer."""
    tool_outputs: int = 0
    """Tool outputs after the last user message."""
    last_user_text: str = ""
    """Text of the last user message, cut to 4,096 characters."""
    added_tools: tuple[bytes, ...] = ()
    """Serialized `Tool`s that items offered, oldest first."""
    configuration: bytes = b""
    """The serialized `ConfigurationUpdateItem` that is in effect, b"" when there was none."""
    screen_state: bytes = b""
    """What the screen wants to see again."""
    unscreened: tuple[bytes, ...] = ()
    """Serialized items that no verdict covers, oldest first: none came when they did."""

    def extended(self, items: Sequence[item_pb2.Item]) -> Conversation:
        """Return this conversation followed by `items`. They must have passed the item rules."""
        if not items:
            return self
        calls: OpenCalls | None = None
        tool_outputs, user_text, tools = self.tool_outputs, self.last_user_text, self.added_tools
        configuration = self.configuration
        for item in items:
            arm = item.WhichOneof("item")
            if arm == "message":
                message = item.message
                if message.role == "user":
                    tool_outputs = 0
                    user_text = item_text(message.content)[:_MAX_USER_TEXT]
                continue
            calls = calls or OpenCalls(self)
            calls.read(item)
            if arm in _TOOL_OUTPUTS:
                tool_outputs += 1
            elif arm in _OFFERS:
                tools += tuple(tool.SerializeToString() for tool in getattr(item, arm).tools)
            elif arm == "configuration_update":
                configuration = _updated(configuration, item.configuration_update)
        encoded = tuple(map(_serialized, items))
        return Conversation(
            parent=self,
            own_items=packable(encoded),
            item_count=self.item_count + len(encoded),
            byte_count=self.byte_count + sum(map(len, encoded)),
            open_calls=_frozen(calls.open) if calls else self.open_calls,
            cut_calls=_frozen(calls.cut) if calls else self.cut_calls,
            tool_outputs=tool_outputs,
            last_user_text=user_text,
            added_tools=tools,
            configuration=configuration,
            screen_state=self.screen_state,
            unscreened=self.unscreened,
        )

    def replaced_by(self, items: Sequence[item_pb2.Item]) -> Conversation:
        """Return a conversation of `items` alone that knows what this one knows.

        For what stands in the place of all items: their summary, or a part of them.
        """
        encoded = tuple(item.SerializeToString() for item in items)
        return replace(
            self,
            parent=None,
            own_items=packable(encoded),
            item_count=len(encoded),
            byte_count=sum(map(len, encoded)),
        )

    def to_be_screened(self, items: Sequence[item_pb2.Item]) -> Conversation:
        """Return this conversation with a note that the screen has not seen `items`, its own."""
        if not items:
            return self
        unscreened = self.unscreened + tuple(item.SerializeToString() for item in items)
        return replace(self, unscreened=unscreened)

    def pack(self) -> Iterator[None]:
        """Compress all items until they are read, a node per step. Off the hot path."""
        node: Conversation | None = self
        while node is not None:
            if isinstance(node.own_items, PackableItems):
                node.own_items.pack()
                yield
            node = node.parent

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
        """`call_id` -> arm of the output that may come and is not needed."""

    def read(self, item: item_pb2.Item) -> bool:
        """Take the next item.

        Returns:
            False, and nothing changes, when it is an output without its call, or a call whose
            id belongs to a call that waits.
        """
        arm, key = item.WhichOneof("item"), call_key(item)
        if arm is None or not key:
            return True
        if arm in _OUTPUT_ARMS:
            for calls in (self.open, self.cut):
                if calls.get(key) == arm:
                    del calls[key]
                    return True
            return False
        if key in self.open:
            return False
        self.cut.pop(key, None)
        is_optional = arm in _MAY_STAY_OPEN or _is_cut(getattr(item, arm))
        waiting = self.cut if is_optional else self.open
        waiting[key] = _OUTPUT_OF_CALL[arm]
        return True


def _frozen(calls: dict[str, str]) -> Mapping[str, str]:
    return MappingProxyType(calls) if calls else _NO_CALLS


def _is_cut(call: Message) -> bool:
    return getattr(call, "status", None) == item_pb2.ITEM_STATUS_INCOMPLETE


def _updated(configuration: bytes, update: item_pb2.ConfigurationUpdateItem) -> bytes:
    """Return the configuration after an update, which replaces what it names."""
    result = item_pb2.ConfigurationUpdateItem.FromString(configuration)
    if update.HasField("reasoning"):
        result.reasoning = update.reasoning
    if update.HasField("text"):
        result.text = update.text
    return result.SerializeToString()
