"""Pydantic models of the public JSON that clients send.

They say what is required, of which type, and from which set; ranges, combinations and limits
are the session's. Each model names the message that it is the JSON of, and a test holds the two
together. Nobody reads a validated model: the codec builds the message from the same value.
"""

from __future__ import annotations

from turnwire_server.codec.shapes.base import LITERAL_TAG, Shape
from turnwire_server.codec.shapes.events import CLIENT_EVENTS, ResponseCreateEvent
from turnwire_server.codec.shapes.plain import Plain
from turnwire_server.codec.shapes.requests import (
    CompactRequest,
    CreateConversationItemsRequest,
    CreateConversationRequest,
    ResponseCreate,
    UpdateConversationRequest,
)
from turnwire_server.codec.shapes.tools import ToolList

__all__ = [
    "CLIENT_EVENTS",
    "LITERAL_TAG",
    "CompactRequest",
    "CreateConversationItemsRequest",
    "CreateConversationRequest",
    "Plain",
    "ResponseCreate",
    "ResponseCreateEvent",
    "Shape",
    "ToolList",
    "UpdateConversationRequest",
]
