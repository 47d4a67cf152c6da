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
        self._calls: dict[int, list[_Call]] = {}
        """By the millisecond in which they are due."""
        self._next: list[int] = []
        """Keys of `_calls`: a heap."""
        self._past = 0
        """The newest millisecond whose calls were made."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` in `seconds`, to the nearest millisecond that is not over yet."""
        call = _Call(callback)
        at = int((self._monotonic() + seconds) * _PER_SECOND + 0.5)
        if at <= self._past:
            at = self._past + 1
        calls = self._calls.get(at)
        if calls is None:
            self._calls[at] = [call]
            heapq.heappush(self._next, at)
            if self._timer is None or at < self._timer_at:
                self._arm(at)
        else:
            calls.append(call)
        return call

    def _arm(self, at: int) -> None:
        """Have the loop call when the millisecond `at` begins."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        wait = at - int(self._monotonic() * _PER_SECOND)
        self._timer = self.loop.call_later(max(0, wait) / _PER_SECOND, self._run)

    def _run(self) -> None:
        """Make the calls whose time has come."""
        self._past = now = int(self._monotonic() * _PER_SECOND + 0.5)
        self._timer_at = 0  # what comes meanwhile is looked at below
        while self._next and self._next[0] <= now:
            for call in self._calls.pop(heapq.heappop(self._next)):
                callback, call.callback = call.callback, None
                if callback is None:
                    continue
                try:
                    callback()
                except Exception as bug:  # it must not keep the others waiting
                    context = {"message": "a timer's callback failed", "exception": bug}
                    self.loop.call_exception_handler(context)
        self._timer = None
        if self._next:
            self._arm(self._next[0])
