"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

__all__ = ["ManualClock"]


class ManualTimer:
    """Implements `ports.Timer`."""

    def __init__(
        self, due_at: Callable[[float], asyncio.Future[None]], callback: Callable[[], object]
    ) -> None:
        self._due_at, self._callback = due_at, callback
        self._due: asyncio.Future[None] | None = None

    def start(self, due: float) -> None:
        """Call back at `due`."""
        self.cancel()
        self._due = self._due_at(due)
        self._due.add_done_callback(self._call)

    def cancel(self) -> None:
        """Let it not happen."""
        due, self._due = self._due, None
        if due is not None:
            due.cancel()

    def _call(self, due: asyncio.Future[None]) -> None:
        if due is self._due:
            self._due = None
            self._callback()


class ManualClock:
    """Implements `ports.Clock`. Time passes in `advance` and `run_for` only."""

    def __init__(self, *, monotonic: float = 1_000.0, wall: int = 1_800_000_000) -> None:
        """Start at these times."""
        self._started = monotonic
        self._now = monotonic
        self._wall = wall
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._arrivals: list[asyncio.Future[None]] = []

    def monotonic(self) -> float:
        """Return the present time in seconds."""
        return self._now

    def wall(self) -> int:
        """Return the present time in whole seconds since the epoch."""
        return self._wall + int(self._now - self._started)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was moved by `seconds`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        await self._due_at(self._now + seconds)

    def timer(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> ManualTimer:
        """Return what calls back once the clock was moved."""
        del loop  # it is the running one
        return ManualTimer(self._due_at, callback)

    def _due_at(self, due: float) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        if due <= self._now:
            future.set_result(None)
            return future
        heapq.heappush(self._sleepers, (due, next(self._numbers), future))
        for arrival in self._arrivals:
            if not arrival.done():
                arrival.set_result(None)
        self._arrivals.clear()
        return future

    @property
    def sleepers(self) -> int:
        """How many sleeps are going on."""
        return sum(not future.done() for _, _, future in self._sleepers)

    def advance(self, seconds: float) -> None:
        """Move on at once: whoever slept through it wakes late, and sees the new time."""
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

    async def run_for(self, seconds: float) -> None:
        """Move on from sleeper to sleeper: each one wakes on time and may sleep again."""
        end = self._now + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.advance(max(0.0, self._sleepers[0][0] - self._now))
            await self._settle()
        self.advance(max(0.0, end - self._now))
        await self._settle()

    async def until_sleeping(self, count: int = 1) -> None:
        """Wait until `count` sleeps are going on.

        Raises:
            TimeoutError: they were not within 5 seconds of real time.
        """
        async with asyncio.timeout(20):
            while self.sleepers < count:
                arrival = asyncio.get_running_loop().create_future()
                self._arrivals.append(arrival)
                await arrival

    async def _settle(self) -> None:
        """Let everything that is ready run, a few rounds deep."""
        for _ in range(20):
            await asyncio.sleep(0)
