"""What is done about a lost connection: settings, patience, and which losses are for good."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from turnwire._wire import Wire
from turnwire.errors import (
    ConnectionFailed,
    ConnectionLost,
    ProtocolViolation,
    ResponseRejected,
    Timeout,
    TurnwireError,
)

__all__ = [
    "Backoff",
    "Dial",
    "RecoverySettings",
    "Ticket",
    "is_announced",
    "may_pass",
    "unexpected",
]

Dial = Callable[[bool], Awaitable[Wire]]
"""Opens a wire; the argument says whether to ask for a session that can be resumed."""

# The server meant to end the session with the connection.
_ANNOUNCED_CLOSES = frozenset({1000, 1005})
_PASSING_STATUSES = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """How a session outlives its connection; `turnwire.connect` has the contract."""

    resume: bool = True
    reconnect_s: float = 60.0
    """0: a lost connection is not reopened."""
    transcript_bytes: int = 16 << 20
    ping_after_idle_s: float = 5.0
    ping_timeout_s: float = 2.0
    first_delay_s: float = 0.2
    """Bound on the wait before the first try; it doubles with each."""
    most_delay_s: float = 5.0
    """Bound on the wait before any try."""
    max_resends: int = 8
    """How often one turn may begin again: one that kills its server must end some time."""
    chance: Callable[[], float] = field(default=random.random, repr=False)
    """Returns a number from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What resumes a session."""

    session_id: str
    token: str = field(repr=False)
    """A secret: it gives access to the session."""
    grace_s: float
    """Seconds that the session outlives a lost connection."""


class Backoff:
    """How long to wait before each try, and until when to try at all.

    Each wait is chance between nothing and a bound that doubles: clients that were cut together do
    not come back together. Tries that belong to one trouble share it, also over several
    connections; `reset` ends the trouble.
    """

    def __init__(self, settings: RecoverySettings) -> None:
        self._settings = settings
        self._tries = 0
        self._until: float | None = None

    def begin(self, now: float) -> float:
        """Return the end of the patience, which begins with the trouble, on the loop's clock."""
        if self._until is None:
            self._until = now + self._settings.reconnect_s
        return self._until

    def delay(self, at_least_s: float | None = None) -> float:
        """Return the seconds to wait before the next try.

        Args:
            at_least_s: What the server asked for; it is added to, not replaced.
        """
        settings = self._settings
        bound = min(settings.most_delay_s, settings.first_delay_s * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return (at_least_s or 0.0) + bound * settings.chance()

    def reset(self) -> None:
        """Note that things go well again, or that this trouble is given up."""
        self._tries = 0
        self._until = None


def may_pass(error: TurnwireError) -> bool:
    """Return whether a new connection may do better than the one that ended with `error`."""
    match error:
        case ConnectionLost() | ResponseRejected():
            return error.retryable
        case ConnectionFailed():
            status = error.status
            return status is None or status >= 500 or status in _PASSING_STATUSES
        case _:
            return isinstance(error, Timeout)


def is_announced(error: TurnwireError) -> bool:
    """Return whether the server ended the session on purpose, so that it cannot be resumed."""
    return isinstance(error, ConnectionLost) and error.close_code in _ANNOUNCED_CLOSES


def unexpected(bug: Exception) -> TurnwireError:
    """Return what turns raise that wait for something which ended by an error nobody foresaw."""
    failure = ProtocolViolation("an event could not be handled")
    failure.__cause__ = bug
    return failure
