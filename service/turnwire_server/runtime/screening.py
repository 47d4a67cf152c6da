"""A verdict on its way: the screen looks at new input beside prefill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from turnwire_server.ports.screen import Verdict

__all__ = ["Screening"]


class Screening:
    """One check. Its task is owned here and over once `stop` was called or it was awaited."""

    def __init__(
        self, check: Coroutine[None, None, Verdict], *, on_refusal: Callable[[], None]
    ) -> None:
        """Begin the check; `on_refusal` is called as soon as it refuses, before prefill is over."""
        self._on_refusal = on_refusal
        self._task = asyncio.get_running_loop().create_task(check)
        self._task.add_done_callback(self._checked)

    def _checked(self, task: asyncio.Task[Verdict]) -> None:
        if not task.cancelled() and task.exception() is None and not task.result().allowed:
            self._on_refusal()

    async def verdict(self) -> Verdict | None:
        """Wait for the verdict; None when the check was stopped. Raises what the check raised."""
        await asyncio.wait((self._task,))
        return None if self._task.cancelled() else self._task.result()

    def stop(self) -> None:
        """End the check if it still runs. Idempotent."""
        self._task.cancel()
