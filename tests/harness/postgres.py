"""A PostgreSQL server of the tests' own, where its programs are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from harness.ports import free_port

__all__ = ["PostgresServer", "postgres_server", "postgres_url", "running_postgres"]

_USER = "turnwire"
_START_S = 60.0
_ATTEMPTS = 3


class PostgresServer:
    """A running server; each test takes a database of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        """Know a server that listens on `port` of 127.0.0.1, with its socket in `folder`."""
        self.folder = folder
        self.port = port
        self._databases = 0

    def url(self, database: str) -> str:
        """Return the URL of a database, as the configuration takes it."""
        return f"postgresql://{_USER}:not-asked-for@127.0.0.1:{self.port}/{database}"

    async def new_database(self) -> str:
        """Make an empty database and return its URL."""
        self._databases += 1
        name = f"test_{self._databases}"
        connection = await asyncpg.connect(
            host="127.0.0.1", port=self.port, user=_USER, database="postgres"
        )
        try:
            await connection.execute(f"CREATE DATABASE {name}")
        finally:
            await connection.close()
        return self.url(name)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a server in a folder for temporary files. Blocks while it starts.

    Skips the test where PostgreSQL is not installed, unless `TURNWIRE_TEST_POSTGRES=required`.
    """
    programs = _programs()
    if programs is None:
        reason = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
        if os.environ.get("TURNWIRE_TEST_POSTGRES") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="turnwire-postgres-"))
    # It refuses to run as root; the package has made a user for it.
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        identity = {"user": "postgres", "group": "postgres", "extra_groups": []}
        shutil.chown(folder, "postgres", "postgres")
    data, log = folder / "data", folder / "log"
    try:
        subprocess.run(
            [
                *(programs / "initdb", "--pgdata", data, "--username", _USER, "--auth", "trust"),
                *("--encoding", "UTF8", "--locale", "C", "--no-sync"),
            ],
            check=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            **identity,
        )
        process, port = _start(programs, folder, log, identity)
        try:
            yield PostgresServer(folder, port)
        finally:
            process.terminate()
            try:
                process.wait(20)  # for clients that are still there
            except subprocess.TimeoutExpired:
                process.send_signal(3)  # SIGQUIT: at once
                process.wait(20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of this process."""
    with running_postgres() as server:
        yield server


@pytest.fixture
async def postgres_url(postgres_server: PostgresServer) -> str:
    """URL of an empty database."""
    return await postgres_server.new_database()


def _programs() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    # Debian keeps them out of the path, in a folder per version.
    folders = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(folders, key=lambda path: int(path.parts[-3]), default=None)
    return newest.parent if newest is not None else None


def _start(
    programs: Path, folder: Path, log: Path, identity: dict[str, Any]
) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(_ATTEMPTS):  # somebody may take the port between the look and the start
        port = free_port()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(programs / "postgres", "-D", folder / "data", "-p", str(port)),
                    *(
                        "-c",
                        "listen_addresses=127.0.0.1",
                        "-c",
                        f"unix_socket_directories={folder}",
                    ),
                    *("-c", "fsync=off", "-c", "max_connections=60", "-c", "shared_buffers=16MB"),
                ],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                **identity,
            )
        is_up = False
        try:
            is_up = _is_up(programs, folder, port, process)
        finally:
            if not is_up:
                process.kill()
                process.wait()
        if is_up:
            return process, port
    raise RuntimeError(f"PostgreSQL does not start: {log.read_text(errors='replace')[-2000:]}")


def _is_up(programs: Path, folder: Path, port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        answer = subprocess.run(
            [programs / "pg_isready", "--quiet", "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            check=False,
        )
        if answer.returncode == 0:
            return True
        time.sleep(0.05)
    return False
