"""Tools, and the choice among them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, RootModel, Tag

from turnwire.v1 import tool_pb2
from turnwire_server.codec.shapes.base import (
    OBJECT_TAG,
    TEXT_TAG,
    Json,
    JsonObject,
    ListOf,
    Shape,
    Uint32,
    alternatives,
    by_type,
)

__all__ = ["Tool", "ToolChoice", "ToolList"]


class FunctionTool(Shape, message_type=tool_pb2.FunctionTool):
    """A function that the client runs."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    allowed_callers: ListOf[str] | None = None
    is_async: bool | None = Field(None, alias="async")
    defer_loading: bool | None = None
    output_schema: JsonObject | None = None


class CustomToolTextFormat(Shape, message_type=tool_pb2.CustomToolTextFormat):
    """Free text."""

    type: Literal["text"]


class CustomToolGrammarFormat(Shape, message_type=tool_pb2.CustomToolGrammarFormat):
    """Text that a grammar allows."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str


CustomToolFormat = Annotated[
    Annotated[CustomToolTextFormat, Tag(":text")]
    | Annotated[CustomToolGrammarFormat, Tag(":grammar")],
    Discriminator(by_type),
]
"""What the input of a custom tool must look like."""


class CustomTool(Shape, message_type=tool_pb2.CustomTool):
    """A tool with free-form input that the client runs."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: CustomToolFormat | None = None
    allowed_callers: ListOf[str] | None = None
    is_async: bool | None = Field(None, alias="async")
    defer_loading: bool | None = None


ClientTool = Annotated[
    Annotated[FunctionTool, Tag(":function")] | Annotated[CustomTool, Tag(":custom")],
    Discriminator(by_type),
]
"""A tool that the client runs. A namespace has no others, so tools do not nest without end."""


class NamespaceTool(Shape, message_type=tool_pb2.NamespaceTool):
    """A group of tools."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: ListOf[ClientTool]


class ToolSearchTool(Shape, message_type=tool_pb2.ToolSearchTool):
    """Lets the model search for tools."""

    type: Literal["tool_search"]
    description: str | None = None
    execution: str | None = None
    parameters: Json = None


class WebSearchTool(Shape, message_type=tool_pb2.WebSearchTool):
    """Web search by the provider."""

    type: Literal["web_search", "web_search_2025_08_26"]
    external_web_access: bool | None = None
    filters: Json = None
    search_context_size: str | None = None
    user_location: Json = None


class WebSearchPreviewTool(Shape, message_type=tool_pb2.WebSearchPreviewTool):
    """Web search by the provider, older form."""

    type: Literal["web_search_preview", "web_search_preview_2025_03_11"]
    search_content_types: ListOf[str] | None = None
    search_context_size: str | None = None
    user_location: Json = None


class FileSearchTool(Shape, message_type=tool_pb2.FileSearchTool):
    """File search by the provider."""

    type: Literal["file_search"]
    vector_store_ids: ListOf[str]
    filters: Json = None
    max_num_results: Uint32 | None = None
    ranking_options: Json = None


class ComputerTool(Shape, message_type=tool_pb2.ComputerTool):
    """A computer that the client runs."""

    type: Literal["computer"]


class ComputerUsePreviewTool(Shape, message_type=tool_pb2.ComputerUsePreviewTool):
    """A computer that the client runs, older form."""

    type: Literal["computer_use_preview"]
    display_height: Uint32
    display_width: Uint32
    environment: str


class McpTool(Shape, message_type=tool_pb2.McpTool):
    """Tools of an MCP server, called by the provider."""

    type: Literal["mcp"]
    server_label: str
    server_url: str | None = None
    server_description: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    authorization: str | None = None
    headers: Json = None
    allowed_tools: Json = None
    require_approval: Json = None
    allowed_callers: ListOf[str] | None = None
    defer_loading: bool | None = None


class CodeInterpreterTool(Shape, message_type=tool_pb2.CodeInterpreterTool):
    """Code run by the provider."""

    type: Literal["code_interpreter"]
    container: Json = None
    allowed_callers: ListOf[str] | None = None


class ProgrammaticToolCallingTool(Shape, message_type=tool_pb2.ProgrammaticToolCallingTool):
    """Lets the model write programs that call tools."""

    type: Literal["programmatic_tool_calling"]


class ImageGenerationTool(Shape, message_type=tool_pb2.ImageGenerationTool):
    """Images made by the provider."""

    type: Literal["image_generation"]
    action: str | None = None
    background: str | None = None
    model: str | None = None
    quality: str | None = None
    size: str | None = None
    output_format: str | None = None


class LocalShellTool(Shape, message_type=tool_pb2.LocalShellTool):
    """The client's shell, older form."""

    type: Literal["local_shell"]


class ShellTool(Shape, message_type=tool_pb2.ShellTool):
    """A shell."""

    type: Literal["shell"]
    environment: Json = None
    allowed_callers: ListOf[str] | None = None


class ApplyPatchTool(Shape, message_type=tool_pb2.ApplyPatchTool):
    """Changes of files that the client applies."""

    type: Literal["apply_patch"]
    allowed_callers: ListOf[str] | None = None


Tool = Annotated[
    Annotated[FunctionTool, Tag(":function")]
    | Annotated[CustomTool, Tag(":custom")]
    | Annotated[NamespaceTool, Tag(":namespace")]
    | Annotated[ToolSearchTool, Tag(":tool_search")]
    | Annotated[WebSearchTool, Tag(":web_search")]
    | Annotated[WebSearchTool, Tag(":web_search_2025_08_26")]
    | Annotated[WebSearchPreviewTool, Tag(":web_search_preview")]
    | Annotated[WebSearchPreviewTool, Tag(":web_search_preview_2025_03_11")]
    | Annotated[FileSearchTool, Tag(":file_search")]
    | Annotated[ComputerTool, Tag(":computer")]
    | Annotated[ComputerUsePreviewTool, Tag(":computer_use_preview")]
    | Annotated[McpTool, Tag(":mcp")]
    | Annotated[CodeInterpreterTool, Tag(":code_interpreter")]
    | Annotated[ProgrammaticToolCallingTool, Tag(":programmatic_tool_calling")]
    | Annotated[ImageGenerationTool, Tag(":image_generation")]
    | Annotated[LocalShellTool, Tag(":local_shell")]
    | Annotated[ShellTool, Tag(":shell")]
    | Annotated[ApplyPatchTool, Tag(":apply_patch")],
    Discriminator(by_type),
]
"""A tool offered to the model, by its `type`."""


class ToolList(RootModel[ListOf[Tool]]):
    """The `tools` of a request alone: they are checked once and remembered."""


class FunctionToolChoice(Shape, message_type=tool_pb2.NamedToolChoice):
    """This function."""

    type: Literal["function"]
    name: str
    namespace: str | None = None


class CustomToolChoice(Shape, message_type=tool_pb2.NamedToolChoice):
    """This custom tool."""

    type: Literal["custom"]
    name: str
    namespace: str | None = None


class McpToolChoice(Shape, message_type=tool_pb2.McpToolChoice):
    """A tool of this MCP server."""

    type: Literal["mcp"]
    server_label: str
    name: str | None = None


HostedToolType = Literal[
    "file_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "computer",
    "computer_use",
    "computer_use_preview",
    "code_interpreter",
    "image_generation",
    "programmatic_tool_calling",
    "apply_patch",
    "shell",
    "local_shell",
]


class HostedToolChoice(Shape, message_type=tool_pb2.HostedToolChoice):
    """The tool of this type."""

    type: HostedToolType


_NAMED = frozenset({":function", ":custom", ":mcp", ":allowed_tools"})


def _by_choice(value: Any) -> str | None:
    tag = by_type(value)
    return tag if tag is None or tag in _NAMED else ":hosted"


ToolReference = Annotated[
    Annotated[FunctionToolChoice, Tag(":function")]
    | Annotated[CustomToolChoice, Tag(":custom")]
    | Annotated[McpToolChoice, Tag(":mcp")]
    | Annotated[HostedToolChoice, Tag(":hosted")],
    Discriminator(_by_choice),
]
"""A choice that names one tool."""


class AllowedToolsChoice(Shape, message_type=tool_pb2.AllowedToolsChoice):
    """Only these tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: ListOf[ToolReference]


ChosenTool = Annotated[
    Annotated[FunctionToolChoice, Tag(":function")]
    | Annotated[CustomToolChoice, Tag(":custom")]
    | Annotated[McpToolChoice, Tag(":mcp")]
    | Annotated[HostedToolChoice, Tag(":hosted")]
    | Annotated[AllowedToolsChoice, Tag(":allowed_tools")],
    Discriminator(_by_choice),
]
"""A choice that is an object."""

ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(TEXT_TAG)]
    | Annotated[ChosenTool, Tag(OBJECT_TAG)],
    alternatives("a string or an object", TEXT_TAG, OBJECT_TAG),
]
"""A mode, or what to call."""
