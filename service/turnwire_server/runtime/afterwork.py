"""After work: what follows a terminal event and must never delay the next turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from turnwire_server.runtime.reports import log_bug

__all__ = ["AfterWork"]

_log = logging.getLogger("turnwire.runtime")


class AfterWork:
    """Runs jobs beside everything else; each job is owned here until it is over."""

    def __init__(self) -> None:
        self._jobs: set[asyncio.Task[None]] = set()

    def add(self, job: Callable[[], Coroutine[None, None, None]], *, response_id: str) -> None:
        """Start a job; its failure is logged with `response_id` and nothing else happens."""
        task = asyncio.get_running_loop().create_task(self._run(job, response_id))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _run(self, job: Callable[[], Coroutine[None, None, None]], response_id: str) -> None:
        try:
            await job()
        except Exception as bug:  # outermost frame of the job: nobody else could handle it
            log_bug(_log, f"after work failed response_id={response_id}", bug)

    async def finish(self, grace_s: float) -> None:
        """Wait for the jobs, at most `grace_s` seconds; then cancel what is left."""
        if not self._jobs:
            return
        _, late = await asyncio.wait(self._jobs, timeout=grace_s)
        for task in late:
            task.cancel()
        if late:
            _log.error("after work cut jobs=%d", len(late))
            await asyncio.wait(late)
