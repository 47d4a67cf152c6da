"""Time, injected so that tests own it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "Timer"]


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Let it not happen. Idempotent, also when it has happened."""
        ...


class Clock(Protocol):
    """Source of time for everything above the session, which takes times as arguments."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start, never going back."""
        ...

    def wall(self) -> int:
        """Return whole seconds since the Unix epoch, for `created_at` and `completed_at`."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`; cancelling is safe."""
        ...

    def timers(
        self, loop: asyncio.AbstractEventLoop
    ) -> Callable[[float, Callable[[], object]], Timer]:
        """Return what calls back on the running `loop`: told in how many seconds, and what.

        For waits per token, so its caller keeps it.
        """
        ...
