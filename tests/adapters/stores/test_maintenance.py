"""What a running server does for its database."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from sqlalchemy import select

from harness.stores import Backends, message, stored
from harness.waiting import until
from turnwire_server.adapters.database.tables import responses
from turnwire_server.adapters.stores.sql_maintenance import StoreMaintenance


async def test_what_has_expired_is_removed_at_the_start_and_every_interval(
    sqlite_backend: Backends,
) -> None:
    stores, clock = await sqlite_backend.open_sql(prune_interval_s=600.0), sqlite_backend.clock
    await stores.responses.put(stored("r1", message("m1"), expires_at=clock.wall()))
    maintenance = StoreMaintenance(stores.database, stores.responses, clock)
    await maintenance.start()
    await clock.until_sleeping()
    assert stores.responses.dropped["expired"] == 1
    await stores.responses.put(stored("r2", message("m2"), expires_at=clock.wall() + 600))
    clock.advance(599)
    assert stores.responses.dropped["expired"] == 1
    clock.advance(1)
    await until(lambda: stores.responses.dropped["expired"] == 2, within_s=20)
    await maintenance.close()
    await maintenance.close()


def is_in_a_file(content: bytes, folder: Path) -> bool:
    return any(content in path.read_bytes() for path in folder.iterdir())


async def test_what_others_keep_from_being_scrubbed_is_tried_again_by_and_by(
    sqlite_backend: Backends, tmp_path: Path
) -> None:
    stores, clock = await sqlite_backend.open_sql(), sqlite_backend.clock
    reader = await sqlite_backend.open_sql()
    maintenance = StoreMaintenance(stores.database, stores.responses, clock)
    await maintenance.start()
    await clock.until_sleeping()
    await stores.responses.put(stored("r1", message("m1", "XYZZY")))
    async with reader.database.read() as connection:
        await connection.execute(select(responses.c.id))
        await stores.responses.delete("r1", tenant="a")
        for _ in range(2):
            await clock.until_sleeping(2)
            clock.advance(1)
        await clock.until_sleeping(2)
        assert stores.database.needs_scrub.is_set()
    clock.advance(1)
    await until(lambda: not stores.database.needs_scrub.is_set(), within_s=20)
    assert not is_in_a_file(b"XYZZY", tmp_path)
    await maintenance.close()


async def test_a_database_that_fails_is_tried_again(
    sqlite_backend: Backends, caplog: pytest.LogCaptureFixture
) -> None:
    stores, clock = await sqlite_backend.open_sql(), sqlite_backend.clock
    async with stores.database.write() as connection:
        await connection.exec_driver_sql("ALTER TABLE conversations RENAME TO gone")
    maintenance = StoreMaintenance(stores.database, stores.responses, clock)
    with caplog.at_level(logging.ERROR):
        await maintenance.start()
        await clock.until_sleeping()
    assert (
        "pruning failed error=what has expired cannot be removed: OperationalError" in caplog.text
    )
    async with stores.database.write() as connection:
        await connection.exec_driver_sql("ALTER TABLE gone RENAME TO conversations")
    await stores.responses.put(stored("r1", message("m1"), expires_at=clock.wall()))
    clock.advance(600)
    await until(lambda: stores.responses.dropped["expired"] == 1, within_s=20)
    await maintenance.close()
