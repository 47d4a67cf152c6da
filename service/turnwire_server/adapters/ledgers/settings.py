"""Settings of the usage ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["UsageSettings"]


@dataclass(frozen=True, slots=True)
class UsageSettings:
    """Bounds of the ledger, and where closed records are exported to."""

    journal_bytes: int = 1 << 20
    """Size from which on the journal is rewritten without what is closed."""
    gather_s: float = 1.0
    """How long closed records wait for others, to be moved into the database together."""
    export_file: Path | None = None
    """Closed records are appended to it as JSON lines; None for none."""
    webhook_url: str | None = None
    """Closed records are posted to it; None for none."""
    webhook_secret: str | None = field(default=None, repr=False)
    """Signs what is posted; `whsec_` and base64, or text of 24 characters at least."""
    webhook_timeout_s: float = 10.0
    """How long a post may take."""
    export_gather_s: float = 1.0
    """How long new records wait for others, to be exported together."""
    export_attempts: int = 20
    """Failed attempts of a record after which the log says so; it is tried further."""
    export_delay_s: float = 1.0
    """Longest wait behind the first failed attempt; it doubles with each, and is jittered."""
    export_longest_delay_s: float = 3600.0
    """Bound of that wait."""
