"""Empty databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.postgres import PostgresServer, postgres_server, postgres_url
from harness.stores import sqlite_url

__all__ = ["database_url", "postgres_server", "postgres_url"]


@pytest.fixture(params=["sqlite", "postgres"])
async def database_url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return await server.new_database()
