"""Segments: conversations and their token ids in pieces, so that a turn writes only what is new.

A conversation is a chain of nodes; what a put adds to a chain that is kept already is one segment,
which names the segment that it continues. Which node is kept where is known by the node's identity,
for as long as the node lives, so nothing is compared and nothing walks the history.

A segment has the items of its nodes, the facts of its newest node as far as they differ from those
where it begins, and the token ids behind those that it shares with the segment before it. Nodes in
the middle of a segment come back with their items and counts alone: nothing continues them.
"""

from __future__ import annotations

import secrets
import time
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import orjson

from turnwire_server.adapters.stores.packing import ids_of, pack, packed_ids, unpack
from turnwire_server.session.conversation import EMPTY, Conversation
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tokens import IdBuffer, TokenIds

__all__ = ["Draft", "Loaded", "Segment", "SegmentBook", "SegmentRow", "load"]

_VERSION: Final = 1
_CHUNK: Final = 4096
_SEGMENT_BYTES: Final = 1024
_ITEM_BYTES: Final = 100
"""About what the objects around a segment and an item take."""


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A row of the table; its columns are the fields."""

    id: str
    tenant: str
    parent_id: str | None
    items: bytes
    facts: bytes
    ids: bytes | None
    kept_ids: int


class Segment:
    """What is known of a segment while its newest node lives."""

    __slots__ = ("holders", "id", "ids_length", "ids_reference", "parent", "size", "tenant")

    def __init__(self, row: SegmentRow, parent: Segment | None, item_count: int) -> None:
        """Know the segment of `row`."""
        self.id = row.id
        self.tenant = row.tenant
        self.parent = parent
        own = len(row.items) + len(row.facts) + len(row.ids or b"")
        self.size = _SEGMENT_BYTES + _ITEM_BYTES * item_count + own
        """About how many bytes it takes in memory, without its parents."""
        self.holders = 0
        """Used by the cache: how many of its entries and segments hold this one."""
        self.ids_length = 0
        self.ids_reference: weakref.ref[IdBuffer] | None = None
        """The buffer whose first `ids_length` ids are those of the segment, if there is one."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A segment that is about to be written."""

    row: SegmentRow
    segment: Segment
    conversation: Conversation
    items: tuple[bytes, ...]
    """The items of the row."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A conversation that was read."""

    conversation: Conversation
    prompt: Prompt | None
    segment: Segment
    own_items: tuple[bytes, ...]
    """The items of its newest segment."""
    tips: Sequence[tuple[Conversation, Segment]]
    """The newest node of each segment."""


class SegmentBook:
    """Where the nodes of this process's conversations are kept."""

    def __init__(self) -> None:
        self._segments: weakref.WeakKeyDictionary[Conversation, Segment] = (
            weakref.WeakKeyDictionary()
        )
        self._newest = 0

    def find(self, conversation: Conversation) -> Segment | None:
        """Return the segment whose newest node this is."""
        return self._segments.get(conversation)

    def draft(
        self, conversation: Conversation, prompt: Prompt | None, tenant: str, *, whole: bool = False
    ) -> Draft:
        """Return what must be written to keep a conversation.

        Args:
            conversation: The conversation.
            prompt: Its token ids.
            tenant: Whose it is.
            whole: Whether to take nothing for kept already.
        """
        nodes: list[Conversation] = []
        node: Conversation | None = conversation
        base: Segment | None = None
        while node is not None and node is not EMPTY:
            base = None if whole else self._segments.get(node)
            if base is not None and base.tenant == tenant:
                break
            base = None
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        items = tuple(item for node in nodes for item in node.own_items)
        kept, suffix = (0, None) if prompt is None else _behind(prompt.ids, base)
        start = EMPTY if base is None or node is None else node
        row = SegmentRow(
            id=self._new_id(),
            tenant=tenant,
            parent_id=None if base is None else base.id,
            items=pack(items),
            facts=_facts(conversation, start, [len(node.own_items) for node in nodes], prompt),
            ids=suffix,
            kept_ids=kept,
        )
        segment = Segment(row, base, len(items))
        if prompt is not None:
            segment.ids_length = len(prompt.ids)
            segment.ids_reference = prompt.ids.buffer_reference()
        return Draft(row, segment, conversation, items)

    def _new_id(self) -> str:
        """Return a random id behind the time, so that new rows stand together in an index."""
        self._newest = max(time.time_ns() // 1000, self._newest + 1)
        return f"{self._newest:014x}{secrets.token_hex(9)}"

    def keep(self, draft: Draft) -> None:
        """Note that a draft was written."""
        tip = draft.conversation
        known = self._segments.get(tip)
        if tip is EMPTY or (known is not None and known is draft.segment.parent):
            return  # it adds no node
        self._segments[tip] = draft.segment

    def adopt(self, loaded: Loaded) -> None:
        """Note where the nodes of a conversation are that was read."""
        for node, segment in loaded.tips:
            if node is not EMPTY:
                self._segments.setdefault(node, segment)


def load(rows: Sequence[SegmentRow]) -> Loaded:
    """Return the conversation of a chain of segments.

    Args:
        rows: At least one, the oldest first; each continues the one before it.

    Raises:
        ValueError: They are not what this version of the server writes.
    """
    node = EMPTY
    segment: Segment | None = None
    ids: array[int] | None = None
    tips: list[tuple[Conversation, Segment]] = []
    for row in rows:
        items = unpack(row.items)
        node, described = _continued(node, items, row.facts)
        segment = Segment(row, segment, len(items))
        tips.append((node, segment))
        if row.ids is None:
            ids = None
            continue
        if not row.kept_ids:
            ids = array("I")
        if ids is None or len(ids) < row.kept_ids:
            raise ValueError("token ids without those before them")
        del ids[row.kept_ids :]
        ids.extend(ids_of(row.ids))
        segment.ids_length = len(ids)
    assert segment is not None
    prompt = None
    if ids is not None and described is not None:
        fingerprint, head_length, tail = described
        prompt = Prompt(fingerprint, TokenIds(ids), head_length, tuple(tail))
        _share_ids(tips, rows, prompt.ids)
    return Loaded(node, prompt, segment, items, tips)


def _share_ids(
    tips: Sequence[tuple[Conversation, Segment]], rows: Sequence[SegmentRow], ids: TokenIds
) -> None:
    """Note which segments' ids are the first ones of `ids`, those of the newest."""
    shared = len(ids)
    for (_, segment), row in zip(reversed(tips), reversed(rows), strict=True):
        if row.ids is None:
            return
        if segment.ids_length <= shared:
            segment.ids_reference = ids.buffer_reference()
        shared = min(shared, row.kept_ids)


def _behind(ids: TokenIds, base: Segment | None) -> tuple[int, bytes]:
    """Return how many of `ids` those of `base` begin with, and the ones behind them, packed."""
    kept = 0
    if base is not None and base.ids_reference is not None:
        length = min(base.ids_length, len(ids))
        if base.ids_reference is ids.buffer_reference():
            kept = length
        elif (buffer := base.ids_reference()) is not None:
            kept = _common(ids, buffer.ids, length)
    return kept, packed_ids(ids.as_array(kept))


def _common(ids: TokenIds, buffer: array[int], length: int) -> int:
    """Return how many of the first `length` ids are the same; after a fork or a new rendering."""
    for start in range(0, length, _CHUNK):
        stop = min(start + _CHUNK, length)
        ours, theirs = ids.as_array(start, stop), buffer[start:stop]
        if ours != theirs:
            pairs = enumerate(zip(ours, theirs, strict=True), start)
            return next(position for position, (one, other) in pairs if one != other)
    return length


# Facts: a JSON object, then the bytes that it counts.


def _facts(
    tip: Conversation, start: Conversation, counts: Sequence[int], prompt: Prompt | None
) -> bytes:
    """Return what is to be known of `tip`, of which `start` is known."""
    tools = _shared_front(tip.added_tools, start.added_tools)
    unscreened = _shared_front(tip.unscreened, start.unscreened)
    members: dict[str, Any] = {
        "v": _VERSION,
        "nodes": counts,
        "open": dict(tip.open_calls),
        "cut": dict(tip.cut_calls),
        "outputs": tip.tool_outputs,
        "tools": [tools, len(tip.added_tools) - tools],
        "unscreened": unscreened,
        "configured": tip.configuration != start.configuration,
        "screened": tip.screen_state != start.screen_state,
    }
    if tip.last_user_text != start.last_user_text:
        members["text"] = tip.last_user_text
    if prompt is not None:
        members["prompt"] = [prompt.fingerprint, prompt.head_length, prompt.tail]
    parts = [orjson.dumps(members)]
    if members["configured"]:
        parts.append(tip.configuration)
    if members["screened"]:
        parts.append(tip.screen_state)
    return pack((*parts, *tip.added_tools[tools:], *tip.unscreened[unscreened:]))


def _continued(
    start: Conversation, items: Sequence[bytes], facts: bytes
) -> tuple[Conversation, tuple[str, int, Sequence[int]] | None]:
    """Return the newest node of a segment that begins behind `start`, and its prompt's facts."""
    described, *parts = unpack(facts)
    members = orjson.loads(described)
    if members["v"] != _VERSION:
        raise ValueError("facts of another version")
    left = iter(parts)
    configuration = next(left) if members["configured"] else start.configuration
    screen_state = next(left) if members["screened"] else start.screen_state
    tools_kept, tools_new = members["tools"]
    tools = start.added_tools[:tools_kept] + tuple(next(left) for _ in range(tools_new))
    node, position = start, 0
    for count in members["nodes"]:
        own = tuple(items[position : position + count])
        position += count
        node = Conversation(
            parent=node,
            own_items=own,
            item_count=node.item_count + len(own),
            byte_count=node.byte_count + sum(map(len, own)),
        )
    if node is not start:
        node = replace(
            node,
            open_calls=MappingProxyType(members["open"]),
            cut_calls=MappingProxyType(members["cut"]),
            tool_outputs=members["outputs"],
            last_user_text=members.get("text", start.last_user_text),
            added_tools=tools,
            configuration=configuration,
            screen_state=screen_state,
            unscreened=start.unscreened[: members["unscreened"]] + tuple(left),
        )
    prompt = members.get("prompt")
    return node, None if prompt is None else (prompt[0], prompt[1], prompt[2])


def _shared_front(ours: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    """Return the length of `theirs` if `ours` begins with it, else 0."""
    return len(theirs) if ours[: len(theirs)] == theirs else 0
