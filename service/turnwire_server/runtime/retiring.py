"""Models that are served no longer: each is closed when the last that uses it has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from turnwire_server.ports.clock import Clock
from turnwire_server.ports.engine import Engine
from turnwire_server.runtime.registry import ServedModel
from turnwire_server.runtime.reports import log_bug
from turnwire_server.runtime.run import TurnRun

__all__ = ["RetiringModels"]

_LOOK_S = 0.05
"""How often it is looked whether turns have begun."""

_log = logging.getLogger("turnwire.runtime")


class RetiringModels:
    """The models that were replaced and still have something to finish."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[asyncio.Task[None], Engine] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, model: ServedModel, running: Sequence[TurnRun]) -> None:
        """Close a model's engine when nothing runs on it any more.

        Args:
            model: The model, which nothing new can find.
            running: What runs now; a turn that has not begun may have found it already.
        """
        task = asyncio.get_running_loop().create_task(self._retire(model, list(running)))
        self._tasks[task] = model.engine
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def close(self) -> None:
        """Wait for nothing any more: close the engines that are left."""
        left = dict(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for engine in left.values():
            await engine.close()

    async def _retire(self, model: ServedModel, running: Sequence[TurnRun]) -> None:
        while any(not run.has_begun and not run.is_over for run in running):
            await self._clock.sleep(_LOOK_S)
        await model.leases.free()
        try:
            await model.engine.close()
        except Exception as bug:  # outermost frame of the task: nobody else could handle it
            log_bug(_log, f"engine could not be closed model={model.name!r}", bug)
        _log.info("model retired model=%r", model.name)
