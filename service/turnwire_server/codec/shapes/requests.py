"""Bodies of requests, and their settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from turnwire.v1 import (
    client_event_pb2,
    conversation_pb2,
    response_pb2,
    responses_service_pb2,
)
from turnwire_server.codec.shapes.base import (
    OBJECT_TAG,
    TEXT_TAG,
    Json,
    JsonObject,
    ListOf,
    Pairs,
    Shape,
    Uint32,
    alternatives,
    by_type,
)
from turnwire_server.codec.shapes.input import Input, Item
from turnwire_server.codec.shapes.tools import Tool, ToolChoice

__all__ = [
    "CompactRequest",
    "CreateConversationItemsRequest",
    "CreateConversationRequest",
    "ResponseCreate",
    "UpdateConversationRequest",
]


class ReasoningConfig(Shape, message_type=response_pb2.ReasoningConfig):
    """Reasoning settings."""

    effort: str | None = None
    summary: str | None = None
    context: str | None = None
    mode: str | None = None
    generate_summary: str | None = None


class TextFormatText(Shape, message_type=response_pb2.TextFormatText):
    """Anything."""

    type: Literal["text"]


class TextFormatJsonObject(Shape, message_type=response_pb2.TextFormatJsonObject):
    """A JSON object."""

    type: Literal["json_object"]


class TextFormatJsonSchema(Shape, message_type=response_pb2.TextFormatJsonSchema):
    """JSON that a schema allows."""

    type: Literal["json_schema"]
    name: str
    json_schema: JsonObject = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


TextFormat = Annotated[
    Annotated[TextFormatText, Tag(":text")]
    | Annotated[TextFormatJsonObject, Tag(":json_object")]
    | Annotated[TextFormatJsonSchema, Tag(":json_schema")],
    Discriminator(by_type),
]
"""What the text must look like, by its `type`."""


class TextConfig(Shape, message_type=response_pb2.TextConfig):
    """Text settings."""

    format: TextFormat | None = None
    verbosity: str | None = None


class StreamOptions(Shape, message_type=client_event_pb2.StreamOptions):
    """Settings of a stream."""

    include_obfuscation: bool | None = None


class ContextManagement(Shape, message_type=client_event_pb2.ContextManagement):
    """How the server may make the context shorter."""

    type: str
    compact_threshold: Uint32 | None = None


class Conversation(Shape, message_type=response_pb2.Conversation):
    """A conversation by id."""

    id: str


ConversationReference = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[Conversation, Tag(OBJECT_TAG)],
    alternatives("a string or an object", TEXT_TAG, OBJECT_TAG),
]
"""A conversation, by id or as an object."""


class PromptTemplate(Shape, message_type=response_pb2.PromptTemplate):
    """A prompt template by id."""

    id: str
    version: str | None = None
    variables: Json = None


class PromptCacheOptions(Shape, message_type=response_pb2.PromptCacheOptions):
    """Cache settings."""

    mode: str | None = None
    ttl: str | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class ResponseCreate(Shape, message_type=client_event_pb2.ResponseCreate):
    """The body of a create.

    `model` is required, and the session says so: a create over gRPC has no other judge.
    """

    model: str | None = None
    input: Input | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    tools: ListOf[Tool] | None = None
    tool_choice: ToolChoice | None = None
    store: bool | None = None
    max_output_tokens: Uint32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    include: ListOf[str] | None = None
    parallel_tool_calls: bool | None = None
    generate: bool | None = None
    metadata: Pairs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    background_options: Json = None
    context_management: ListOf[ContextManagement] | None = None
    conversation: ConversationReference | None = None
    max_tool_calls: Uint32 | None = None
    moderation: Json = None
    prompt: PromptTemplate | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    top_logprobs: Uint32 | None = None
    truncation: str | None = None
    user: str | None = None
    image: Json = None
    access_programs: Json = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    rollout: bool | None = None
    multi_agent: Json = None


class CompactRequest(Shape, message_type=responses_service_pb2.CompactRequest):
    """Asks to make a conversation shorter. `model` is required, and the session says so."""

    model: str | None = None
    input: Input | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    image: Json = None


class CreateConversationRequest(Shape, message_type=conversation_pb2.CreateConversationRequest):
    """Asks for a new conversation."""

    items: ListOf[Item] | None = None
    metadata: Pairs | None = None


class UpdateConversationRequest(Shape, message_type=conversation_pb2.UpdateConversationRequest):
    """Asks for other metadata."""

    metadata: Pairs | None


class CreateConversationItemsRequest(
    Shape, message_type=conversation_pb2.CreateConversationItemsRequest
):
    """Asks to add items to a conversation."""

    items: ListOf[Item]
