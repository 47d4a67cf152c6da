"""Items of tools that a provider runs, and of shells, patches, computers and programs."""

from __future__ import annotations

from typing import Literal

from turnwire.v1 import item_pb2
from turnwire_server.codec.shapes.base import Json, JsonObject, ListOf, Shape, Uint32
from turnwire_server.codec.shapes.items import ItemStatus

__all__ = [
    "ApplyPatchCallItem",
    "ApplyPatchCallOutputItem",
    "CodeInterpreterCallItem",
    "ComputerCallItem",
    "ComputerCallOutputItem",
    "FileSearchCallItem",
    "ImageGenerationCallItem",
    "LocalShellCallItem",
    "LocalShellCallOutputItem",
    "McpApprovalRequestItem",
    "McpApprovalResponseItem",
    "McpCallItem",
    "McpListToolsItem",
    "ProgramItem",
    "ProgramOutputItem",
    "ShellCallItem",
    "ShellCallOutputItem",
    "WebSearchCallItem",
]


class FileSearchCallItem(Shape, message_type=item_pb2.FileSearchCallItem):
    """A file search by the provider."""

    type: Literal["file_search_call"]
    id: str | None = None
    queries: ListOf[str] | None = None
    status: str | None = None
    results: Json = None


class WebSearchCallItem(Shape, message_type=item_pb2.WebSearchCallItem):
    """A web search by the provider."""

    type: Literal["web_search_call"]
    id: str | None = None
    action: Json = None
    status: str | None = None


class ComputerCallItem(Shape, message_type=item_pb2.ComputerCallItem):
    """An action on a computer, asked for by the model."""

    type: Literal["computer_call"]
    id: str | None = None
    call_id: str
    action: Json = None
    actions: Json = None
    pending_safety_checks: Json = None
    status: str | None = None


class ComputerCallOutputItem(Shape, message_type=item_pb2.ComputerCallOutputItem):
    """Result of an action on a computer."""

    type: Literal["computer_call_output"]
    id: str | None = None
    call_id: str
    output: JsonObject
    acknowledged_safety_checks: Json = None
    status: str | None = None
    created_by: str | None = None


class ImageGenerationCallItem(Shape, message_type=item_pb2.ImageGenerationCallItem):
    """An image made by the provider."""

    type: Literal["image_generation_call"]
    id: str | None = None
    status: str | None = None
    result: str | None = None


class CodeInterpreterCallItem(Shape, message_type=item_pb2.CodeInterpreterCallItem):
    """Code run by the provider."""

    type: Literal["code_interpreter_call"]
    id: str | None = None
    container_id: str | None = None
    code: str | None = None
    outputs: Json = None
    status: str | None = None


class LocalShellCallItem(Shape, message_type=item_pb2.LocalShellCallItem):
    """A command for the client's shell."""

    type: Literal["local_shell_call"]
    id: str | None = None
    call_id: str
    action: JsonObject
    status: ItemStatus | None = None


class LocalShellCallOutputItem(Shape, message_type=item_pb2.LocalShellCallOutputItem):
    """Output of a command in the client's shell."""

    type: Literal["local_shell_call_output"]
    id: str | None = None
    output: str
    status: ItemStatus | None = None
    call_id: str | None = None


class ShellCallItem(Shape, message_type=item_pb2.ShellCallItem):
    """Commands for a shell."""

    type: Literal["shell_call"]
    id: str | None = None
    call_id: str
    action: JsonObject
    environment: Json = None
    status: ItemStatus | None = None
    caller: Json = None
    created_by: str | None = None


class ShellCallOutputItem(Shape, message_type=item_pb2.ShellCallOutputItem):
    """Output of shell commands."""

    type: Literal["shell_call_output"]
    id: str | None = None
    call_id: str
    output: ListOf[Json]
    max_output_length: Uint32 | None = None
    status: ItemStatus | None = None
    caller: Json = None
    created_by: str | None = None


class ApplyPatchCallItem(Shape, message_type=item_pb2.ApplyPatchCallItem):
    """A change of a file, asked for by the model."""

    type: Literal["apply_patch_call"]
    id: str | None = None
    call_id: str
    operation: JsonObject
    status: ItemStatus | None = None
    caller: Json = None
    created_by: str | None = None


class ApplyPatchCallOutputItem(Shape, message_type=item_pb2.ApplyPatchCallOutputItem):
    """Result of a change of a file."""

    type: Literal["apply_patch_call_output"]
    id: str | None = None
    call_id: str
    status: str | None = None
    output: str | None = None
    caller: Json = None
    created_by: str | None = None


class McpListToolsItem(Shape, message_type=item_pb2.McpListToolsItem):
    """Tools of an MCP server."""

    type: Literal["mcp_list_tools"]
    id: str | None = None
    server_label: str
    tools: ListOf[Json]
    error: str | None = None


class McpApprovalRequestItem(Shape, message_type=item_pb2.McpApprovalRequestItem):
    """Asks the client to approve an MCP call."""

    type: Literal["mcp_approval_request"]
    id: str | None = None
    arguments: str
    name: str
    server_label: str


class McpApprovalResponseItem(Shape, message_type=item_pb2.McpApprovalResponseItem):
    """The client's answer to an approval request."""

    type: Literal["mcp_approval_response"]
    id: str | None = None
    approval_request_id: str
    approve: bool
    reason: str | None = None


class McpCallItem(Shape, message_type=item_pb2.McpCallItem):
    """A call of an MCP server's tool by the provider."""

    type: Literal["mcp_call"]
    id: str | None = None
    arguments: str
    name: str
    server_label: str
    approval_request_id: str | None = None
    error: Json = None
    output: str | None = None
    status: str | None = None


class ProgramItem(Shape, message_type=item_pb2.ProgramItem):
    """A program that calls tools, written by the model."""

    type: Literal["program"]
    id: str | None = None
    call_id: str
    code: str
    fingerprint: str


class ProgramOutputItem(Shape, message_type=item_pb2.ProgramOutputItem):
    """Result of a program."""

    type: Literal["program_output"]
    id: str | None = None
    call_id: str
    result: str
    status: ItemStatus | None = None
