"""A usage ledger in this process's memory: totals, and the newest records."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from turnwire_server.ports.ledger import UsageRecord

__all__ = ["MemoryLedger"]


class MemoryLedger:
    """`ports.Ledger` that lives and dies with the process."""

    def __init__(self, capacity: int = 10_000) -> None:
        """Make an empty ledger that keeps the newest `capacity` closed records."""
        self._capacity = capacity
        self.open_records: dict[str, str] = {}
        """Response id -> tenant of responses that run."""
        self.settled: dict[str, UsageRecord] = {}
        """Response id -> record of responses that are over and not closed yet."""
        self.closed: OrderedDict[str, UsageRecord] = OrderedDict()

    async def start(self) -> None:
        """There is nothing to begin with."""

    def open(self, response_id: str, tenant: str, model: str, created_at: int) -> None:
        """Note that the response runs."""
        del model, created_at
        self.open_records[response_id] = tenant

    def progress(self, record: UsageRecord) -> None:
        """Nothing survives this process, so only the end counts."""

    def settle(self, record: UsageRecord) -> None:
        """Note what the response used."""
        self.open_records.pop(record.response_id, None)
        self.settled[record.response_id] = record

    def close_record(self, record: UsageRecord) -> None:
        """Close the record; the second time changes nothing."""
        self.settled.pop(record.response_id, None)
        if record.response_id not in self.closed:
            self.closed[record.response_id] = record
            if len(self.closed) > self._capacity:
                self.closed.popitem(last=False)

    def dead_owners(self) -> Sequence[str]:
        """Return nobody: a process finds nothing of another one here."""
        return ()

    def forget_dead(self) -> None:
        """There is nothing to forget."""

    async def close(self) -> None:
        """There is nothing to give back."""
