"""The metrics port: what is counted, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

__all__ = [
    "AuditOutcome",
    "CountsRestarts",
    "CountsUsage",
    "ExportLevels",
    "Exposition",
    "Levels",
    "Metrics",
    "TurnFacts",
    "UsageLevels",
]

AuditOutcome = Literal["same", "mismatch", "exempt", "skipped", "failed"]
"""`exempt`: the renderer does not promise what an audit checks; `skipped`: too many waited;
`failed`: the audit itself broke."""


@dataclass(slots=True)  # not frozen: made per turn, and that takes thrice as long
class TurnFacts:
    """One turn that is over. Names only, never content."""

    model: str
    """Name of the served model, "" when the turn was refused before there was one."""
    status: str
    """Public status of the response; `refused` without one, `abandoned` without an end."""
    transport: str
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    rendered_tokens: int = 0
    """Tokens that the turn tokenized."""
    rerender_reason: str = ""
    """Why that was more than what is new, "" if it was not."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Stage -> seconds."""


@dataclass(frozen=True, slots=True)
class ExportLevels:
    """How the export of usage records to one sink goes."""

    sink: str
    backlog: int
    """Records that wait, as it was counted last; those that were given up are among them."""
    delivered: int
    """Records that were delivered since the start."""
    failures: int
    """Attempts that failed since the start."""


@dataclass(frozen=True, slots=True)
class UsageLevels:
    """How the usage ledger is."""

    open: int
    """Records of responses that run."""
    settled: int
    """Records of responses that are over, on their way into the database."""
    closed: Mapping[str, int]
    """Status -> records closed since the start, `interrupted` of dead processes among them."""
    journal_failures: int
    """Lines that could not be written to the journal since the start."""
    table_failures: int
    """Times that the database did not take records since the start."""
    exports: Mapping[str, ExportLevels]
    """Sink -> how its export goes."""


@dataclass(frozen=True, slots=True)
class Levels:
    """What is read off the server when its metrics are asked for."""

    connections: Mapping[str, int]
    """Transport -> open connections."""
    running: int
    """Turns that run."""
    queued: int
    """Creates that wait for their lane."""
    dropped: Mapping[str, int]
    """Reason -> stored responses that were forgotten since the start."""
    restarts: Mapping[str, int]
    """Model -> how often its engine was started again."""
    detached: int = 0
    """Sessions that have lost their connection and wait for another one."""
    tasks: int = 0
    """Tasks of the event loop: what is left of connections that are gone would show here."""
    usage: UsageLevels | None = None
    """The ledger, None for one that does not tell."""


@dataclass(frozen=True, slots=True)
class Exposition:
    """Metrics as a monitoring system reads them."""

    content_type: str
    body: bytes


class Metrics(Protocol):
    """Counts. Called on the event loop, once per turn at most: it must not block."""

    def turn_ended(self, facts: TurnFacts) -> None:
        """Count a turn."""
        ...

    def audited(self, model: str, outcome: AuditOutcome) -> None:
        """Count an audit of a prompt."""
        ...

    def exposition(self, levels: Levels) -> Exposition:
        """Return everything, with the levels of this moment."""
        ...


@runtime_checkable
class CountsRestarts(Protocol):
    """An engine that may be started again while the server lives."""

    @property
    def restarts(self) -> int:
        """How often it was."""
        ...


@runtime_checkable
class CountsUsage(Protocol):
    """A ledger that knows how it is."""

    def usage_levels(self) -> UsageLevels:
        """Return that."""
        ...
