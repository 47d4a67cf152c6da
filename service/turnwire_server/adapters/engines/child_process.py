"""A child process that talks frames, seen from the event loop of its parent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from turnwire_server.adapters.engines.child_frames import FrameReader, pack_frame

__all__ = ["ChildProcess"]

_RECEIVE_BYTES: Final = 256 * 1024


class ChildProcess:
    """One process and the socket to it. Sending never blocks; receiving calls back.

    The process gets the number of its socket's descriptor as last argument, has no other
    stream, and is in a session of its own, so that signals for the terminal's group pass it by.
    It must end when its socket is closed.
    """

    def __init__(
        self,
        *,
        on_message: Callable[[tuple[Any, ...]], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Prepare; `start` begins.

        Args:
            on_message: Called with each message, in order.
            on_lost: Called once when the child closed its end, unless `stop` came first.
        """
        self._on_message = on_message
        self._on_lost = on_lost
        self._frames = FrameReader()
        self._unsent = bytearray()
        self._channel: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._loop = asyncio.get_running_loop()

    async def start(self, command: Sequence[str]) -> None:
        """Run `command`.

        Raises:
            OSError: it cannot be run.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
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
        self._channel = ours
        self._loop.add_reader(ours.fileno(), self._receive)

    def send(self, *message: object) -> None:
        """Send `message`; kept and sent later when the child does not read fast enough.

        A child that is gone gets nothing; `on_lost` says so.
        """
        channel = self._channel
        if channel is None:
            return
        data = pack_frame(*message)
        sent = 0
        if not self._unsent:
            try:
                sent = channel.send(data)
            except BlockingIOError:
                pass
            except OSError:
                return  # the reader notices too, and it has what the child said before
        if sent < len(data):
            if not self._unsent:
                self._loop.add_writer(channel.fileno(), self._send_rest)
            self._unsent += data[sent:]

    async def stop(self, timeout_s: float) -> int | None:
        """Close the socket, and end the process if it does not end by itself.

        Args:
            timeout_s: Seconds to wait before the process is killed.

        Returns:
            Its exit status, negative for a signal; None when it never ran.
        """
        self._disconnect()
        process = self._process
        if process is None:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                return await process.wait()
        except TimeoutError:
            process.kill()
        return await process.wait()

    def _receive(self) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            data = channel.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect()
            self._on_lost()
            return
        for message in list(self._frames.feed(data)):
            self._on_message(message)

    def _send_rest(self) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            del self._unsent[: channel.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
        if not self._unsent:
            self._loop.remove_writer(channel.fileno())

    def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._loop.remove_reader(channel.fileno())
            self._loop.remove_writer(channel.fileno())
            channel.close()
        self._unsent.clear()
