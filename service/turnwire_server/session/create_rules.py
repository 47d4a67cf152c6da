"""Rules for the settings of a create: ranges, combinations, and what is not available here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from turnwire.v1 import client_event_pb2, error_pb2
from turnwire_server.session.configuration import EFFORTS
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.presence import has, number
from turnwire_server.session.tool_rules import is_json_object

__all__ = [
    "MIN_COMPACT_THRESHOLD",
    "OF_ONE_TURN",
    "TIMING",
    "check_create",
    "check_lineage",
    "check_metadata",
    "check_own",
]

TIMING = "turnwire.timing"
"""Value of `include` that asks for `response.turnwire.timing`."""

OF_ONE_TURN = frozenset(
    {
        "conversation",
        "input",
        "instructions",
        "metadata",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "safety_identifier",
        "user",
    }
)
"""Members of a create that are its own; all others are settings, the same in turn after turn.
Of the rules here, only those of `check_own` look at them."""

Create = client_event_pb2.ResponseCreate

_INCLUDES = frozenset(
    {
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
        "reasoning.encrypted_content",
        "message.output_text.logprobs",
        TIMING,
    }
)
_SUMMARIES = frozenset({"auto", "concise", "detailed"})
_CONTEXTS = frozenset({"auto", "current_turn", "all_turns"})
_REASONING_MODES = frozenset({"standard", "pro"})
_TRUNCATIONS = frozenset({"auto", "disabled"})
_VERBOSITIES = frozenset({"low", "medium", "high"})
_TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "fast", "ultrafast"})
_FORMAT_NAME = re.compile(r"[A-Za-z0-9_\-]{1,64}", re.ASCII)

MIN_COMPACT_THRESHOLD = 1000
"""Least tokens from which on a context may be compacted."""

_PERSISTENT_ONLY = ("generate", "rollout")

_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("top_logprobs", 0, 20),
    ("max_output_tokens", 1, math.inf),
    ("max_tool_calls", 1, math.inf),
)

_WORDS: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("", "truncation", _TRUNCATIONS),
    ("", "service_tier", _TIERS),
    ("reasoning", "effort", EFFORTS),
    ("reasoning", "summary", _SUMMARIES),
    ("reasoning", "generate_summary", _SUMMARIES),
    ("reasoning", "context", _CONTEXTS),
    ("reasoning", "mode", _REASONING_MODES),
    ("text", "verbosity", _VERBOSITIES),
)
"""Owner ("" for the create), member and what it may say."""


def check_create(create: Create, *, stream_id: str | None, is_persistent: bool) -> Rejection | None:
    """Check everything of a create but its tools and its input.

    Args:
        create: The create.
        stream_id: Its lane.
        is_persistent: Whether it came over a stream that outlives it (gRPC, WebSocket).
    """
    return (
        _check_transport(create, stream_id, is_persistent=is_persistent)
        or _check_available(create)
        or _check_ranges(create)
        or _check_words(create)
        or check_metadata(create.metadata)
        or _check_format(create)
        or _check_context_management(create)
    )


def check_own(create: Create, *, stream_id: str | None, is_persistent: bool) -> Rejection | None:
    """Check of a create what its settings, which have passed `check_create` before, do not decide.

    Args:
        create: The create.
        stream_id: Its lane.
        is_persistent: Whether it came over a stream that outlives it (gRPC, WebSocket).
    """
    return (
        _check_transport(create, stream_id, is_persistent=is_persistent)
        or check_lineage(create)
        or check_metadata(create.metadata)
    )


def _check_transport(
    create: Create, stream_id: str | None, *, is_persistent: bool
) -> Rejection | None:
    if is_persistent:
        if create.background:
            return _unsupported(
                "background", "background needs a request of its own: HTTP, or a unary call."
            )
        return None
    for name in _PERSISTENT_ONLY:
        if has(create, name):
            return _unsupported(name, f"{name} needs a persistent connection.")
    if stream_id is not None:
        return _unsupported("stream_id", "stream_id needs a persistent connection.")
    return None


def check_lineage(create: Create) -> Rejection | None:
    """Check that a create continues one thing: it comes before looking for what that is."""
    if create.HasField("conversation") and create.HasField("previous_response_id"):
        return _invalid("conversation", "conversation and previous_response_id exclude each other.")
    return None


def _check_available(create: Create) -> Rejection | None:
    if create.background and create.HasField("store") and not create.store:
        return _invalid(
            "store",
            "A background response is found by its id only, so it must be stored: "
            "leave store out or set it to true.",
        )
    lineage = check_lineage(create)
    if lineage is not None:
        return lineage
    if has(create, "multi_agent"):
        return _unsupported("multi_agent", "This server does not run several agents in one turn.")
    if not create.model:
        return _missing("model", "Missing required parameter: 'model'.")
    return None


def _check_context_management(create: Create) -> Rejection | None:
    for index, entry in enumerate(create.context_management):
        path = f"context_management[{index}]"
        if entry.type != "compaction":
            return _invalid(f"{path}.type", f"{quoted(entry.type)} is not 'compaction'.")
        threshold = number(entry, "compact_threshold")
        if threshold is not None and threshold < MIN_COMPACT_THRESHOLD:
            return _invalid(
                f"{path}.compact_threshold",
                f"compact_threshold must be at least {MIN_COMPACT_THRESHOLD}.",
            )
    return None


def _check_ranges(create: Create) -> Rejection | None:
    for name, low, high in _RANGES:
        value = number(create, name)
        if value is None:
            continue
        if not low <= value <= high:  # also refuses NaN
            bound = f"from {low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
            return _invalid(name, f"{name} must be {bound}.")
    return None


def _check_words(create: Create) -> Rejection | None:
    for owner, name, known in _WORDS:
        message = getattr(create, owner) if owner else create
        if has(message, name):
            value = getattr(message, name)
            if value not in known:
                return _unknown_word(f"{owner}.{name}" if owner else name, value, known)
    for index, value in enumerate(create.include):
        if value not in _INCLUDES:
            return _unknown_word(f"include[{index}]", value, _INCLUDES)
    return None


def _unknown_word(path: str, value: str, known: frozenset[str]) -> Rejection:
    return _invalid(path, f"{quoted(value)} is not one of {', '.join(sorted(known))}.")


def check_metadata(metadata: Mapping[str, str]) -> Rejection | None:
    """Check the pairs of a create or of a conversation."""
    if len(metadata) > 16:
        return _invalid("metadata", "metadata may have at most 16 pairs.")
    for key in metadata:  # protobuf's `items()` takes thrice as long
        if len(key) > 64:
            return _invalid("metadata", "Keys of metadata may have at most 64 characters.")
        if len(metadata[key]) > 512:
            return _invalid(
                f"metadata.{key}", "Values of metadata may have at most 512 characters."
            )
    return None


def _check_format(create: Create) -> Rejection | None:
    arm = create.text.format.WhichOneof("format")
    if arm is None and create.text.HasField("format"):
        return _missing("text.format.type", "A format needs a type.")
    if arm != "json_schema":
        return None
    schema = create.text.format.json_schema
    if not _FORMAT_NAME.fullmatch(schema.name):
        return _invalid("text.format.name", "name must be 1 to 64 letters, digits, '_' and '-'.")
    if not is_json_object(schema.schema):
        return _invalid("text.format.schema", "schema must be a JSON Schema object.")
    return None


def _refused(reason: error_pb2.ErrorReason.ValueType) -> Callable[[str, str], Rejection]:
    def make(path: str, message: str) -> Rejection:
        return Rejection(reason, message, param=path)

    return make


_invalid = _refused(error_pb2.ERROR_REASON_INVALID_VALUE)
_missing = _refused(error_pb2.ERROR_REASON_MISSING_REQUIRED_PARAMETER)
_unsupported = _refused(error_pb2.ERROR_REASON_UNSUPPORTED_PARAMETER)
