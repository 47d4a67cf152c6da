"""The ledger port: usage records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Ledger", "UsageRecord"]


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """What one response used; the key is the response id."""

    response_id: str
    tenant: str
    model: str
    status: str
    """Public status of the response: completed, incomplete, failed or cancelled."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    created_at: int


class Ledger(Protocol):
    """Keeps usage: a record opens during prefill and closes after the terminal event."""

    def open(self, response_id: str, tenant: str, model: str, created_at: int) -> None:
        """Note that the response runs. Never blocks."""
        ...

    async def close_record(self, record: UsageRecord) -> None:
        """Close the response's record; closing twice counts once."""
        ...
