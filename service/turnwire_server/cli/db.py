"""`turnwire db`: bring the database up to date, and remove what has expired."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.database.failure import DatabaseFailure
from turnwire_server.cli.failure import CommandFailure
from turnwire_server.config import Config, ConfigFailure, load_config
from turnwire_server.ports.store import StoreFailure

if TYPE_CHECKING:
    from turnwire_server.adapters.database.engine import Database

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to `commands`, which argparse's `add_subparsers` returned."""
    parser = commands.add_parser(
        "db",
        help="care for the database",
        description="Care for the database of the configuration (database.url).",
    )
    parts = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add(
        parts,
        "upgrade",
        _upgrade,
        "bring its tables up to date, as every server does when it starts",
    )
    _add(
        parts,
        "prune",
        _prune,
        "remove what has expired, as running servers do now and then",
    )


def _add(
    parts: Any, name: str, command: Callable[[Database], Coroutine[None, None, str]], text: str
) -> None:
    parser = parts.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a turnwire.toml")
    parser.set_defaults(run=lambda options: _run(options, command))


def _run(
    options: argparse.Namespace, command: Callable[[Database], Coroutine[None, None, str]]
) -> int:
    try:
        config = load_config(options.config)
    except ConfigFailure as failure:
        raise CommandFailure(str(failure)) from None
    said = asyncio.run(_with_database(config, command))
    sys.stdout.write(f"{said}\n")
    return 0


async def _with_database(
    config: Config, command: Callable[[Database], Coroutine[None, None, str]]
) -> str:
    if config.database.is_memory:
        raise CommandFailure("The configuration has no database (database.url).")
    try:
        # Imported here, because most commands need no database.
        from turnwire_server.adapters.database.engine import Database
    except ModuleNotFoundError as error:
        raise CommandFailure(
            f"The database needs {error.name}, which is not installed. Install it with: "
            "pip install 'turnwire[server]'"
        ) from None
    try:
        database = Database(config.database)
        try:
            return await command(database)
        finally:
            await database.close()
    except DatabaseFailure as failure:
        raise CommandFailure(str(failure)) from None
    except StoreFailure as failure:
        raise CommandFailure(f"The database cannot be used: {failure}.") from None


async def _upgrade(database: Database) -> str:
    before, now = await database.migrate()
    if before == now:
        return f"{database.name}: up to date (revision {now})"
    return f"{database.name}: upgraded from {before or 'empty'} to revision {now}"


async def _prune(database: Database) -> str:
    from turnwire_server.adapters.stores.segments import SegmentBook
    from turnwire_server.adapters.stores.sql import SqlResponseStore

    await database.migrate()
    store = SqlResponseStore(database, SystemClock(), SegmentBook())
    expired, orphans = await store.prune()
    said = f"{database.name}: removed {expired} expired responses and {orphans} unused segments"
    if database.needs_scrub.is_set():
        said += "; their content leaves the disk when no server reads any more"
    return said
