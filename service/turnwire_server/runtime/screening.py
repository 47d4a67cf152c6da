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
        self._on_refusal = on_refusal
        self._task = asyncio.get_running_loop().create_task(check)
        self._task.add_done_callback(self._checked)

    def _checked(self, task: asyncio.Task[Verdict]) -> None:
        if not task.cancelled() and (task.exception() is not None or not task.result().allowed):
            self._on_refusal()

    async def verdict(self) -> Verdict | None:
        """Wait for the verdict; None when the check was stopped.

        Raises:
            ScreenFailure: The check broke. Without content: what a library says in its own
                exception may quote what it was given, so only its type is kept.
        """
        await asyncio.wait((self._task,))
        if self._task.cancelled():
            return None
        try:
            return self._task.result()
        except ScreenFailure:
            raise
        except Exception as error:  # an adapter's fault must not become an allowed turn
            raise ScreenFailure(type(error).__name__) from None

    def stop(self) -> None:
        """End the check if it still runs. Idempotent."""
        self._task.cancel()
