"""Timers that share the loop's: one for each millisecond in which any of them is due.

An event loop's own timer costs it several objects and a place in a heap. Of thousands of tokens per
second many are due in the same millisecond, and no loop that waits for sockets is more exact.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

__all__ = ["TickTimer", "Ticks"]

_PER_SECOND: Final = 1_000
_NEVER: Final = 1_000_000_000 * _PER_SECOND
"""What is due later than any millisecond with a number."""
_HALF: Final = 0.5 / _PER_SECOND + 1e-6
"""Seconds: by so much a loop that rounds to milliseconds calls too early."""


class TickTimer:
    """A timer (`ports.Timer`): to start it makes no object, which counts once per token."""

    __slots__ = ("_ticks", "callback", "tick")

    def __init__(self, ticks: Ticks, callback: Callable[[], object]) -> None:
        """Make one of `ticks`, not started."""
        self._ticks = ticks
        self.callback = callback
        self.tick: dict[TickTimer, None] | None = None
        """All that are due together with it; None while it is not started."""

    def start(self, due: float) -> None:
        """Call back at `due` alone, give or take a millisecond, and never in this very call."""
        if self.tick is not None:
            self.cancel()
        ticks = self._ticks
        try:
            at = int(due * _PER_SECOND + 0.5)
        except OverflowError:  # infinite
            at = _NEVER
        if at <= ticks.past:
            at = ticks.past + 1
            due = at / _PER_SECOND
        found = ticks.waiting.get(at)
        tick = ticks.begin(at, due) if found is None else found[1]
        tick[self] = None
        self.tick = tick

    def cancel(self) -> None:
        """Let it not happen. Idempotent."""
        tick, self.tick = self.tick, None
        if tick is not None:
            del tick[self]  # its callback is not kept until then


class Ticks:
    """The timers of one loop. What is due in the same millisecond happens in one call of it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Make it without timers; `monotonic` returns seconds."""
        self.loop = loop
        """Where they are due."""
        self._monotonic = monotonic
        self.waiting: dict[int, tuple[float, dict[TickTimer, None]]] = {}
        """By the nearest millisecond: when the first of its calls is due, and all of them."""
        self._next: list[int] = []
        """Keys of `waiting`: a heap."""
        self.past = 0
        """The newest millisecond whose calls were made."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    def begin(self, at: int, due: float) -> dict[TickTimer, None]:
        """Have the calls of the millisecond `at` made, of which there are none yet.

        Args:
            at: The millisecond.
            due: When the first of them is due, in seconds.
        """
        tick: dict[TickTimer, None] = {}
        self.waiting[at] = due, tick
        heappush(self._next, at)
        if self._timer is None or at < self._timer_at:
            self._arm(at, due)
        return tick

    def _arm(self, at: int, due: float) -> None:
        """Have the loop call at `due`, when the calls of `at` are to be made."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        # A loop rounds this to its own milliseconds, which makes it half of one early or late.
        self._timer = self.loop.call_later(due - self._monotonic(), self._run)

    def _run(self) -> None:
        """Make the calls whose time has come."""
        until = self._monotonic() + _HALF
        waiting, following = self.waiting, self._next
        self._timer_at = 0  # what comes meanwhile is looked at below
        while following and waiting[following[0]][0] <= until:
            self.past = heappop(following)
            _, tick = waiting.pop(self.past)
            for timer in tuple(tick):
                if timer.tick is not tick:  # cancelled by one before it
                    continue
                timer.tick = None
                try:
                    timer.callback()
                except (
                    Exception,
                    asyncio.CancelledError,
                ) as bug:  # it must not keep the others waiting
                    context = {"message": "a timer's callback failed", "exception": bug}
                    self.loop.call_exception_handler(context)
        self._timer = None
        if following:
            at = following[0]
            self._arm(at, waiting[at][0])
