"""What a run says while it works: one changing line on a terminal, else a line for each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.markup import escape

__all__ = ["Progress", "Steps"]

Progress = Callable[[str], None]
"""Told what is done now, in a few words."""

_MINUTE_S: Final = 60


class Steps:
    """Says steps on a console, each with the time since the start. Call it with what begins."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Say steps.

        Args:
            console: Of the standard error: what goes to the standard output are figures alone.
            clock: Seconds since whenever.
        """
        self._console = console
        self._clock = clock
        self._began = clock()
        # A file or a log cannot take a line back, and a person who reads it wants every one.
        self._status = console.status("") if console.is_terminal else None

    def __enter__(self) -> Self:
        """Begin the changing line, where there is one."""
        self._began = self._clock()
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the changing line away."""
        if self._status is not None:
            self._status.stop()

    def __call__(self, step: str) -> None:
        """Say that a step begins."""
        minutes, seconds = divmod(int(self._clock() - self._began), _MINUTE_S)
        line = f"{minutes:2}:{seconds:02}  {step}"
        if self._status is not None:
            self._status.update(escape(line))
        else:
            self._console.print(line, markup=False, soft_wrap=True)
