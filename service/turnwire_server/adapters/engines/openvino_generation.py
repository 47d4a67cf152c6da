"""A running generation of the `openvino` engine, on its parent's side of the pipe."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from turnwire_server.ports.engine import (
    EngineFailure,
    EngineRequest,
    EngineStep,
    FinishReason,
)

__all__ = ["OpenVinoGeneration"]


class OpenVinoGeneration:
    """A running generation (`ports.Generation`)."""

    def __init__(self, key: int, request: EngineRequest, on_cancel: Callable[[int], None]) -> None:
        """Make one that waits for what the engine gives.

        Args:
            key: What the child calls it.
            request: What was asked for.
            on_cancel: Called with the key when its reader wants no more.
        """
        self.key = key
        self.request = request
        self._on_cancel = on_cancel
        self._ids: deque[int] = deque()
        self._finish: FinishReason | None = None
        self._cached: int | None = None
        self._failure: EngineFailure | None = None
        self._is_over = False
        """The last step was given out."""
        self._has_news = False
        self._listener: Callable[[Sequence[int]], bool] | None = None
        self._wake: asyncio.Future[None] | None = None

    def __aiter__(self) -> AsyncIterator[EngineStep]:
        """Return itself: there is one reader."""
        return self

    async def __anext__(self) -> EngineStep:
        """Wait for the next step. Cancelling the wait loses nothing and stops nothing."""
        while not self._has_news:
            if self._is_over:
                raise StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        self._has_news = False
        if self._failure is not None:
            self._is_over = True
            raise self._failure
        if self._finish is not None:
            self._is_over, self._listener = True, None
        ids, self._ids = list(self._ids), deque()
        cached, self._cached = self._cached, None
        return EngineStep(ids=ids, finish=self._finish, cached_tokens=cached)

    def listen(self, take: Callable[[Sequence[int]], bool]) -> None:
        """Hand what comes between the first step and the last to `take`."""
        if self._finish is None and self._failure is None:
            self._listener = take

    def cancel(self) -> None:
        """Stop at once; see `ports.Generation`."""
        self._listener = None  # who listens holds this: a cycle
        self._end("cancelled")

    def take(self, ids: Sequence[int], finish: FinishReason | None, cached: int | None) -> None:
        """Add what the engine gave."""
        if self._finish is not None or self._failure is not None:
            return
        if self._listener and finish is None and self._is_awaited and not self._has_news:
            try:
                if not self._listener(ids):
                    self._notify()  # by a step without ids
            except Exception as bug:
                self._tell(bug)
            return
        self._ids.extend(ids)
        if cached is not None:
            self._cached = cached
        self._finish = finish
        self._notify()
        if finish is None and len(self._ids) > self.request.max_pending_tokens:
            self._end("overrun")

    def fail(self, why: str) -> None:
        """End with a failure, unless it is over already."""
        if self._finish is None and self._failure is None:
            self._failure = EngineFailure(why)
            self._notify()

    def _end(self, reason: FinishReason) -> None:
        if self._finish is None and self._failure is None:
            self._on_cancel(self.key)
            self._finish = reason
            self._notify()

    @property
    def _is_awaited(self) -> bool:
        return self._wake is not None and not self._wake.done()

    def _notify(self) -> None:
        self._has_news = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _tell(self, bug: Exception) -> None:
        """Raise in the reader, unless it has other news already."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_exception(bug)
