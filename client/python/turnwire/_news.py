"""Waiting until something changes."""

from __future__ import annotations

import asyncio

__all__ = ["News"]


class News:
    """Wakes who waits for a change of some state, which each then looks at for itself.

    As an `asyncio.Event` that is cleared before each wait, at a third of its price: a turn waits
    once per token.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        """Wake all that wait now."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until told. Cancelling is safe."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            raise
