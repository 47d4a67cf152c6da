"""The database engine: opened and migrated once, then read and written in transactions.

Reads and writes are separate, because SQLite has one writer at a time: a write says so when it
begins (`BEGIN IMMEDIATE`), and within a process writes wait for each other here, in order, rather
than in SQLite's polling.

`read` and `write` are for coroutines. `run_read` and `run_write` take a function that does a whole
transaction: SQLite's runs in a thread, which costs a turn one change of threads, not one for each
statement and each cursor.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar

from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, QueuePool

from turnwire_server.adapters.database.failure import DatabaseFailure
from turnwire_server.adapters.database.migrate import (
    ADVISORY_LOCK,
    current_revision,
    newest_revision,
    upgrade,
)
from turnwire_server.adapters.database.settings import DatabaseSettings

__all__ = ["Database"]

ResultT = TypeVar("ResultT")

_log = logging.getLogger("turnwire.database")

_DRIVERS: Final = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}
_BEGIN: Final = "turnwire_begin"
"""Execution option: how a transaction of SQLite begins, "" for none."""
_CONNECT_TIMEOUT_S: Final = 10.0
_COMMAND_TIMEOUT_S: Final = 60.0
_WAL_PAUSE_S: Final = 0.02
_CHECKPOINT_WAIT_MS: Final = 50


class Database:
    """One database; see the module."""

    def __init__(self, settings: DatabaseSettings) -> None:
        """Take the settings; nothing is opened before `start`.

        Raises:
            DatabaseFailure: The URL cannot be used, or its driver is not installed.
        """
        url = _url_of(settings)
        self.settings = settings
        self.is_sqlite = url.drivername.startswith("sqlite")
        self.name = _name_of(url)
        """What the log and messages call it: no user, no password."""
        self._path = Path(url.database or "") if self.is_sqlite else None
        self._engine = _engine_of(url, settings)
        self._writes = self._engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
        self._outside = self._engine.execution_options(**{_BEGIN: ""})
        self._threads = _Threads(url, settings) if self.is_sqlite else None
        self._lock = asyncio.Lock() if self.is_sqlite else None
        self.needs_scrub = asyncio.Event()
        """Set while what was deleted may still be in SQLite's log, because others were reading."""

    @property
    def engine(self) -> AsyncEngine:
        """The engine itself, for tests and tools."""
        return self._engine

    @property
    def sync_engines(self) -> tuple[Engine, ...]:
        """What runs all statements, for who wants to listen to them."""
        own = () if self._threads is None else (self._threads.engine,)
        return (self._engine.sync_engine, *own)

    async def start(self) -> None:
        """Open the database and bring its tables to the newest revision.

        Raises:
            DatabaseFailure: It cannot be opened or used; nothing is left open.
        """
        try:
            await self.migrate()
        except BaseException:
            await self.close()
            raise

    async def migrate(self) -> tuple[str | None, str]:
        """Bring the tables to the newest revision, while others may do the same.

        Returns:
            The revisions before and after.

        Raises:
            DatabaseFailure: It cannot be opened or used.
        """
        newest = newest_revision()
        try:
            if self._path is not None:
                _create_file(self._path)
                await self._use_wal()
            async with self.read() as connection:
                before = await connection.run_sync(current_revision)
            if before != newest:
                async with self.write() as connection:
                    if not self.is_sqlite:
                        await connection.execute(
                            text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK}
                        )
                    before = await connection.run_sync(current_revision)
                    await connection.run_sync(upgrade)
        except CommandError:
            raise DatabaseFailure(
                f"The database ({self.name}) has tables that this version of turnwire does not "
                "know: it was used by a newer one."
            ) from None
        except _failures() as error:
            raise DatabaseFailure(
                f"The database ({self.name}) cannot be used: {_reason(error)}."
            ) from None
        if before != newest:
            _log.info("database migrated from=%s to=%s", before or "empty", newest)
        return before, newest

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that only reads; on SQLite it sees one state."""
        async with self._engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that is committed in the end, rolled back after an exception."""
        lock: AbstractAsyncContextManager[Any] = self._lock or nullcontext()
        async with lock, self._writes.begin() as connection:
            yield connection

    async def run_read(self, job: Callable[[Connection], ResultT]) -> ResultT:
        """Return what `job` does in a transaction that only reads; see the module."""
        if self._threads is not None:
            return await self._threads.read(job)
        async with self.read() as connection:
            return await connection.run_sync(job)

    async def run_write(self, job: Callable[[Connection], ResultT]) -> ResultT:
        """Return what `job` does in a transaction that is committed then; see the module.

        What was cancelled may be committed all the same.
        """
        if self._threads is not None:
            assert self._lock is not None
            async with self._lock:
                return await self._threads.write(job)
        async with self.write() as connection:
            return await connection.run_sync(job)

    async def scrub(self) -> bool:
        """Let what was deleted leave the disk: to be called after a deletion.

        Deleted rows are overwritten in SQLite's file; its log is moved into the file and emptied.
        Nothing is done for PostgreSQL, which has a vacuum of its own.

        Returns:
            Whether it could be done. Not while another connection reads or writes; then
            `needs_scrub` is set, and the server tries again by and by.
        """
        is_done = self._lock is None or await self._checkpoint(self._lock)
        if is_done:
            self.needs_scrub.clear()
        else:
            self.needs_scrub.set()
        return is_done

    async def _checkpoint(self, lock: asyncio.Lock) -> bool:
        async with lock, self._outside.connect() as connection:
            # Writes of this process wait meanwhile, so not for long.
            await connection.exec_driver_sql(f"PRAGMA busy_timeout={_CHECKPOINT_WAIT_MS}")
            try:
                result = await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
                is_busy = result.one()[0] != 0
            except DBAPIError as error:
                if not _is_locked(error):
                    raise
                is_busy = True
            finally:
                timeout_ms = _milliseconds(self.settings.lock_timeout_s)
                await connection.exec_driver_sql(f"PRAGMA busy_timeout={timeout_ms}")
        return not is_busy

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        if self._threads is not None:
            self._threads.close()
        await self._engine.dispose()

    async def _use_wal(self) -> None:
        """Let readers and the writer of the SQLite file not wait for each other."""
        async with asyncio.timeout(self.settings.lock_timeout_s):
            while True:
                try:
                    async with self._outside.connect() as connection:
                        result = await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
                        if result.scalar_one() == "wal":
                            return
                except DBAPIError as error:
                    if not _is_locked(error):
                        raise
                # SQLite does not wait by itself when several processes do this at once.
                await asyncio.sleep(_WAL_PAUSE_S)


class _Threads:
    """SQLite transactions, each as a whole in a thread."""

    def __init__(self, url: URL, settings: DatabaseSettings) -> None:
        self.engine = create_engine(
            url.set(drivername="sqlite+pysqlite"),
            hide_parameters=True,
            poolclass=QueuePool,
            pool_size=settings.pool_size,
        )
        _prepare_sqlite(self.engine, settings)
        self._writes = self.engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
        self._executor = ThreadPoolExecutor(settings.pool_size, "turnwire-sqlite")

    async def read(self, job: Callable[[Connection], ResultT]) -> ResultT:
        """Return what `job` does in a transaction that reads."""
        return await self._run(self.engine, job)

    async def write(self, job: Callable[[Connection], ResultT]) -> ResultT:
        """Return what `job` does in a transaction that writes."""
        return await self._run(self._writes, job)

    async def _run(self, engine: Engine, job: Callable[[Connection], ResultT]) -> ResultT:
        def run() -> ResultT:
            with engine.begin() as connection:
                return job(connection)

        return await asyncio.get_running_loop().run_in_executor(self._executor, run)

    def close(self) -> None:
        """End the threads; no transaction runs any more. Idempotent."""
        self._executor.shutdown()
        self.engine.dispose()


def _url_of(settings: DatabaseSettings) -> URL:
    if settings.url is None:
        assert settings.default_file is not None  # the configuration names one
        return URL.create("sqlite+aiosqlite", database=str(settings.default_file))
    try:
        url = make_url(settings.url)
    except (ArgumentError, ValueError):  # its text holds the URL
        raise DatabaseFailure(
            "database.url: sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/NAME is needed."
        ) from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise DatabaseFailure("database.url: it must begin with sqlite:// or postgresql://.")
    url = url.set(drivername=driver)
    if driver.startswith("sqlite") and url.database in (None, "", ":memory:"):
        raise DatabaseFailure('database.url: a file is needed; without one it is "memory".')
    if "sslmode" in url.query:  # as PostgreSQL's own library calls it
        url = url.update_query_dict({"ssl": url.query["sslmode"]})
        url = url.difference_update_query(["sslmode"])
    return url


def _name_of(url: URL) -> str:
    if url.drivername.startswith("sqlite"):
        return f"SQLite, {url.database}"
    host = url.host or "the local socket"
    return f"PostgreSQL, {url.database or 'no name'} at {host}"


def _engine_of(url: URL, settings: DatabaseSettings) -> AsyncEngine:
    # Parameters are content, and the text of an exception ends in logs.
    options: dict[str, Any] = {
        "hide_parameters": True,
        "poolclass": AsyncAdaptedQueuePool,
        "pool_size": settings.pool_size,
    }
    if url.drivername.startswith("postgresql"):
        options["pool_pre_ping"] = True  # it may have been restarted
        options["connect_args"] = {
            "timeout": _CONNECT_TIMEOUT_S,
            "command_timeout": _COMMAND_TIMEOUT_S,
        }
    try:
        engine = create_async_engine(url, **options)
    except ModuleNotFoundError as error:
        extra = "postgres" if url.drivername.startswith("postgresql") else "server"
        raise DatabaseFailure(
            f"The database needs {error.name}, which is not installed. Install it with: "
            f"pip install 'turnwire[{extra}]'"
        ) from None
    except (SQLAlchemyError, TypeError, ValueError):  # an argument of the URL; its text holds it
        raise DatabaseFailure("database.url: an argument behind the ? cannot be used.") from None
    if url.drivername.startswith("sqlite"):
        _prepare_sqlite(engine.sync_engine, settings)
    return engine


def _prepare_sqlite(engine: Engine, settings: DatabaseSettings) -> None:
    timeout_ms = _milliseconds(settings.lock_timeout_s)

    def on_connect(connection: Any, record: object) -> None:
        del record
        connection.isolation_level = None  # the driver begins nothing by itself; `on_begin` does
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout={timeout_ms}",
            "synchronous=NORMAL",  # with the write-ahead log: safe from a killed process
            "foreign_keys=ON",
            "secure_delete=ON",  # what is deleted is overwritten
            "temp_store=MEMORY",  # content goes into no other file
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def on_begin(connection: Connection) -> None:
        statement = connection.get_execution_options().get(_BEGIN, "BEGIN")
        if statement:
            connection.exec_driver_sql(statement)

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)


def _create_file(path: Path) -> None:
    """Make an empty file for its owner alone; SQLite gives its other files the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _is_locked(error: DBAPIError) -> bool:
    original = error.orig
    return isinstance(original, sqlite3.OperationalError) and "locked" in str(original)


def _failures() -> tuple[type[Exception], ...]:
    """Return what opening a database may raise; not all versions wrap what a driver raises."""
    general = (SQLAlchemyError, OSError, TimeoutError, TypeError, ValueError)
    if importlib.util.find_spec("asyncpg") is None:
        return general
    import asyncpg

    return (*general, asyncpg.PostgresError, asyncpg.InterfaceError)


def _reason(error: BaseException) -> str:
    """Return why the database cannot be used, in words that hold no address and no secret."""
    original: BaseException = error
    if isinstance(error, DBAPIError) and error.orig is not None:
        original = error.orig
    if isinstance(original, sqlite3.Error):
        return str(original)  # "unable to open database file" and the like
    if isinstance(original, TypeError):
        return "an argument behind the ? of its URL is not known"
    if isinstance(original, TimeoutError):
        return "it does not answer in time"
    if isinstance(original, OSError):
        return original.strerror or "it cannot be reached"
    known = {
        "InvalidPasswordError": "it refuses the password",
        "InvalidAuthorizationSpecificationError": "it refuses the user",
        "InvalidCatalogNameError": "there is no database of that name",
        "InsufficientPrivilegeError": "the user may not do that",
        "TooManyConnectionsError": "it has too many connections",
        "CannotConnectNowError": "it is starting or stopping",
    }
    # The driver's exceptions come wrapped; their kind is in the names of the classes.
    causes = (original, original.__cause__, original.__context__)
    names = [kind.__name__ for cause in causes if cause for kind in type(cause).__mro__]
    return next((known[name] for name in names if name in known), type(original).__name__)
