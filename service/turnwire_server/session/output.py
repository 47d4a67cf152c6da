"""What a model said, piece by piece: the values between an output parser and the assembler.

A parser (one per turn, made by a renderer) reads token ids and yields these pieces; the
event assembler turns them into server events. The order is the model's own. An item is
open from its first piece until a piece of another kind, its end piece, or the end of output.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CallDelta", "CallEnded", "CallStarted", "OutputPiece", "ReasoningDelta", "TextDelta"]


@dataclass(slots=True)  # not frozen: made per token, and that takes twice as long
class TextDelta:
    """More text of the current message item (opened if none is open). Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More raw reasoning text of the current reasoning item. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The model began to call a tool; what was open before is done."""

    name: str
    """Name of the tool as the client gave it, without its namespace."""
    namespace: str | None = None
    """The namespace that holds the tool, None for a top-level tool."""
    custom: bool = False
    """Whether it is a custom tool: deltas are free-form `input`, not JSON `arguments`."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of the open call's `arguments` (JSON text) or `input` (free-form). Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The open call is complete. Without it, the call was cut and ends `incomplete`."""


OutputPiece = TextDelta | ReasoningDelta | CallStarted | CallDelta | CallEnded
