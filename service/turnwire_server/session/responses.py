"""The response object as the public API shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from turnwire.v1 import client_event_pb2, response_pb2
from turnwire_server.session.presence import has

__all__ = ["new_response", "shown_settings", "usage_of"]

_Value = TypeVar("_Value", bool, float)

_SETTINGS = ("max_output_tokens", "max_tool_calls", "prompt_cache_retention")
_OWN_STRINGS = ("instructions", "prompt_cache_key", "safety_identifier", "user")


def new_response(
    create: client_event_pb2.ResponseCreate,
    *,
    response_id: str,
    created_at: int,
    settings: bytes | None = None,
    warnings: Sequence[response_pb2.Warning] = (),
    event_id: str | None = None,
) -> response_pb2.Response:
    """Return the response of a checked create as it is when it begins.

    Args:
        create: The create, checked.
        response_id: Its id.
        created_at: Unix seconds.
        settings: What `shown_settings` returned for it, None to ask that now.
        warnings: What was dropped or loosened.
        event_id: The create's `event_id`.
    """
    # To parse it is many times as fast as to set one member after the other.
    response = response_pb2.Response.FromString(
        shown_settings(create) if settings is None else settings
    )
    response.id = response_id
    response.created_at.seconds = created_at
    if create.previous_response_id:
        response.previous_response_id = create.previous_response_id
    for name in _OWN_STRINGS:
        if has(create, name):
            setattr(response, name, getattr(create, name))
    if create.metadata:
        response.metadata.update(create.metadata)
    if create.HasField("conversation"):
        response.conversation.id = create.conversation.id or create.conversation.object.id
    if create.HasField("prompt"):
        response.prompt.CopyFrom(create.prompt)
    if warnings:
        response.warnings.extend(warnings)
    if event_id is not None:
        response.turnwire.event_id = event_id
    return response


def shown_settings(create: client_event_pb2.ResponseCreate, tools: bytes = b"") -> bytes:
    """Return what a response shows of the settings of its create: a serialized `Response`.

    It is the same for creates that differ in members `OF_ONE_TURN` only.

    Args:
        create: The create, checked.
        tools: The tools to echo, a serialized `Response` of nothing else.
    """
    response = response_pb2.Response(
        object="response",
        status=response_pb2.RESPONSE_STATUS_IN_PROGRESS,
        model=create.model,
        background=create.background,
        parallel_tool_calls=_or(create, "parallel_tool_calls", True),
        service_tier="default",
        store=_or(create, "store", True),
        temperature=_or(create, "temperature", 1.0),
        top_p=_or(create, "top_p", 1.0),
        presence_penalty=create.presence_penalty,
        frequency_penalty=create.frequency_penalty,
        top_logprobs=create.top_logprobs,
        truncation=create.truncation or "disabled",
        reasoning=create.reasoning,
        text=create.text,
    )
    response.MergeFromString(tools)  # four times as fast as to copy them one by one
    if not response.text.HasField("format"):
        response.text.format.text.SetInParent()
    if create.HasField("tool_choice"):
        response.tool_choice.CopyFrom(create.tool_choice)
    else:
        response.tool_choice.mode = "auto"
    for name in _SETTINGS:
        if has(create, name):
            setattr(response, name, getattr(create, name))
    if create.HasField("prompt_cache_options"):
        response.prompt_cache_options.CopyFrom(create.prompt_cache_options)
    return response.SerializeToString()


def _or(create: client_event_pb2.ResponseCreate, name: str, default: _Value) -> _Value:
    return getattr(create, name) if has(create, name) else default


def usage_of(
    *,
    input_tokens: int = 0,
    cached_tokens: int = 0,
    output_tokens: int = 0,
    reasoning_tokens: int = 0,
) -> response_pb2.Usage:
    """Return a usage object. `cached_tokens` is held to `input_tokens`."""
    # Set member by member: messages that are made to be copied take three times as long.
    usage = response_pb2.Usage()
    usage.input_tokens, usage.output_tokens = input_tokens, output_tokens
    usage.input_tokens_details.cached_tokens = min(cached_tokens, input_tokens)
    usage.output_tokens_details.reasoning_tokens = reasoning_tokens
    usage.total_tokens = input_tokens + output_tokens
    return usage
