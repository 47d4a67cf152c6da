"""Takes less memory when there is little to do.

Sessions that rest are compressed, a few at a time. What was freed is given back to the system: an
allocator keeps what was freed for what comes next, so a server whose sessions are gone would
hold their memory until others need it. To give it back stops everything for some milliseconds:
that waits for a quiet moment and comes rarely enough to be a small part of the time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from turnwire_server.ports.clock import Clock
from turnwire_server.runtime.reports import log_bug

__all__ = ["Tidying"]

_log = logging.getLogger("turnwire.runtime")

_LOOK_S: Final = 1.0
"""How often it looks."""
_SLICE_S: Final = 0.002
"""For how long sessions are compressed at a time,"""
_PAUSE_S: Final = 0.02
"""and what is left to others in between."""
_QUIET: Final = 0.2
"""Part of a core below which the process is quiet."""
_WORTH_S: Final = 0.1
"""Seconds of work after which there may be something to give back."""
_MOST_OF_TIME: Final = 0.005
"""Part of the time that it may take."""


class Tidying:
    """Watches a process and tidies up behind it."""

    def __init__(
        self,
        clock: Clock,
        worked: Callable[[], float],
        rest_one: Callable[[], bool],
        is_due: Callable[[], bool],
        give_back: Callable[[], None],
    ) -> None:
        """Make it; `run` does the work.

        Args:
            clock: Time.
            worked: Returns the seconds of CPU that the process has used.
            rest_one: Compresses one session that rests; returns False when there is none.
            is_due: Asked at every look: whether there is more to give back than work tells.
            give_back: Gives freed memory back; blocks.
        """
        self._rest_one = rest_one
        self._is_due = is_due
        self._give_back = give_back
        self._clock = clock
        self._worked = worked
        self._looked_at, self._worked_then = clock.monotonic(), worked()
        self._since = self._worked_then
        """The work that was done when it gave back last."""
        self._not_before = self._looked_at
        self._has_rested = False
        """Whether sessions were compressed since then."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._clock.sleep(_LOOK_S)
            try:
                if self.look():
                    await self._rest()
            except Exception as bug:  # outermost frame of the task: the server must go on
                log_bug(_log, "memory was not tidied up", bug)

    async def _rest(self) -> None:
        """Compress sessions for as long as there are any, and until it must look again."""
        until = self._clock.monotonic() + _LOOK_S
        while (began := self._clock.monotonic()) < until:
            while self._rest_one():
                self._has_rested = True
                if self._clock.monotonic() - began >= _SLICE_S:
                    break
            else:
                return
            await self._clock.sleep(_PAUSE_S)

    def look(self) -> bool:
        """Give back what was freed if the process is quiet, and if that is worth it.

        Returns:
            Whether it is quiet.
        """
        now, worked = self._clock.monotonic(), self._worked()
        is_quiet = worked - self._worked_then < _QUIET * (now - self._looked_at)
        self._looked_at, self._worked_then = now, worked
        is_due = self._is_due()
        is_worth_it = is_due or self._has_rested or worked - self._since >= _WORTH_S
        if not is_quiet or not is_worth_it or now < self._not_before:
            return is_quiet
        self._give_back()
        self._since, self._has_rested = self._worked(), False
        self._not_before = now + (self._clock.monotonic() - now) / _MOST_OF_TIME
        return True
