"""Opening a database, and what is said when that cannot be done."""

from __future__ import annotations

import asyncio
import logging
import socket
import stat
from pathlib import Path

import pytest
from sqlalchemy import select

from harness.postgres import PostgresServer
from harness.stores import sqlite_url
from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.failure import DatabaseFailure
from turnwire_server.adapters.database.settings import DatabaseSettings
from turnwire_server.adapters.database.tables import segments

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (f"mysql://me:{SECRET}@host/x", r"must begin with sqlite:// or postgresql://"),
        (SECRET, "is needed"),
        (f"postgresql://me:{SECRET}@host:port/x", "is needed"),
        ("sqlite://", "a file is needed"),
        ("sqlite:///:memory:", "a file is needed"),
    ],
)
def test_a_url_that_cannot_be_used_is_told_without_itself(url: str, problem: str) -> None:
    with pytest.raises(DatabaseFailure, match=problem) as failure:
        Database(DatabaseSettings(url=url))
    assert SECRET not in str(failure.value)
    assert failure.value.__context__ is None or failure.value.__suppress_context__
    assert SECRET not in repr(DatabaseSettings(url=url))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (f"postgresql://me:{SECRET}@127.0.0.1:{{port}}/x", r"Connect call failed"),
        (f"postgresql://me:{SECRET}@127.0.0.1:{{port}}/x?word={SECRET}", r"behind the \?"),
        ("sqlite:////proc/none/x.db", r"No such file or directory"),
        ("sqlite:////dev/null", r"cannot be used"),
    ],
)
async def test_a_database_that_cannot_be_opened_is_told_without_secrets(
    url: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        database = Database(
            DatabaseSettings(url=url.format(port=closed.getsockname()[1]), lock_timeout_s=0.2)
        )
        with pytest.raises(DatabaseFailure, match=problem) as failure:
            async with asyncio.timeout(20):
                await database.start()
    assert failure.value.__suppress_context__
    assert SECRET not in str(failure.value) + caplog.text


async def test_postgresql_says_what_it_minds(postgres_server: PostgresServer) -> None:
    database = Database(DatabaseSettings(url=postgres_server.url("nowhere")))
    with pytest.raises(DatabaseFailure, match="there is no database of that name"):
        await database.start()


async def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 100, encoding="ascii")
    with pytest.raises(DatabaseFailure, match="file is not a database"):
        await Database(DatabaseSettings(url=f"sqlite:///{path}")).start()


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    database = Database(DatabaseSettings(url=sqlite_url(tmp_path / "data")))
    await database.start()
    async with database.write() as connection:
        await connection.execute(segments.delete())
        files = list((tmp_path / "data").iterdir())
        assert len(files) > 1  # its log too
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    await database.close()
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


async def test_sqlite_deletes_for_good_and_lets_readers_and_a_writer_work(tmp_path: Path) -> None:
    database = Database(DatabaseSettings(url=sqlite_url(tmp_path)))
    await database.start()
    wanted = {
        "journal_mode": "wal",
        "secure_delete": 1,
        "synchronous": 1,
        "foreign_keys": 1,
        "temp_store": 2,
    }
    async with database.read() as reader, database.write() as writer:
        for name, value in wanted.items():
            for connection in (reader, writer):
                result = await connection.exec_driver_sql(f"PRAGMA {name}")
                assert result.scalar_one() == value, name
    await database.close()


async def test_writes_of_one_process_wait_for_each_other_in_order(tmp_path: Path) -> None:
    database = Database(DatabaseSettings(url=sqlite_url(tmp_path)))
    await database.start()
    order: list[int] = []

    async def write(number: int) -> None:
        async with database.write() as connection:
            await connection.execute(select(segments.c.id))
            order.append(number)

    async with asyncio.timeout(20):
        await asyncio.gather(*(write(number) for number in range(20)))
    assert order == sorted(order)
    await database.close()


async def test_a_write_that_fails_is_undone(tmp_path: Path) -> None:
    database = Database(DatabaseSettings(url=sqlite_url(tmp_path)))
    await database.start()
    row = {"id": "s", "tenant": "a", "items": b"", "facts": b"", "kept_ids": 0}
    with pytest.raises(RuntimeError):
        async with database.write() as connection:
            await connection.execute(segments.insert(), row)
            raise RuntimeError
    async with database.read() as connection:
        assert (await connection.execute(select(segments.c.id))).all() == []
    await database.close()
