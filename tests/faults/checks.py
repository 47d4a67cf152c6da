"""What must hold after a seed, however things broke. Pure: data in, sentences about faults out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from faults.seen import Seen

__all__ = ["TOOL_CALLS", "Kept", "Record", "check"]

TOOL_CALLS = 3
"""Calls of one run."""

_SETTLED = ("completed", "incomplete", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Kept:
    """A stored response, as it was fetched afterwards."""

    status: str
    usage: tuple[int, int, int]
    """Input, cached and output tokens."""
    text: str


@dataclass(frozen=True, slots=True)
class Record:
    """A row of the usage ledger."""

    status: str
    usage: tuple[int, int, int]


def check(
    seen: Sequence[Seen],
    planned_runs: Mapping[str, int],
    kept: Mapping[str, Kept],
    ledger: Mapping[str, Record],
    open_records: int,
) -> list[str]:
    """Return what is wrong, one sentence each; nothing when all is well.

    Args:
        seen: What each agent saw.
        planned_runs: Agent -> runs that it had to do.
        kept: What the server returned for the stored responses that were seen to end.
        ledger: Response id -> record, once the server is down.
        open_records: Records that are still open then.
    """
    problems = []
    for each in seen:
        problems += [f"{each.agent}: {problem}" for problem in _events(each)]
        problems += [f"{each.agent}: {problem}" for problem in _tools(each)]
        problems += [f"{each.agent}: {problem}" for problem in _stored(each, kept)]
        problems += [f"{each.agent}: {problem}" for problem in _billed(each, ledger)]
        if len(each.finished) != planned_runs[each.agent]:
            problems.append(f"{each.agent}: {len(each.finished)} runs came to their end")
    if open_records:
        problems.append(f"the ledger: {open_records} records are still open")
    problems += [f"the ledger: {problem}" for problem in _explained(seen, ledger)]
    return problems


def _events(seen: Seen) -> Iterator[str]:
    for response in seen.responses.values():
        if response.numbers != list(range(len(response.numbers))):
            yield f"{response.id} has events out of order, twice or missing: {response.numbers}"


def _tools(seen: Seen) -> Iterator[str]:
    for call_id, times in seen.executed.items():
        if times != 1:
            yield f"the tool of {call_id} ran {times} times"
    answered: Counter[str] = Counter()
    for _, calls in seen.finished:
        if len(calls) != TOOL_CALLS:
            yield f"a run made {len(calls)} calls"
        answered.update(calls)
    for call_id, times in answered.items():
        if times != 1:
            yield f"{call_id} is part of {times} runs"
        if call_id not in seen.executed:
            yield f"{call_id} was answered and no tool ran"
    if not seen.losses and set(seen.executed) != set(answered):
        yield "a tool ran for a call of no run, though none was lost"


def _stored(seen: Seen, kept: Mapping[str, Kept]) -> Iterator[str]:
    for response in seen.responses.values():
        if not response.store or response.status not in ("completed", "incomplete", "cancelled"):
            continue
        found = kept.get(response.id)
        if found is None:
            yield f"{response.id} was seen to end and is not stored"
        elif found != Kept(response.status, response.usage, response.text):
            yield f"{response.id} is stored as something else than was seen"


def _billed(seen: Seen, ledger: Mapping[str, Record]) -> Iterator[str]:
    for response in seen.responses.values():
        record = ledger.get(response.id)
        if not response.status:
            if record is None:
                yield f"{response.id} began and is not in the ledger"
            continue
        if record is None:
            yield f"{response.id} was seen to end and is not in the ledger"
        elif record != Record(response.status, response.usage):
            yield f"{response.id} is in the ledger as {record}, seen: {response}"


def _explained(seen: Sequence[Seen], ledger: Mapping[str, Record]) -> Iterator[str]:
    """Yield records that no client knows, though nobody lost anything."""
    known = {response_id for each in seen for response_id in each.responses}
    for response_id, record in ledger.items():
        if record.status not in (*_SETTLED, "interrupted"):
            yield f"{response_id} has the status {record.status!r}"
        if response_id not in known and record.status == "completed" and record.usage[2] == 0:
            yield f"{response_id} was completed without output, and nobody saw it"
