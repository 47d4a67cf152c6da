"""Waiting until something changes."""

from __future__ import annotations

import asyncio

__all__ = ["News"]


class News:
    """Wakes who waits for a change of some state, which each then looks at for itself.

    As an `asyncio.Event` that is cleared before each wait, at a third of its price: a turn waits
    once per token.
    """

    __slots__ = ("_loop", "waiters")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.waiters: list[asyncio.Future[None]] = []
        """Empty when nobody need be told."""

    def tell(self) -> None:
        """Wake all that wait now."""
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        """Return what is to be awaited until told. Cancelling is safe."""
        if self.waiters:  # Of those that were cancelled, none but the newest is kept.
            self.waiters = [waiter for waiter in self.waiters if not waiter.done()]
        waiter = self._loop.create_future()
        self.waiters.append(waiter)
        return waiter
