"""The system's clock."""

from __future__ import annotations

import asyncio
import time

__all__ = ["SystemClock"]


class SystemClock:
    """`ports.Clock` on the machine's clocks and the running event loop."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start."""
        return time.monotonic()

    def wall(self) -> int:
        """Return whole seconds since the Unix epoch."""
        return int(time.time())

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        await asyncio.sleep(seconds)
