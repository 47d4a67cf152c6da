"""`turnwire db`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from harness.clock import ManualClock
from harness.stores import message, sql_stores, sqlite_url, stored
from turnwire_server.adapters.database.migrate import newest_revision
from turnwire_server.cli import main


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A SQLite database that the configuration names; its file is not there yet."""
    monkeypatch.setenv("TURNWIRE_DATABASE_URL", sqlite_url(tmp_path))
    return sqlite_url(tmp_path)


def test_upgrade_makes_the_tables_and_says_when_there_is_nothing_to_do(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["db", "upgrade"]) == 0
    assert f"upgraded from empty to revision {newest_revision()}\n" in capsys.readouterr().out
    assert main(["db", "upgrade"]) == 0
    assert f"up to date (revision {newest_revision()})\n" in capsys.readouterr().out


def test_prune_removes_what_has_expired(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    now = int(time.time())

    async def fill() -> None:
        async with sql_stores(url, ManualClock()) as stores:
            for number in range(5):
                expires_at = now + (1000 if number else -1000)
                record = stored(f"r{number}", message(f"m{number}"), expires_at=expires_at)
                await stores.responses.put(record)

    asyncio.run(fill())
    assert main(["db", "prune"]) == 0
    assert "removed 1 expired responses and 0 unused segments" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["upgrade", "prune"])
def test_a_database_that_cannot_be_used_is_one_sentence_without_secrets(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for value, problem in (
        ("memory", "has no database"),
        ("oracle://me:hunter2@host/x", "must begin with sqlite:// or postgresql://"),
        ("postgresql://me:hunter2@127.0.0.1:1/x", "PostgreSQL, x at 127.0.0.1"),
    ):
        monkeypatch.setenv("TURNWIRE_DATABASE_URL", value)
        assert main(["db", command]) == 1
        said = capsys.readouterr()
        assert problem in said.err
        assert "hunter2" not in said.err and "Traceback" not in said.err
        assert said.out == ""
