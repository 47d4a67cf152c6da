"""Time, injected so that tests own it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock"]


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
