"""Usage records, and parts of a ledger that tests hold back or break."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnwire_server.adapters.ledgers.memory import MemoryLedger
from turnwire_server.ports.ledger import LedgerFailure, UsageRecord

__all__ = ["HeldTable", "StrictLedger", "totals", "usage_record"]


def usage_record(response_id: str, **members: Any) -> UsageRecord:
    """Return a record with plausible numbers; `members` are others."""
    given: dict[str, Any] = {
        "tenant": "default",
        "model": "sim",
        "status": "completed",
        "input_tokens": 100,
        "cached_tokens": 40,
        "output_tokens": 20,
        "reasoning_tokens": 5,
        "created_at": 1_800_000_000,
        "closed_at": 1_800_000_002,
        **members,
    }
    return UsageRecord(response_id, **given)


def totals(records: Iterable[UsageRecord]) -> tuple[int, int, int, int]:
    """Return the sums of input, cached, output and reasoning tokens."""
    numbers = [
        (each.input_tokens, each.cached_tokens, each.output_tokens, each.reasoning_tokens)
        for each in records
    ]
    first, second, third, fourth = zip(*numbers, strict=True) if numbers else ((), (), (), ())
    return sum(first), sum(second), sum(third), sum(fourth)


class HeldTable:
    """A table of records in memory that is slow or broken as a test wants it."""

    def __init__(self) -> None:
        """Make one that takes everything at once."""
        self.records: dict[str, UsageRecord] = {}
        self.batches: list[int] = []
        """How many records each call brought."""
        self.ready = asyncio.Event()
        """Cleared to hold back whoever brings records."""
        self.ready.set()
        self.asked = asyncio.Event()
        """Set when somebody has come."""
        self.failures = 0
        """How many of the next calls fail."""
        self.stored: dict[str, str] = {}
        """Response id -> status of responses that the store has, and that are over."""

    async def endings(self, response_ids: Sequence[str]) -> Mapping[str, str]:
        """Return id -> status of those of the responses that are stored and over."""
        return {each: self.stored[each] for each in response_ids if each in self.stored}

    async def put(self, records: Sequence[UsageRecord]) -> None:
        """Keep records; the first of an id counts."""
        self.asked.set()
        await self.ready.wait()
        if self.failures:
            self.failures -= 1
            raise LedgerFailure("The table is out of order.")
        self.batches.append(len(records))
        for record in records:
            self.records.setdefault(record.response_id, record)


class StrictLedger(MemoryLedger):
    """A ledger that remembers everything it was told, in order."""

    def __init__(self) -> None:
        """Make one that was told nothing."""
        super().__init__()
        self.told: list[tuple[str, str]] = []
        """What, and the response id."""

    def open(self, response_id: str, tenant: str, model: str, created_at: int) -> None:
        """Note that the response runs."""
        self.told.append(("open", response_id))
        super().open(response_id, tenant, model, created_at)

    def progress(self, record: UsageRecord) -> None:
        """Note what it used until now."""
        self.told.append(("progress", record.response_id))
        super().progress(record)

    def settle(self, record: UsageRecord) -> None:
        """Note what it used."""
        self.told.append(("settle", record.response_id))
        super().settle(record)

    def close_record(self, record: UsageRecord) -> None:
        """Close it."""
        self.told.append(("close", record.response_id))
        super().close_record(record)
