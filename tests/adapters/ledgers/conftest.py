"""Databases for the ledger's tests: SQLite, and PostgreSQL where it is installed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from harness.postgres import postgres_server
from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.settings import DatabaseSettings

__all__ = ["postgres_server"]


@pytest.fixture(params=["sqlite", "postgresql"])
async def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'turnwire.db'}"
    url = await request.getfixturevalue("postgres_server").new_database()
    assert isinstance(url, str)
    return url


@pytest.fixture
async def connected(database_url: str) -> AsyncIterator[Callable[[], Database]]:
    """Open the database, as one process more; all are closed in the end."""
    async with AsyncExitStack() as exits:

        async def connect() -> Database:
            database = Database(DatabaseSettings(url=database_url))
            await database.start()
            exits.push_async_callback(database.close)
            return database

        yield connect


@pytest.fixture
async def database(connected) -> Database:
    """The database of one process."""
    return await connected()
