"""Settings of the database."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["DATABASE_FILE", "DatabaseSettings"]

DATABASE_FILE: Final = "turnwire.db"
"""Name of the SQLite file in the data directory."""


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """Which database, and how it is used."""

    url: str | None = field(default=None, repr=False)
    """`sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST:PORT/NAME`; None for the SQLite file
    `default_file`; `memory` or empty for no database: what is kept ends with the process."""
    default_file: Path | None = None
    """The SQLite file without a `url`."""
    pool_size: int = 5
    """Connections to the database that are kept open."""
    cache_bytes: int = 256 << 20
    """Bytes of recent responses that are kept in memory in front of the database."""
    verify_s: float = 5.0
    """How long a response of the cache is believed to be there still: after that long a process
    notices that another one has deleted it."""
    prune_interval_s: float = 600.0
    """How often what has expired is removed."""
    heartbeat_s: float = 10.0
    """How often a process says that it lives, and looks which others do: one that was not heard of
    for six looks is dead, and what it ran has failed."""
    lock_timeout_s: float = 10.0
    """How long to wait for a SQLite file that another process writes."""

    @property
    def is_memory(self) -> bool:
        """Whether there is no database."""
        return self.url in ("", "memory")
