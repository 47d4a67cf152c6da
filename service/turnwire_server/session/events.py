"""What leaves a session: server events as messages, and deltas as small neutral values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from turnwire.v1.server_event_pb2 import ServerEvent

__all__ = ["TERMINAL_ARMS", "Delta", "DeltaKind", "Outgoing", "Part"]

DeltaKind = Literal[
    "response_output_text_delta",
    "response_reasoning_text_delta",
    "response_reasoning_summary_text_delta",
    "response_function_call_arguments_delta",
    "response_custom_tool_call_input_delta",
    "response_refusal_delta",
]

TERMINAL_ARMS = frozenset({"response_completed", "response_incomplete", "response_failed", "error"})
"""Arms that end a turn: nothing of the turn follows them."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Where deltas go. One object per open part, so that encoders can key templates by it."""

    kind: DeltaKind
    item_id: str
    output_index: int
    index: int
    """`content_index` or `summary_index`; 0 and unused for calls."""
    stream_id: str | None


@dataclass(slots=True)  # not frozen: made per token, and that takes twice as long
class Delta:
    """More text of a part: the one thing that happens per token."""

    part: Part
    sequence_number: int
    text: str


Outgoing = ServerEvent | Delta
"""One event, in the form in which it waits for its wire."""
