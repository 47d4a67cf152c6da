"""The states of a parser of calls."""

from __future__ import annotations

import enum

__all__ = ["Marker", "State"]


class State(enum.Enum):
    """Where a parser is."""

    TEXT = enum.auto()
    REASONING = enum.auto()
    BODY = enum.auto()
    """After a marker: a call, or a list of them, must come."""
    CALL = enum.auto()
    """In what may be a call."""
    BETWEEN = enum.auto()
    """After a complete call: another one, the closing marker, or text."""
    SKIP = enum.auto()
    """After a call that broke: drop everything up to the closing marker."""


class Marker(enum.Enum):
    """What announced a call."""

    TAG = enum.auto()
    FENCE = enum.auto()
    BARE = enum.auto()
