"""A usage ledger in this process's memory: totals, and the newest records."""

from __future__ import annotations

from collections import OrderedDict

from turnwire_server.ports.ledger import UsageRecord

__all__ = ["MemoryLedger"]


class MemoryLedger:
    """`ports.Ledger` that lives and dies with the process."""

    def __init__(self, capacity: int = 10_000) -> None:
        """Make an empty ledger that keeps the newest `capacity` closed records."""
        self._capacity = capacity
        self.open_records: dict[str, str] = {}
        """Response id -> tenant of responses that run."""
        self.closed: OrderedDict[str, UsageRecord] = OrderedDict()

    def open(self, response_id: str, tenant: str, model: str, created_at: int) -> None:
        """Note that the response runs."""
        del model, created_at
        self.open_records[response_id] = tenant

    async def close_record(self, record: UsageRecord) -> None:
        """Close the record; the second time changes nothing."""
        self.open_records.pop(record.response_id, None)
        if record.response_id not in self.closed:
            self.closed[record.response_id] = record
            if len(self.closed) > self._capacity:
                self.closed.popitem(last=False)
