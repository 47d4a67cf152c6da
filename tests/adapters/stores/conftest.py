"""Stores for tests that every back end must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from harness.postgres import PostgresServer, postgres_server, postgres_url
from harness.stores import BACKENDS, Backends, sqlite_url

__all__ = ["backend", "postgres_server", "postgres_url", "sql_backend", "sqlite_backend"]


async def _backends(
    kind: str, folder: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Backends]:
    url = sqlite_url(folder)
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = await server.new_database()
    async with AsyncExitStack() as exits:
        yield Backends(kind, url, exits)  # type: ignore[arg-type]


@pytest.fixture(params=BACKENDS)
async def backend(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Backends]:
    """Each back end."""
    async for each in _backends(request.param, tmp_path, request):
        yield each


@pytest.fixture(params=BACKENDS[1:])
async def sql_backend(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Backends]:
    """Each database."""
    async for each in _backends(request.param, tmp_path, request):
        yield each


@pytest.fixture
async def sqlite_backend(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Backends]:
    """SQLite."""
    async for each in _backends("sqlite", tmp_path, request):
        yield each
