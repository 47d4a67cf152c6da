"""What a server opens before anything else and closes last: a database, for example."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Resource"]


class Resource(Protocol):
    """Something that other parts are built on."""

    async def start(self) -> None:
        """Open it; called once, before the parts that use it are started."""
        ...

    async def close(self) -> None:
        """Give it back, after those parts were closed. Idempotent, also without a start."""
        ...
