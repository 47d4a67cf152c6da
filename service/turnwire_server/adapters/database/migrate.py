"""Migrations at the start, safely from several processes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from turnwire_server.adapters.database import migrations

__all__ = ["ADVISORY_LOCK", "current_revision", "newest_revision", "upgrade"]

ADVISORY_LOCK: Final = 0x7475726E77697265
"""Which of PostgreSQL's advisory locks a migration holds: `turnwire` in ASCII."""


def current_revision(connection: Connection) -> str | None:
    """Return the revision of the tables that are there, None for a database without any."""
    return MigrationContext.configure(connection).get_current_revision()


def newest_revision() -> str:
    """Return the revision that this version of the server works with."""
    newest = ScriptDirectory.from_config(_config()).get_current_head()
    assert newest is not None  # there is a first one
    return newest


def upgrade(connection: Connection) -> None:
    """Bring the tables to the newest revision, within the transaction of `connection`.

    The caller must hold a lock that keeps others from doing the same.

    Raises:
        alembic.util.CommandError: The database was made by a newer version.
    """
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    [folder] = migrations.__path__
    # Options are interpolated: a % of a path stands for itself when doubled.
    config.set_main_option("script_location", str(Path(folder)).replace("%", "%%"))
    return config
