"""The lines of a journal, and what they add up to.

Each line is a JSON array. Its first member says what it is:

    ["j", version, database]                                         the first line
    ["o", id, tenant, model, created_at]                             the response runs
    ["p", id, tenant, model, created_at, input, cached, output, reasoning]
                                                                     what it used until now
    ["s", id, tenant, model, created_at, input, cached, output, reasoning, status, closed_at]
                                                                     it is over
    ["c", id, …]                                                     the database has them

No beginning of an array is an array, so a line that was cut off is told from a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final, TypeAlias

import orjson

from turnwire_server.ports.ledger import INTERRUPTED, UsageRecord

__all__ = [
    "JournalState",
    "closed_line",
    "header_line",
    "open_line",
    "progress_line",
    "read_lines",
    "settled_line",
]

_VERSION: Final = 1

_OF_EACH: Final = (
    *("response_id", "tenant", "model", "created_at"),
    *("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"),
)
"""Members that every line of usage has."""
_Members: TypeAlias = Callable[[UsageRecord], tuple[str | int, ...]]
_PROGRESS: Final[_Members] = attrgetter(*_OF_EACH)
_SETTLED: Final[_Members] = attrgetter(*_OF_EACH, "status", "closed_at")


def header_line(database: str) -> bytes:
    """Return the first line of every journal.

    Args:
        database: Where its records go: processes with another database leave it alone.
    """
    return _line("j", _VERSION, database)


def open_line(response_id: str, tenant: str, model: str, created_at: int) -> bytes:
    """Return the line of a response that runs."""
    return _line("o", response_id, tenant, model, created_at)


def progress_line(record: UsageRecord) -> bytes:
    """Return the line of a response that told its client what it used until now."""
    return _line("p", *_PROGRESS(record))


def settled_line(record: UsageRecord) -> bytes:
    """Return the line of a response that is over."""
    return _line("s", *_SETTLED(record))


def closed_line(response_ids: Iterable[str]) -> bytes:
    """Return the line of responses that the database has."""
    return _line("c", *response_ids)


def _line(*members: str | int) -> bytes:
    return orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE)


@dataclass(slots=True)
class JournalState:
    """What the lines of a journal add up to."""

    open: dict[str, UsageRecord] = field(default_factory=dict)
    """Response id -> what responses that run told their clients until now."""
    settled: dict[str, UsageRecord] = field(default_factory=dict)
    """Response id -> record of responses that are over and that the database may not have."""
    bad_lines: int = 0
    """Lines that could not be read; that a process died while it wrote the last one is usual."""
    version: int = 0
    """Of the journal's form; 0 when its first line is missing."""
    database: str = ""
    """Where its records go."""

    @property
    def is_known(self) -> bool:
        """Whether the journal is of a form that this server knows."""
        return self.version == _VERSION

    def records(self, now: int, endings: Mapping[str, str]) -> list[UsageRecord]:
        """Return what is to be closed when the journal's process is dead.

        What ran was interrupted, and used what its client was told. What was stored right before
        the process died is over, as everybody sees who fetches it; what it used was noted before.

        Args:
            now: Unix seconds.
            endings: Response id -> status of those open ones that are stored and over.
        """
        cut_off = (
            replace(record, status=endings.get(response_id, INTERRUPTED), closed_at=now)
            for response_id, record in self.open.items()
        )
        return [*self.settled.values(), *cut_off]

    def lines(self) -> bytes:
        """Return the shortest journal that adds up to this."""
        lines = [header_line(self.database)]
        for record in self.open.values():
            lines.append(
                open_line(record.response_id, record.tenant, record.model, record.created_at)
            )
            if record.input_tokens or record.output_tokens:
                lines.append(progress_line(record))
        lines += map(settled_line, self.settled.values())
        return b"".join(lines)

    # One line each.

    def add_open(self, response_id: str, tenant: str, model: str, created_at: int) -> None:
        """Take a response that runs."""
        record = UsageRecord(response_id, tenant, model, INTERRUPTED, 0, 0, 0, 0, created_at, 0)
        self.open[response_id] = record

    def add_progress(self, record: UsageRecord) -> None:
        """Take what an open response used until now."""
        self.open[record.response_id] = record

    def add_settled(self, record: UsageRecord) -> None:
        """Take a response that is over; the first record of it counts."""
        self.open.pop(record.response_id, None)
        self.settled.setdefault(record.response_id, record)

    def add_closed(self, response_ids: Iterable[str]) -> None:
        """Take responses that the database has."""
        for response_id in response_ids:
            self.open.pop(response_id, None)
            self.settled.pop(response_id, None)


def read_lines(content: bytes) -> JournalState:
    """Return what a journal adds up to; lines that cannot be read are counted and skipped."""
    state = JournalState()
    for line in content.split(b"\n"):
        if line and not _read(line, state):
            state.bad_lines += 1
    return state


def _read(line: bytes, state: JournalState) -> bool:
    try:
        members = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    match members:
        case ["j", int(version), str(database)]:
            state.version, state.database = version, database
        case ["o", str(response_id), str(tenant), str(model), int(created_at)]:
            state.add_open(response_id, tenant, model, created_at)
        case ["p", str(), str(), str(), int(), int(), int(), int(), int()]:
            state.add_progress(_record(members[1:], INTERRUPTED, 0))
        case ["s", str(), str(), str(), int(), int(), int(), int(), int(), str(), int()]:
            state.add_settled(_record(members[1:9], members[9], members[10]))
        case ["c", *response_ids]:
            state.add_closed(map(str, response_ids))
        case _:
            return False
    return True


def _record(numbers: list[str | int], status: str, closed_at: int) -> UsageRecord:
    response_id, tenant, model, created_at, input_, cached, output, reasoning = numbers
    return UsageRecord(
        response_id=str(response_id),
        tenant=str(tenant),
        model=str(model),
        status=status,
        input_tokens=int(input_),
        cached_tokens=int(cached),
        output_tokens=int(output),
        reasoning_tokens=int(reasoning),
        created_at=int(created_at),
        closed_at=closed_at,
    )
