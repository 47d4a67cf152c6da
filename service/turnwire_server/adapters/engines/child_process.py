"""A child process that talks frames, seen from the event loop of its parent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

from turnwire_server.adapters.engines.child_channel import FrameChannel

__all__ = ["ChildProcess", "SharedChild", "status_text"]


class ChildProcess(FrameChannel):
    """One process and the socket to it.

    The process gets the number of its socket's descriptor as last argument, has no other
    stream, and is in a session of its own, so that signals for the terminal's group pass it by.
    It must end when its socket is closed.
    """

    _process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process; None when it never ran."""
        return None if self._process is None else self._process.pid

    async def start(self, command: Sequence[str]) -> None:
        """Run `command`.

        Raises:
            OSError: it cannot be run.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self.open(ours)

    async def stop(self, timeout_s: float) -> int | None:
        """Close the socket, and end the process if it does not end by itself.

        Args:
            timeout_s: Seconds to wait before the process is killed.

        Returns:
            Its exit status, negative for a signal; None when it never ran.
        """
        self.close()
        process = self._process
        if process is None:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                return await process.wait()
        except TimeoutError:
            process.kill()
        return await process.wait()


class SharedChild(FrameChannel):
    """A connection to a process that others use too; see `engine_host`."""

    async def start(self, place: Path) -> None:
        """Connect to the host of the process.

        Raises:
            OSError: Nobody is there.
        """
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            ours.setblocking(False)
            await self._loop.sock_connect(ours, str(place))
        except BaseException:
            ours.close()
            raise
        self.open(ours)

    async def stop(self, timeout_s: float) -> int | None:
        """Close the connection; what it had begun is cancelled. The process belongs to its host.

        Returns:
            None: the host knows its exit status.
        """
        self.close()
        return None


def status_text(status: int | None) -> str:
    """Say how a process ended."""
    if status is None:
        return "shared, see the log of its parent"
    return f"signal {-status}" if status < 0 else f"exit status {status}"
