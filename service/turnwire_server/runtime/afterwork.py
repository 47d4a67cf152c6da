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

    def soon(self, job: Callable[[], None], *, response_id: str) -> None:
        """Let a job that waits for nothing run in the loop's next turn: it needs no task."""
        asyncio.get_running_loop().call_soon(self._run_now, job, response_id)

    def _run_now(self, job: Callable[[], None], response_id: str) -> None:
        try:
            job()
        except Exception as bug:  # outermost frame of the job: nobody else could handle it
            _log_failure(bug, response_id)

    async def _run(self, job: Callable[[], Coroutine[None, None, None]], response_id: str) -> None:
        try:
            await job()
        except Exception as bug:  # outermost frame of the job: nobody else could handle it
            _log_failure(bug, response_id)

    async def finish(self, grace_s: float) -> None:
        """Wait for the jobs, at most `grace_s` seconds; then cancel what is left."""
        await asyncio.sleep(0)  # what was to run soon has run then
        if not self._jobs:
            return
        _, late = await asyncio.wait(self._jobs, timeout=grace_s)
        for task in late:
            task.cancel()
        if late:
            _log.error("after work cut jobs=%d", len(late))
            await asyncio.wait(late)


def _log_failure(bug: Exception, response_id: str) -> None:
    log_bug(_log, f"after work failed response_id={response_id}", bug)
