"""Time, injected so that tests own it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "Timer"]


class Timer(Protocol):
    """Calls back when it is due, as often as it is started."""

    def start(self, due: float) -> None:
        """Call back at `due`, in seconds of the clock, once, and never in this very call.

        If it was started before and that is not due yet, only the newest counts.
        """
        ...

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

    def timer(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> Timer:
        """Return what calls `callback` on the running `loop` whenever it was started and is due.

        For waits per token: it is made once, and started for each of them. It holds `callback`.
        """
        ...
