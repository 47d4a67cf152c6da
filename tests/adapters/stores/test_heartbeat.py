"""Server processes whose machine does not come back: others find out, and fail what they ran."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import Connection, select

from harness.stores import Backends, SqlStores, message, stored
from turnwire.v1 import response_pb2
from turnwire_server.adapters.database.tables import instances
from turnwire_server.adapters.stores import sql_heartbeat
from turnwire_server.adapters.stores.sql_heartbeat import Heartbeat

PERIOD_S = 10.0


class Process:
    """One server process, as far as it matters here."""

    def __init__(self, stores: SqlStores, backend: Backends, name: str) -> None:
        self.stores = stores
        self.name = name
        self.heartbeat = Heartbeat(
            stores.database, stores.responses, backend.clock, instance_id=name
        )

    async def runs(self, response_id: str) -> None:
        """Let it run a response."""
        running = {"status": "in_progress", "owner": self.name, "expires_at": 2_000_000_000}
        record = stored(response_id, message(f"m_{response_id}"), **running)
        await self.stores.responses.put(record)

    async def status(self, response_id: str) -> str:
        record = await self.stores.responses.get(response_id, tenant="a")
        assert record is not None
        return record.status

    async def instances(self) -> set[str]:
        def read(connection: Connection) -> set[str]:
            return set(connection.scalars(select(instances.c.id)))

        return await self.stores.database.run_read(read)

    def die(self) -> None:
        """Stop without a word."""
        assert self.heartbeat._task is not None
        self.heartbeat._task.cancel()


async def opened(backend: Backends, name: str) -> Process:
    return Process(await backend.open_sql(heartbeat_s=PERIOD_S), backend, name)


async def pass_periods(backend: Backends, count: int, *, alive: int) -> None:
    """Let time pass; `alive` processes look in each period."""
    for _ in range(count):
        await backend.clock.until_sleeping(alive)
        backend.clock.advance(PERIOD_S)
    await backend.clock.until_sleeping(alive)


async def test_what_a_process_ran_has_failed_a_bound_after_it_fell_silent(
    sql_backend: Backends, caplog: pytest.LogCaptureFixture
) -> None:
    lost, other = await opened(sql_backend, "lost"), await opened(sql_backend, "other")
    await lost.runs("r1")
    await other.runs("r2")
    for process in (lost, other):
        await process.heartbeat.start()
    await pass_periods(sql_backend, 20, alive=2)
    assert await other.status("r1") == "in_progress"
    lost.die()
    await pass_periods(sql_backend, 5, alive=1)
    assert await other.status("r1") == "in_progress"
    with caplog.at_level(logging.WARNING):
        await pass_periods(sql_backend, 2, alive=1)
    assert "server is gone instance=lost responses_failed=1" in caplog.text
    record = await other.stores.responses.get("r1", tenant="a")
    assert record is not None and (record.status, record.owner) == ("failed", "")
    assert response_pb2.Response.FromString(record.response).error.code == "server_error"
    assert await other.status("r2") == "in_progress"
    assert await other.instances() == {"other"}
    await other.heartbeat.close()


async def test_one_that_never_said_anything_is_found_too(sql_backend: Backends) -> None:
    lost, other = await opened(sql_backend, "lost"), await opened(sql_backend, "other")
    await lost.runs("r1")
    await other.heartbeat.start()
    await pass_periods(sql_backend, 5, alive=1)
    assert await other.status("r1") == "in_progress"
    await pass_periods(sql_backend, 2, alive=1)
    assert await other.status("r1") == "failed"
    await other.heartbeat.close()


async def test_one_that_was_taken_for_dead_and_is_not_lives_on(sql_backend: Backends) -> None:
    slow, other = await opened(sql_backend, "slow"), await opened(sql_backend, "other")
    for process in (slow, other):
        await process.heartbeat.start()
    await sql_backend.clock.until_sleeping(2)
    await slow.runs("r0")
    slow.die()
    await pass_periods(sql_backend, 8, alive=1)
    assert await other.instances() == {"other"}
    assert await slow.status("r0") == "failed"
    await slow.heartbeat.start()
    end = stored("r0", message("m_r0"), expires_at=2_000_000_000)
    await slow.stores.responses.put(end)
    assert await other.status("r0") == "completed"
    await slow.runs("r1")
    await pass_periods(sql_backend, 20, alive=2)
    assert await other.instances() == {"other", "slow"}
    assert await other.status("r1") == "in_progress"
    for process in (slow, other):
        await process.heartbeat.close()


async def test_while_the_database_is_away_nobody_dies_of_it(
    sql_backend: Backends, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = await opened(sql_backend, "one"), await opened(sql_backend, "other")
    await one.runs("r1")
    for process in (one, other):
        await process.heartbeat.start()
    await pass_periods(sql_backend, 2, alive=2)

    async def rename(old: str, new: str) -> None:
        async with one.stores.database.write() as connection:
            await connection.exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")

    await rename("instances", "gone")
    await pass_periods(sql_backend, 20, alive=2)
    assert "the heartbeat of this server cannot be kept" in caplog.text
    await rename("gone", "instances")
    one.die()  # the other one is the first to look
    await pass_periods(sql_backend, 3, alive=1)
    await one.heartbeat.start()
    await pass_periods(sql_backend, 10, alive=2)
    assert await other.status("r1") == "in_progress"
    for process in (one, other):
        await process.heartbeat.close()


async def test_a_process_that_ends_says_so(sql_backend: Backends) -> None:
    one = await opened(sql_backend, "one")
    await one.heartbeat.start()
    await sql_backend.clock.until_sleeping()
    assert await one.instances() == {"one"}
    await one.heartbeat.close()
    await one.heartbeat.close()
    assert await one.instances() == set()


async def test_a_beat_is_one_small_write_however_many_turns_there_are(
    sqlite_backend: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await opened(sqlite_backend, "one")
    writes: list[object] = []
    write = one.stores.database.run_write

    async def counted(job):
        writes.append(job)
        return await write(job)

    await one.heartbeat.start()
    await sqlite_backend.clock.until_sleeping()
    for number in range(5):
        await one.runs(f"r{number}")
    monkeypatch.setattr(one.stores.database, "run_write", counted)
    await pass_periods(sqlite_backend, 7, alive=1)
    assert len(writes) == 7
    assert sql_heartbeat._LOOKS * PERIOD_S == 60  # what docs/store.md says
    await one.heartbeat.close()
