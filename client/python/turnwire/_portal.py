"""An event loop for those who have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import TypeVar

__all__ = ["Portal"]

ResultT = TypeVar("ResultT")


class Portal:
    """An event loop in a thread, and a way to run coroutines on it from others."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A script that is killed in the middle must not hang on this thread.
        self._thread = threading.Thread(target=self._serve, name="turnwire", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def call(self, work: Coroutine[object, object, ResultT]) -> ResultT:
        """Run a coroutine to its end; an interrupt (Ctrl-C) cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of the session cannot call the session")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
