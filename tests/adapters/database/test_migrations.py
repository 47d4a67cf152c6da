"""Migrations: from empty to the tables of the code, from several processes at once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect

from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.failure import DatabaseFailure
from turnwire_server.adapters.database.migrate import newest_revision
from turnwire_server.adapters.database.settings import DatabaseSettings
from turnwire_server.adapters.database.tables import METADATA

_UPGRADE = """
import asyncio, sys
from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.settings import DatabaseSettings

async def main():
    database = Database(DatabaseSettings(url=sys.argv[1], lock_timeout_s=30))
    sys.stdin.read(1)  # all at the same moment
    before, after = await database.migrate()
    await database.close()
    print(before, after)

print("ready", flush=True)
asyncio.run(main())
"""


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return list(compare_metadata(context, METADATA))


async def test_the_migrated_tables_are_those_of_the_code(database_url: str) -> None:
    database = Database(DatabaseSettings(url=database_url))
    assert await database.migrate() == (None, newest_revision())
    assert await database.migrate() == (newest_revision(), newest_revision())
    async with database.read() as connection:
        assert await connection.run_sync(differences) == []
    await database.close()


async def test_every_row_has_a_tenant() -> None:
    # Server processes are of none.
    without = {name for name, table in METADATA.tables.items() if "tenant" not in table.columns}
    assert without == {"instances"}
    assert not any(
        column.nullable
        for table in METADATA.tables.values()
        for column in table.columns
        if column.name == "tenant"
    )


async def test_four_processes_may_migrate_at_once_twice(database_url: str) -> None:
    for attempt in range(2):
        processes = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-W", "error", "-c", _UPGRADE, database_url),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            for _ in range(4)
        ]
        try:
            async with asyncio.timeout(60):
                for process in processes:
                    assert process.stdout is not None
                    assert await process.stdout.readline() == b"ready\n"
                outcomes = await asyncio.gather(*(each.communicate(b".") for each in processes))
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        assert [error for _, error in outcomes] == [b""] * 4
        revision = newest_revision().encode()
        said = sorted(output.strip() for output, _ in outcomes)
        known = b"None" if attempt == 0 else revision
        # Whoever comes second finds them made, in the first round too.
        assert set(said) <= {known + b" " + revision, revision + b" " + revision}
        assert sum(line.startswith(b"None") for line in said) == (1 if attempt == 0 else 0)


async def test_a_migration_that_breaks_leaves_nothing_behind(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(connection: Connection) -> None:
        METADATA.tables["segments"].create(connection)
        raise ValueError("a secret")

    database = Database(DatabaseSettings(url=database_url))
    with monkeypatch.context() as patch:
        patch.setattr("turnwire_server.adapters.database.engine.upgrade", broken)
        with pytest.raises(DatabaseFailure, match=r"cannot be used: ValueError\."):
            await database.migrate()
    async with database.read() as connection:
        assert await connection.run_sync(lambda sync: inspect(sync).get_table_names()) == []
    assert await database.migrate() == (None, newest_revision())
    await database.close()


async def test_tables_of_a_newer_version_are_refused(database_url: str) -> None:
    database = Database(DatabaseSettings(url=database_url))
    await database.migrate()
    async with database.write() as connection:
        await connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseFailure, match="used by a newer one"):
        await database.start()


async def test_a_folder_may_be_called_anything(tmp_path: Path) -> None:
    path = tmp_path / "a %(b)s ? c%d" / "turnwire.db"
    database = Database(DatabaseSettings(url=None, default_file=path))
    await database.start()
    await database.close()
    assert path.is_file()
