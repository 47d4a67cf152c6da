"""The event loops of the benchmark's processes."""

from __future__ import annotations

import asyncio
import importlib.util
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["new_exact_loop", "new_loop", "run"]

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on the kind of loop that the server has: uvloop where it is installed."""
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        return runner.run(work)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of the kind that the server has."""
    return (_fast_loop() or asyncio.new_event_loop)()


def new_exact_loop() -> asyncio.AbstractEventLoop:
    """Return a loop whose timers keep microseconds, for at most about 1,000 sockets.

    uvloop and the loops on epoll round a wait to milliseconds, which is as long as the one-way
    delay of a region.
    """
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
