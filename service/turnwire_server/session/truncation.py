"""Truncation: which items go when a conversation is longer than the model's context.

Whole turns go, oldest first. A turn begins with the first user message after anything else and
goes on to the next one; calls stay with their outputs. What stands before the first turn
(developer and system messages) is the head and stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from turnwire.v1 import item_pb2
from turnwire_server.session.conversation import EMPTY, OpenCalls

__all__ = ["kept_items", "turn_starts"]

_HEAD_ROLES = frozenset({"developer", "system"})


def turn_starts(items: Sequence[item_pb2.Item]) -> list[int]:
    """Return where the turns of a conversation begin, oldest first.

    The items before the first of them are the head. Nothing is between two turns, and no call is
    answered in another turn than its own.
    """
    calls = OpenCalls(EMPTY)
    head = 0
    while head < len(items) and _is_head(items[head]):
        head += 1
    starts = []
    is_new = True
    for index, item in enumerate(items[head:], head):
        is_user = item.WhichOneof("item") == "message" and item.message.role == "user"
        if index == head or (is_user and is_new and not calls.open):
            starts.append(index)
        is_new = not is_user
        calls.read(item)
    return starts


def _is_head(item: item_pb2.Item) -> bool:
    arm = item.WhichOneof("item")
    return (arm == "message" and item.message.role in _HEAD_ROLES) or arm == "additional_tools"


def kept_items(
    items: Sequence[item_pb2.Item], starts: Sequence[int], dropped: int
) -> list[item_pb2.Item]:
    """Return the items without the oldest `dropped` turns, which are fewer than all."""
    return [*items[: starts[0]], *items[starts[dropped] :]] if dropped else list(items)
