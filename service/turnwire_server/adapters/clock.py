"""The system's clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from turnwire_server.adapters.ticks import Ticks, TickTimer
from turnwire_server.ports.clock import Timer

__all__ = ["SystemClock"]


class SystemClock:
    """`ports.Clock` on the machine's clocks and the running event loop."""

    def __init__(self) -> None:
        """Make a clock."""
        self._ticks: Ticks | None = None

    # Called several times per token: without a frame of its own.
    monotonic = staticmethod(time.monotonic)
    """Return seconds since an arbitrary start."""

    def wall(self) -> int:
        """Return whole seconds since the Unix epoch."""
        return int(time.time())

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        await asyncio.sleep(seconds)

    def timer(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> Timer:
        """Return what calls back on `loop`, in the millisecond that is nearest."""
        if self._ticks is None or self._ticks.loop is not loop:
            self._ticks = Ticks(loop)
        return TickTimer(self._ticks, callback)
