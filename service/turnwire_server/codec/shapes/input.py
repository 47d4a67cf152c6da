"""What the model gets: text, or items of any of the public types."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from turnwire_server.codec.shapes import hosted_items as hosted
from turnwire_server.codec.shapes import items
from turnwire_server.codec.shapes.base import LIST_TAG, TEXT_TAG, ListOf, alternatives, by_type

__all__ = ["Input", "Item"]


def _by_item_type(value: Any) -> str | None:
    """Return an item's tag. Without `type`, one with a `role` is a message."""
    tag = by_type(value)
    if tag is None and isinstance(value, dict) and value.get("type") is None:
        if value.get("role") is not None:
            return ":message"
        if value.get("id") is not None:
            return ":item_reference"
    return tag


Item = Annotated[
    Annotated[items.MessageItem, Tag(":message")]
    | Annotated[items.FunctionCallItem, Tag(":function_call")]
    | Annotated[items.FunctionCallOutputItem, Tag(":function_call_output")]
    | Annotated[items.CustomToolCallItem, Tag(":custom_tool_call")]
    | Annotated[items.CustomToolCallOutputItem, Tag(":custom_tool_call_output")]
    | Annotated[items.ReasoningItem, Tag(":reasoning")]
    | Annotated[items.CompactionItem, Tag(":compaction")]
    | Annotated[items.CompactionTriggerItem, Tag(":compaction_trigger")]
    | Annotated[items.ItemReferenceItem, Tag(":item_reference")]
    | Annotated[items.AdditionalToolsItem, Tag(":additional_tools")]
    | Annotated[items.ConfigurationUpdateItem, Tag(":configuration_update")]
    | Annotated[items.ToolSearchCallItem, Tag(":tool_search_call")]
    | Annotated[items.ToolSearchOutputItem, Tag(":tool_search_output")]
    | Annotated[hosted.FileSearchCallItem, Tag(":file_search_call")]
    | Annotated[hosted.WebSearchCallItem, Tag(":web_search_call")]
    | Annotated[hosted.ComputerCallItem, Tag(":computer_call")]
    | Annotated[hosted.ComputerCallOutputItem, Tag(":computer_call_output")]
    | Annotated[hosted.ImageGenerationCallItem, Tag(":image_generation_call")]
    | Annotated[hosted.CodeInterpreterCallItem, Tag(":code_interpreter_call")]
    | Annotated[hosted.LocalShellCallItem, Tag(":local_shell_call")]
    | Annotated[hosted.LocalShellCallOutputItem, Tag(":local_shell_call_output")]
    | Annotated[hosted.ShellCallItem, Tag(":shell_call")]
    | Annotated[hosted.ShellCallOutputItem, Tag(":shell_call_output")]
    | Annotated[hosted.ApplyPatchCallItem, Tag(":apply_patch_call")]
    | Annotated[hosted.ApplyPatchCallOutputItem, Tag(":apply_patch_call_output")]
    | Annotated[hosted.McpListToolsItem, Tag(":mcp_list_tools")]
    | Annotated[hosted.McpApprovalRequestItem, Tag(":mcp_approval_request")]
    | Annotated[hosted.McpApprovalResponseItem, Tag(":mcp_approval_response")]
    | Annotated[hosted.McpCallItem, Tag(":mcp_call")]
    | Annotated[hosted.ProgramItem, Tag(":program")]
    | Annotated[hosted.ProgramOutputItem, Tag(":program_output")],
    Discriminator(_by_item_type),
]
"""A unit of conversation state, by its `type`."""

Input = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[ListOf[Item], Tag(LIST_TAG)],
    alternatives("a string or an array", TEXT_TAG, LIST_TAG),
]
"""One user message, or items, oldest first."""
