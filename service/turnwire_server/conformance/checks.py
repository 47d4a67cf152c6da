"""What a check is, and what comes of it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from turnwire_server.conformance.context import Context

__all__ = [
    "EVERY_TRANSPORT",
    "HTTP",
    "PERSISTENT",
    "STREAMING",
    "Check",
    "Collector",
    "Failure",
    "Json",
    "Outcome",
    "Profile",
    "Result",
    "Skip",
    "Transport",
    "bounded",
]

Json: TypeAlias = dict[str, Any]
"""A JSON object as a parser returned it."""

Transport = Literal["http", "sse", "websocket", "grpc"]
Profile = Literal["turnwire", "openresponses"]
Outcome = Literal["pass", "fail", "skipped"]

EVERY_TRANSPORT: Final[tuple[Transport, ...]] = ("http", "sse", "websocket", "grpc")
STREAMING: Final[tuple[Transport, ...]] = ("sse", "websocket", "grpc")
PERSISTENT: Final[tuple[Transport, ...]] = ("websocket", "grpc")
HTTP: Final[tuple[Transport, ...]] = ("http",)
_BOTH: Final[tuple[Profile, ...]] = ("turnwire", "openresponses")

_MAX_CHARS: Final = 400
"""Most characters of an event or a value that a report shows."""


class Failure(Exception):
    """The server does not do what the check asks for. `str()` is the precise reason."""

    def __init__(self, reason: str, event: object = None) -> None:
        super().__init__(reason)
        self.event = event


class Skip(Exception):
    """The check cannot be made on this server. `str()` says why."""


Scenario = Callable[["Context"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a server must do."""

    id: str
    source: str
    """Section of the protocol, see `docs/conformance.md`."""
    sentence: str
    transports: tuple[Transport, ...] = EVERY_TRANSPORT
    profiles: tuple[Profile, ...] = _BOTH
    run: Scenario | None = None
    """What to do with the server; None for a rule, which judges whatever arrives."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a check on a transport."""

    check: Check
    transport: Transport
    outcome: Outcome
    reason: str = ""
    """Why it failed or was skipped."""
    event: str | None = None
    """The event, frame or body at fault, cut to a bounded length."""
    seconds: float = 0.0

    def to_json(self) -> Json:
        """Return the result as a JSON object."""
        return {
            "id": self.check.id,
            "source": self.check.source,
            "sentence": self.check.sentence,
            "transport": self.transport,
            "outcome": self.outcome,
            "reason": self.reason,
            "event": self.event,
            "seconds": round(self.seconds, 4),
        }


class Collector:
    """Collects the scenarios of a module: a decorator with the check's text."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.checks: list[Check] = []

    def __call__(
        self,
        identifier: str,
        sentence: str,
        *,
        source: str | None = None,
        transports: tuple[Transport, ...] = EVERY_TRANSPORT,
        profiles: tuple[Profile, ...] = _BOTH,
    ) -> Callable[[Scenario], Scenario]:
        """Return the decorator of one scenario.

        Args:
            identifier: The check's id.
            sentence: What the server does when it is right.
            source: Section of the protocol, that of the collector when None.
            transports: Where it is run.
            profiles: Which profiles have it.
        """

        def collect(run: Scenario) -> Scenario:
            check = Check(identifier, source or self._source, sentence, transports, profiles, run)
            self.checks.append(check)
            return run

        return collect


def bounded(value: object) -> str:
    """Return JSON of `value` for a report, cut to a bounded length and without control bytes."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"
