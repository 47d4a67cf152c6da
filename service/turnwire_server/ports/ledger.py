"""The ledger port: what each response used, counted once, through any crash.

A response's record is opened when its generation begins, settled right before its last event
leaves, and closed in after work. What is open or settled survives the process; whoever starts next
closes it. So a client that saw a response's usage finds the same numbers in the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["INTERRUPTED", "Ledger", "LedgerFailure", "UsageRecord"]

INTERRUPTED = "interrupted"
"""Status of a response whose server process died before it was settled."""


class LedgerFailure(Exception):
    """Usage cannot be kept. `str()` is a sentence for the operator, without secrets."""


@dataclass(slots=True)  # not frozen: two are made per turn, and that takes thrice as long
class UsageRecord:
    """What one response used; the key is the response id. Names and numbers, never content."""

    response_id: str
    tenant: str
    model: str
    status: str
    """Public status of the response: completed, incomplete, failed or cancelled; or
    `interrupted`."""
    input_tokens: int
    cached_tokens: int
    """Of the input, what the engine had cached."""
    output_tokens: int
    reasoning_tokens: int
    """Of the output, what was reasoning."""
    created_at: int
    """Unix seconds when the response began."""
    closed_at: int
    """Unix seconds when it was over."""


class Ledger(Protocol):
    """Keeps usage.

    `open`, `progress` and `settle` are called inside a turn: they never wait and never raise. What
    they cannot write down is an error line in the log and a metric.
    """

    async def start(self) -> None:
        """Close what dead processes left behind; called before the server takes work.

        Raises:
            LedgerFailure: It cannot be closed.
        """
        ...

    def open(self, response_id: str, tenant: str, model: str, created_at: int) -> None:
        """Note that the response runs."""
        ...

    def progress(self, record: UsageRecord) -> None:
        """Note what an open response used until now, right before its client is told so."""
        ...

    def settle(self, record: UsageRecord) -> None:
        """Note what the response used, once, right before its terminal event is sent."""
        ...

    def close_record(self, record: UsageRecord) -> None:
        """See that the settled response's record is closed, at the latest when the ledger is.

        It waits for nothing. Closing twice counts once.
        """
        ...

    def dead_owners(self) -> Sequence[str]:
        """Return the ids of the dead server processes that `start` found.

        What they own besides usage, such as background responses, will never be finished.
        """
        ...

    def forget_dead(self) -> None:
        """Note that all of the dead processes was cleared up; else the next start finds them."""
        ...

    async def close(self) -> None:
        """Close what was settled and give everything back; no turn runs any more. Idempotent."""
        ...
