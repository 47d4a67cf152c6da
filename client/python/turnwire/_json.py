"""The JSON that crosses the public surface."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from google.protobuf.message import Message

from turnwire import _codec

__all__ = ["JSONValue", "plain"]

JSONValue: TypeAlias = (
    "Mapping[str, JSONValue] | Sequence[JSONValue] | str | int | float | bool | None"
)
"""A JSON value. What this library returns is made of plain dicts and lists."""


def plain(message: Message) -> dict[str, JSONValue]:
    """Return the public JSON object of `message` as plain Python values."""
    value: dict[str, JSONValue] = json.loads(_codec.dumps(message))
    return value
