"""What one turn and one conversation cost, as they were measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Conversation", "EventSize", "TurnSample"]

EventSize = tuple[bool, int]
"""Whether an event is a delta, and its bytes on the wire without framing."""


@dataclass(slots=True)
class TurnSample:
    """One turn, as the client saw it."""

    total_s: float
    """From the call in the client to the terminal event, or to the pause of a rollout."""
    ttft_s: float | None
    """To the first delta."""
    output_tokens: int
    """Tokens that the engine generated."""
    input_tokens: int = 0
    """Tokens of the prompt."""
    rendered_tokens: int | None = None
    """Tokens that the server tokenized for the turn."""
    bytes_up: int = 0
    """Payload of the request, as far as the client library tells."""
    stages_ms: dict[str, float] = field(default_factory=dict)
    """The server's own times by stage; empty where it does not tell."""
    call_ids: list[str] = field(default_factory=list)
    events: list[EventSize] = field(default_factory=list)
    """Only when asked for."""


@dataclass(slots=True)
class Conversation:
    """All turns of one repetition of a row."""

    turns: list[TurnSample]
    e2e_s: float
    """From connecting to the last terminal event."""
    client_cpu_s: float
    bytes_up: int | None = None
    """On the wire, in all; None where it cannot be counted."""
    bytes_down: int | None = None
    run_stages_ms: dict[str, float] = field(default_factory=dict)
    """Of rollouts: the server's times by stage, all rounds added up."""
    server_cpu_s: float | None = None
    """Filled in by the process that started the server."""

    def to_json(self) -> dict[str, Any]:
        """Return everything, for another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Conversation:
        """Return what `to_json` gave."""
        turns = [TurnSample(**turn) for turn in value["turns"]]
        return cls(**{**value, "turns": turns})
