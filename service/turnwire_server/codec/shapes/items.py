"""Items that clients make or send back: messages, calls and their outputs, reasoning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from turnwire.v1 import item_pb2
from turnwire_server.codec.shapes.base import Json, ListOf, Shape
from turnwire_server.codec.shapes.content import Content, ContentPart
from turnwire_server.codec.shapes.tools import Tool

__all__ = [
    "AdditionalToolsItem",
    "CompactionItem",
    "CompactionTriggerItem",
    "ConfigurationUpdateItem",
    "CustomToolCallItem",
    "CustomToolCallOutputItem",
    "FunctionCallItem",
    "FunctionCallOutputItem",
    "ItemReferenceItem",
    "ItemStatus",
    "MessageItem",
    "ReasoningItem",
    "ToolSearchCallItem",
    "ToolSearchOutputItem",
]

ItemStatus = Literal["in_progress", "completed", "incomplete", "failed"]
"""Where an item stands."""


class MessageItem(Shape, message_type=item_pb2.MessageItem):
    """A message of a conversation."""

    type: Literal["message"] | None = None
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content | None = None
    """Only an assistant's may be missing, which the session judges."""
    status: ItemStatus | None = None
    phase: str | None = None


class FunctionCallItem(Shape, message_type=item_pb2.FunctionCallItem):
    """A call of a function tool by the model."""

    type: Literal["function_call"]
    id: str | None = None
    call_id: str
    name: str
    arguments: str
    status: ItemStatus | None = None
    namespace: str | None = None
    is_async: bool | None = Field(None, alias="async")
    caller: Json = None


class FunctionCallOutputItem(Shape, message_type=item_pb2.FunctionCallOutputItem):
    """Output of a function call."""

    type: Literal["function_call_output"]
    id: str | None = None
    call_id: str | None = None
    output: Content
    status: ItemStatus | None = None
    name: str | None = None
    namespace: str | None = None
    caller: Json = None
    created_by: str | None = None


class CustomToolCallItem(Shape, message_type=item_pb2.CustomToolCallItem):
    """A call of a custom tool by the model."""

    type: Literal["custom_tool_call"]
    id: str | None = None
    call_id: str
    name: str
    input: str
    status: ItemStatus | None = None
    namespace: str | None = None
    is_async: bool | None = Field(None, alias="async")
    caller: Json = None


class CustomToolCallOutputItem(Shape, message_type=item_pb2.CustomToolCallOutputItem):
    """Output of a custom tool call."""

    type: Literal["custom_tool_call_output"]
    id: str | None = None
    call_id: str
    output: Content
    status: ItemStatus | None = None
    caller: Json = None
    created_by: str | None = None


class ReasoningItem(Shape, message_type=item_pb2.ReasoningItem):
    """Reasoning of the model."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: ListOf[ContentPart] | None = None
    content: ListOf[ContentPart] | None = None
    encrypted_content: str | None = None
    status: ItemStatus | None = None


class CompactionItem(Shape, message_type=item_pb2.CompactionItem):
    """A conversation made shorter."""

    type: Literal["compaction"]
    id: str | None = None
    encrypted_content: str
    created_by: str | None = None


class CompactionTriggerItem(Shape, message_type=item_pb2.CompactionTriggerItem):
    """Asks for a compaction."""

    type: Literal["compaction_trigger"]
    id: str | None = None


class ItemReferenceItem(Shape, message_type=item_pb2.ItemReferenceItem):
    """Stands for an earlier item."""

    type: Literal["item_reference"] | None = None
    id: str


class AdditionalToolsItem(Shape, message_type=item_pb2.AdditionalToolsItem):
    """Tools offered from this point of the conversation on."""

    type: Literal["additional_tools"]
    id: str | None = None
    role: str | None = None
    tools: ListOf[Tool]


class ConfigurationUpdateItem(Shape, message_type=item_pb2.ConfigurationUpdateItem):
    """Settings that change from this point on."""

    type: Literal["configuration_update"]
    id: str | None = None
    reasoning: Json = None
    text: Json = None


class ToolSearchCallItem(Shape, message_type=item_pb2.ToolSearchCallItem):
    """A search for tools by the model."""

    type: Literal["tool_search_call"]
    id: str | None = None
    call_id: str | None = None
    arguments: Json = None
    execution: str | None = None
    status: ItemStatus | None = None
    created_by: str | None = None


class ToolSearchOutputItem(Shape, message_type=item_pb2.ToolSearchOutputItem):
    """Tools that were found."""

    type: Literal["tool_search_output"]
    id: str | None = None
    call_id: str | None = None
    tools: ListOf[Tool]
    execution: str | None = None
    status: ItemStatus | None = None
    created_by: str | None = None
