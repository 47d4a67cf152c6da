"""Which server processes of a database are alive, and what becomes of the others' responses.

Each process counts up a number of its own in the database. Whoever looks several times in a row and
sees a number stand still takes its process for dead, and fails what that had left running. Looks
are counted, not seconds, and no clock is compared with another: while the database is away nobody
looks, and nobody dies of it. A process that comes back after all (it was stopped, say) counts on,
and what it brings to its end is kept as if nothing had been.

On one machine a dead process is known at once, by the lock of its journal (`adapters.ledgers`).
This is for those whose machine does not come back.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.tables import instances, responses
from turnwire_server.adapters.stores.sql import SqlResponseStore
from turnwire_server.adapters.stores.sql_failures import store_failures
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.store import StoreFailure

__all__ = ["Heartbeat"]

_log = logging.getLogger("turnwire.store")

_LOOKS: Final = 6
"""Looks in a row at a number that stands still, behind the first one."""
_NONE: Final = -1
"""The number of a process that runs responses and has none."""


class Heartbeat:
    """Says that this process lives, and finds out which others do not."""

    def __init__(
        self, database: Database, store: SqlResponseStore, clock: Clock, *, instance_id: str
    ) -> None:
        """Be a process of `database`; nothing is done before `start`.

        Args:
            database: The database.
            store: Its responses.
            clock: Time between two beats.
            instance_id: Owner of the responses that this process runs.
        """
        self._database = database
        self._store = store
        self._clock = clock
        self._id = instance_id
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[str, tuple[int, int]] = {}
        """Another process -> its number, and how often it was seen again."""

    async def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop, and say so. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        with suppress(StoreFailure):  # the others find out
            await self._remove(self._id, None)

    async def _run(self) -> None:
        while True:
            try:
                with store_failures("the heartbeat of this server cannot be kept"):
                    await self._database.run_write(self._beat)
                    found = await self._database.run_read(_look)
                await self._note(found)
            except StoreFailure as failure:  # the next round tries again
                _log.error("%s", failure)
            await self._clock.sleep(self._database.settings.heartbeat_s)

    def _beat(self, connection: Connection) -> None:
        beat = update(instances).where(instances.c.id == self._id).values(beat=instances.c.beat + 1)
        if connection.execute(beat).rowcount == 0:  # the first one, or others thought it dead
            connection.execute(insert(instances).values(id=self._id, beat=0))

    async def _note(self, found: dict[str, int]) -> None:
        """Take what one look has shown."""
        seen: dict[str, tuple[int, int]] = {}
        for name, number in found.items():
            before, times = self._seen.get(name, (None, 0))
            seen[name] = number, times + 1 if number == before else 0
        seen.pop(self._id, None)
        self._seen = seen
        for name, (number, times) in seen.items():
            if times >= _LOOKS:
                await self._bury(name, number)

    async def _bury(self, name: str, number: int) -> None:
        if number != _NONE and not await self._remove(name, number):
            return  # it lives, or somebody else is at it
        failed = await self._store.fail_orphans([name])
        _log.warning("server is gone instance=%s responses_failed=%d", name, failed)

    async def _remove(self, name: str, number: int | None) -> bool:
        """Remove a process, if it still has this number; None for any."""
        statement = delete(instances).where(instances.c.id == name)
        if number is not None:
            statement = statement.where(instances.c.beat == number)
        with store_failures("a server cannot be removed"):
            return await self._database.run_write(
                lambda connection: connection.execute(statement).rowcount > 0
            )


def _look(connection: Connection) -> dict[str, int]:
    """Return the numbers of all processes, and of those that run responses without one."""
    owners = select(responses.c.owner).where(responses.c.owner > "").distinct()
    found = dict.fromkeys(connection.scalars(owners), _NONE)
    rows = connection.execute(select(instances.c.id, instances.c.beat))
    return found | {row.id: row.beat for row in rows}
