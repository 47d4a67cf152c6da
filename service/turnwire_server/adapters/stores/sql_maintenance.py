"""What a running server does for its database now and then."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.stores.sql import SqlResponseStore
from turnwire_server.adapters.stores.sql_failures import store_failures
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.store import StoreFailure

__all__ = ["StoreMaintenance"]

_log = logging.getLogger("turnwire.store")

_SCRUB_PAUSE_S: Final = 1.0


class StoreMaintenance:
    """Removes what has expired, and scrubs what could not be scrubbed at once."""

    def __init__(self, database: Database, store: SqlResponseStore, clock: Clock) -> None:
        """Care for `store` and its database by a clock; nothing is done before `start`."""
        self._database = database
        self._store = store
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._prune()), loop.create_task(self._scrub())]

    async def close(self) -> None:
        """Stop. Idempotent."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    async def _prune(self) -> None:
        while True:
            try:
                expired, _ = await self._store.prune()
                if expired:
                    _log.info("expired responses removed=%d", expired)
            except StoreFailure as failure:  # the next round tries again
                _log.error("pruning failed error=%s", failure)
            await self._clock.sleep(self._database.settings.prune_interval_s)

    async def _scrub(self) -> None:
        while True:
            await self._database.needs_scrub.wait()
            # Whoever reads now is done soon.
            await self._clock.sleep(_SCRUB_PAUSE_S)
            try:
                with store_failures("what was deleted cannot be scrubbed"):
                    await self._database.scrub()
            except StoreFailure as failure:  # the next round tries again
                _log.error("%s", failure)
