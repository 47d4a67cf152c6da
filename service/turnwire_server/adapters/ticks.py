"""Timers that share the loop's: one for each millisecond in which any of them is due.

An event loop's own timer costs it several objects and a place in a heap. Of thousands of tokens per
second many are due in the same millisecond, and no loop that waits for sockets is more exact.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from typing import Final

from turnwire_server.ports.clock import Timer

__all__ = ["Ticks"]

_PER_SECOND: Final = 1_000
_LONGEST_S: Final = 1e9
"""What is later is never: a time must stay a number of milliseconds."""
_HALF: Final = 0.5 / _PER_SECOND + 1e-6
"""Seconds: by so much a loop that rounds to milliseconds calls too early."""


class _Call:
    """A call that is due (`ports.Timer`)."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Let it not happen. Idempotent."""
        self.callback = None


class Ticks:
    """The timers of one loop. What is due in the same millisecond happens in one call of it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Make it without timers; `monotonic` returns seconds."""
        self.loop = loop
        """Where they are due."""
        self._monotonic = monotonic
        self._ticks: dict[int, tuple[float, list[_Call]]] = {}
        """By the nearest millisecond: when the first of its calls is due, and all of them."""
        self._next: list[int] = []
        """Keys of `_ticks`: a heap."""
        self._past = 0
        """The newest millisecond whose calls were made."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` in `seconds`, give or take a millisecond, and never in this very call."""
        call = _Call(callback)
        due = self._monotonic() + min(seconds, _LONGEST_S)
        at = int(due * _PER_SECOND + 0.5)
        if at <= self._past:
            at = self._past + 1
            due = at / _PER_SECOND
        tick = self._ticks.get(at)
        if tick is None:
            self._ticks[at] = due, [call]
            heapq.heappush(self._next, at)
            if self._timer is None or at < self._timer_at:
                self._arm(at, due)
        else:
            tick[1].append(call)
        return call

    def _arm(self, at: int, due: float) -> None:
        """Have the loop call at `due`, when the calls of `at` are to be made."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        # A loop rounds this to its own milliseconds, which makes it half of one early or late.
        self._timer = self.loop.call_later(max(0.0, due - self._monotonic()), self._run)

    def _run(self) -> None:
        """Make the calls whose time has come."""
        now = self._monotonic()
        self._timer_at = 0  # what comes meanwhile is looked at below
        while self._next and self._ticks[self._next[0]][0] <= now + _HALF:
            self._past = heapq.heappop(self._next)
            for call in self._ticks.pop(self._past)[1]:
                callback, call.callback = call.callback, None
                if callback is None:
                    continue
                try:
                    callback()
                except (
                    Exception,
                    asyncio.CancelledError,
                ) as bug:  # it must not keep the others waiting
                    context = {"message": "a timer's callback failed", "exception": bug}
                    self.loop.call_exception_handler(context)
        self._timer = None
        if self._next:
            at = self._next[0]
            self._arm(at, self._ticks[at][0])
