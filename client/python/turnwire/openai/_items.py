"""Items as a stateless client resends them, and how to tell what was sent before.

A client that keeps its own history sends the items that it sent, and those that the server
answered with, again and again, in a form of its own: ids and status may be gone, a message's
text may be a string or a part, members that were null may be left out. `chain` gives each prefix
of a list of items a digest that does not depend on any of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import orjson

__all__ = ["ROOT", "chain", "extend", "items_of", "root_of"]

ROOT = bytes(16)
"""Digest of no items."""

_SERVER_MEMBERS = frozenset({"id", "status", "created_by"})
_EMPTY_EXTRAS = frozenset({"annotations", "logprobs"})


def items_of(value: object) -> list[object] | None:
    """Return the items of a create's `input`.

    Args:
        value: The member's JSON value.

    Returns:
        The items; text is one user message. None when it is neither text nor a list.
    """
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    return value if isinstance(value, list) else None


def root_of(response_id: str) -> bytes:
    """Return the digest of the items up to a response of which only the id is known."""
    return _digest(b"response:" + response_id.encode(errors="replace"))


def extend(digest: bytes, item: object) -> bytes:
    """Return the digest of the items so far and one more."""
    return _digest(digest + orjson.dumps(_canonical(item), option=orjson.OPT_SORT_KEYS))


def chain(root: bytes, items: Iterable[object]) -> list[bytes]:
    """Return the digest of each prefix of `items`: one more than there are items.

    Raises:
        ValueError: An item cannot be JSON in UTF-8.
    """
    digests = [root]
    try:
        for item in items:
            digests.append(extend(digests[-1], item))
    except orjson.JSONEncodeError:
        raise ValueError("an item is not JSON") from None
    return digests


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _canonical(item: object) -> object:
    if not isinstance(item, Mapping):
        return item
    # A reference is nothing but its id; everywhere else ids are names that the server gave.
    dropped = frozenset() if item.get("type") == "item_reference" else _SERVER_MEMBERS
    members = {
        name: value for name, value in item.items() if value is not None and name not in dropped
    }
    if "type" not in members and "role" in members:
        members["type"] = "message"
    if members.get("type") == "message":
        members["content"] = _parts(members.get("content"), members.get("role"))
    elif isinstance(content := members.get("content"), list):
        members["content"] = [_part(part) for part in content]
    return members


def _parts(content: object, role: object) -> object:
    if isinstance(content, str):
        kind = "output_text" if role == "assistant" else "input_text"
        return [{"type": kind, "text": content}]
    if isinstance(content, Sequence):
        return [_part(part) for part in content]
    return content


def _part(part: object) -> object:
    if not isinstance(part, Mapping):
        return part
    return {
        name: value
        for name, value in part.items()
        if value is not None and not (name in _EMPTY_EXTRAS and not value)
    }
