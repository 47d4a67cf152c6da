"""A verdict on its way: the screen looks at new input beside prefill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from turnwire_server.ports.screen import ScreenFailure, Verdict

__all__ = ["Screening"]


class Screening:
    """One check. Its task is owned here and over once `stop` was called or it was awaited."""

    def __init__(
        self, check: Coroutine[None, None, Verdict], *, on_refusal: Callable[[], None]
    ) -> None:
        """Begin the check.

        Args:
            check: The check.
            on_refusal: Called as soon as the check refuses or breaks, before prefill is over.
        """
        self._on_refusal: Callable[[], None] | None = on_refusal
        self._task: asyncio.Task[Verdict] | None = asyncio.get_running_loop().create_task(check)
        self._task.add_done_callback(self._checked)

    def _checked(self, task: asyncio.Task[Verdict]) -> None:
        on_refusal, self._on_refusal = self._on_refusal, None  # whose turn holds this: a cycle
        assert on_refusal is not None  # a task is done once
        if not task.cancelled() and (task.exception() is not None or not task.result().allowed):
            on_refusal()

    async def verdict(self) -> Verdict | None:
        """Wait for the verdict, once; None when the check was stopped.

        Raises:
            ScreenFailure: The check broke. Without content: what a library says in its own
                exception may quote what it was given, so only its type is kept.
        """
        task = self._task
        if task is None:
            return None
        await asyncio.wait((task,))
        if task.cancelled():
            return None
        try:
            return task.result()
        except ScreenFailure:
            raise
        except Exception as error:  # an adapter's fault must not become an allowed turn
            raise ScreenFailure(type(error).__name__) from None
        finally:
            del task
            self._task = None  # what it raised holds the frames that hold this: a cycle

    def stop(self) -> None:
        """End the check if it still runs. Idempotent."""
        if self._task is not None:
            self._task.cancel()
