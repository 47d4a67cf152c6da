"""Engine processes that several server processes share, and the host that owns them.

Who wants an engine connects to the host's socket and says `start`, as it would to a child of its
own. The host starts one process for each set of options, and passes the connection on to it: from
then on the two talk without the host (see `child_loop`). A process that nobody is connected to any
more is ended. One that died is started again when somebody asks, which those that lost it do.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from turnwire_server.adapters.engines.child_channel import FrameChannel
from turnwire_server.adapters.engines.child_process import ChildProcess, status_text
from turnwire_server.adapters.engines.openvino import CHILD_COMMAND

__all__ = ["EngineHost"]

_logger = logging.getLogger("turnwire.engines.host")

_BACKLOG: Final = 256
"""As many as there may be workers."""
_STOP_S: Final = 5.0


class _Guest:
    """A connection that the host still has."""

    def __init__(self, host: EngineHost, channel: socket.socket) -> None:
        self._host = host
        self.engine: _Engine | None = None
        """The one it waits for."""
        self.channel = FrameChannel(on_message=self._hear, on_lost=self.leave)
        self.channel.open(channel)

    def leave(self) -> None:
        """Be the host's no more."""
        self._host.forget(self)

    def _hear(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("start", options) if self.engine is None:
                self._host.admit(self, options)
            case _:
                self.channel.close()
                self.leave()


class _Engine:
    """A process, and who waits for it."""

    def __init__(self, options: Mapping[str, Any], *, is_replacement: bool) -> None:
        self.options = options
        self.is_replacement = is_replacement
        """Whether it stands in for one that was lost; told to the first connection only."""
        self.is_ready = False
        self.failure: str | None = None
        self.waiting: list[_Guest] = []
        self.passed = 0
        """How many connections it was given."""
        self.was_lost = False
        """Whether it ended by itself."""
        self.over = asyncio.Event()
        self.child = ChildProcess(on_message=self._hear, on_lost=self.lose)

    @property
    def needs_replacement(self) -> bool:
        """Whether somebody had it, and lost it."""
        return self.is_replacement or (self.was_lost and self.is_ready)

    def lose(self) -> None:
        """Take note that it has ended."""
        self.was_lost = True
        self.over.set()

    def _hear(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("ready", _):
                self.is_ready = True
                waiting, self.waiting = self.waiting, []
                for guest in waiting:
                    try:
                        self.take(guest)
                    except ConnectionError:
                        self.waiting.append(guest)  # to hear how it ended
            case ("failed", why):
                self.failure = why
            case ("idle", count) if count == self.passed:
                self.over.set()

    def take(self, guest: _Guest) -> None:
        """Pass a connection on, or let it wait.

        Raises:
            ConnectionError: The process is gone, which nobody has heard of yet.
        """
        if not self.is_ready:
            guest.engine = self
            self.waiting.append(guest)
            return
        channel = guest.channel.detach()
        if channel is None:
            return
        try:
            self.child.send_socket(b"1" if self.is_replacement else b"0", channel)
        except ConnectionError:
            guest.channel.open(channel)
            raise
        except OSError as error:  # its end says that it was not taken: it asks again
            _logger.error("a shared engine took no connection error=%s", type(error).__name__)
        else:
            self.passed += 1
            self.is_replacement = False
        channel.close()
        guest.leave()


class EngineHost:
    """Owns the engines that are shared. Used on one loop."""

    def __init__(self, *, command: Sequence[str] = CHILD_COMMAND) -> None:
        """Make it; `start` begins.

        Args:
            command: What runs a child; tests have children of their own.
        """
        self._command = command
        self._place: Path | None = None
        self._listener: socket.socket | None = None
        self._guests: set[_Guest] = set()
        self._engines: dict[bytes, _Engine] = {}
        self._lost: set[bytes] = set()
        """Options of processes that died, and have no replacement yet."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, place: Path) -> None:
        """Listen at `place`, in a folder that only this user may enter.

        Raises:
            OSError: That is not possible.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(str(place))
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._place, self._listener = place, listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)

    async def close(self) -> None:
        """End all engines. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None and self._place is not None:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
            self._place.unlink(missing_ok=True)
        for engine in self._engines.values():
            engine.over.set()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for guest in self._guests:
            guest.channel.close()

    @property
    def place(self) -> Path | None:
        """Where it listens; None before `start`."""
        return self._place

    @property
    def engines(self) -> Sequence[ChildProcess]:
        """The processes that run now."""
        return [engine.child for engine in self._engines.values() if not engine.over.is_set()]

    # What its guests ask for.

    def admit(self, guest: _Guest, options: Mapping[str, Any]) -> None:
        """Give a connection the engine that it names."""
        key = marshal.dumps(sorted(options.items()))
        engine = self._engines.get(key)
        if engine is not None and not engine.over.is_set():
            try:
                return engine.take(guest)
            except ConnectionError:
                engine.lose()
        was_lost = key in self._lost or (engine is not None and engine.needs_replacement)
        engine = self._engines[key] = _Engine(options, is_replacement=was_lost)
        self._lost.discard(key)
        engine.take(guest)
        task = asyncio.get_running_loop().create_task(self._run(key, engine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, guest: _Guest) -> None:
        """Let go of a connection that has ended."""
        self._guests.discard(guest)
        engine = guest.engine
        if engine is not None and guest in engine.waiting:
            engine.waiting.remove(guest)
            if not engine.waiting and not engine.is_ready:
                engine.over.set()  # nobody waits any more for what it loads

    # Private.

    def _accept(self) -> None:
        if self._listener is None:
            return
        with suppress(OSError):  # it has gone again, or there is no descriptor for it
            channel, _ = self._listener.accept()
            self._guests.add(_Guest(self, channel))

    async def _run(self, key: bytes, engine: _Engine) -> None:
        """Run an engine until it is lost or not wanted."""
        child = engine.child
        try:
            await child.start(self._command)
        except OSError as error:
            engine.failure = f"its process cannot be started: {error}"
            engine.over.set()
        child.send("host", engine.options)
        await engine.over.wait()
        # One that loads does not hear that it should end.
        status = await child.stop(_STOP_S if engine.is_ready or engine.was_lost else 0)
        if self._engines.get(key) is engine:
            del self._engines[key]
            if engine.needs_replacement:
                self._lost.add(key)
        if engine.was_lost and engine.is_ready:
            _logger.error("a shared engine process ended (%s)", status_text(status))
        for guest in engine.waiting:
            if engine.failure is not None:
                guest.channel.send("failed", engine.failure)
            else:
                guest.channel.send("ended", status)
            guest.channel.close()
            self._guests.discard(guest)
