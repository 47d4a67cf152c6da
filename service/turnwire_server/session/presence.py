"""Presence of fields by computed name, where the generated types know literal names only."""

from __future__ import annotations

from google.protobuf.message import Message

__all__ = ["has", "number"]


def has(message: Message, name: str) -> bool:
    """Return whether the optional field `name` is set."""
    return message.HasField(name)


def number(message: Message, name: str) -> float | None:
    """Return the numeric optional field `name`, None when it is not set."""
    return getattr(message, name) if message.HasField(name) else None
