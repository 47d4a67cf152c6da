"""The server of a seed: a process on fixed ports with a data directory, that can be broken."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from harness.ports import free_port
from turnwire_server.transports.grpc import GrpcBackend

__all__ = ["BrokenServerError", "FaultServer"]

_START_S = 60.0
_STOP_S = 30.0
_LOG = "server.log"


class BrokenServerError(Exception):
    """The server did not do what it must: start, or end with 0."""


class FaultServer:
    """`turnwire serve` on a simulated engine with a database in a directory."""

    def __init__(
        self, directory: Path, config: str, *, grpc_backend: GrpcBackend | None = None
    ) -> None:
        """Make a server that is not running.

        Args:
            directory: Its data; exists.
            config: Its configuration (TOML), beside addresses and directories.
            grpc_backend: What serves gRPC, None for the server's default.
        """
        self.directory = directory
        self.http_port, self.grpc_port = free_port(), free_port()
        self._more = [] if grpc_backend is None else ["--grpc-backend", grpc_backend]
        self.starts = 0
        self._process: Process | None = None
        self._lock = asyncio.Lock()
        self._config_file = directory / "turnwire.toml"
        self._config_file.write_text(config)

    @property
    def database(self) -> Path:
        """Its SQLite file."""
        return self.directory / "turnwire" / "turnwire.db"

    @property
    def http_url(self) -> str:
        """Base URL, without a relay."""
        return f"http://127.0.0.1:{self.http_port}/v1"

    @property
    def pid(self) -> int:
        """Id of its process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            BrokenServerError: It does not start.
        """
        log = (self.directory / _LOG).open("ab")
        with log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "turnwire", "serve"),
                *("--config", str(self._config_file), "--until-stdin-closes"),
                *("--http", f"127.0.0.1:{self.http_port}"),
                *("--grpc", f"127.0.0.1:{self.grpc_port}"),
                *self._more,
                stdin=PIPE,  # it must not outlive this process
                stdout=PIPE,
                stderr=log,
                env={**os.environ, "XDG_DATA_HOME": str(self.directory)},
            )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_START_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise BrokenServerError(f"it was not ready after {_START_S:g} s") from None
        if not line:
            raise BrokenServerError(f"it did not start: {self.log()[-500:]}")
        self.starts += 1

    async def kill(self) -> None:
        """Kill it in the middle of whatever it does, and start it again."""
        async with self._lock:
            assert self._process is not None
            self._process.kill()
            await self._process.wait()
            await self.start()

    async def drain(self) -> None:
        """Tell it to end, wait for that, and start it again.

        Raises:
            BrokenServerError: It ends by anything but 0, or not in time.
        """
        async with self._lock:
            await self._stop()
            await self.start()

    async def freeze(self, seconds: float) -> None:
        """Stop the process for a while; then it goes on."""
        async with self._lock:
            assert self._process is not None
            self._process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                self._process.send_signal(signal.SIGCONT)

    async def close(self) -> None:
        """End it for good.

        Raises:
            BrokenServerError: It ends by anything but 0, or not in time.
        """
        async with self._lock:
            await self._stop()

    async def abandon(self) -> None:
        """End it whatever state it is in."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def log(self) -> str:
        """Return what it logged."""
        return (self.directory / _LOG).read_text(errors="replace")

    async def _stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                code = await self._process.wait()
        except TimeoutError:
            self._process.kill()
            raise BrokenServerError(f"it did not end within {_STOP_S:g} s of SIGTERM") from None
        if code != 0:
            raise BrokenServerError(f"it ended with {code}")
