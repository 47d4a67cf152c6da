"""What goes through the bridge, free of any HTTP library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from turnwire.errors import TurnwireError

__all__ = ["Answer", "Exchange", "PhaseTimeoutError", "Stream", "Timeouts", "TransportStats"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounds of one exchange in seconds, None for none."""

    connect: float | None = None
    read: float | None = None
    """Longest time without anything to read."""
    pool: float | None = None
    """Longest time to wait for a session."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An HTTP request."""

    method: str
    path: str
    """As it was sent, percent-encoded."""
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Lower-case names."""
    body: bytes = field(default=b"", repr=False)
    timeouts: Timeouts = Timeouts()


class Stream(Protocol):
    """A body that is made while it is read."""

    async def next_chunk(self) -> bytes:
        """Wait for more; empty at the end. Raises `TurnwireError` when it breaks off."""

    async def aclose(self) -> None:
        """Let go of it; ends what makes it. Idempotent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes | Stream
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransportStats:
    """What a transport has done so far."""

    turns: int = 0
    """Creates that were sent; a fallback sends one more."""
    continued: int = 0
    """Of these, those that continued what a session held and brought only the rest."""
    forks: int = 0
    """Of these, those that ran on a lane of their own beside another turn of the session."""
    fallbacks: int = 0
    """Creates sent again in full, because the session held less than was thought."""
    items_given: int = 0
    """Items that the requests brought."""
    items_sent: int = 0
    """Items that went over the wire."""
    sessions_opened: int = 0
    sessions: int = 0
    """Sessions that are open now."""
    bytes_up: int = 0
    """Payload bytes sent over all sessions, those closed included."""
    bytes_down: int = 0


class PhaseTimeoutError(TurnwireError, TimeoutError):
    """A bound of the exchange passed."""

    def __init__(self, phase: Literal["connect", "read", "pool"], message: str) -> None:
        super().__init__(message)
        self.phase = phase
