"""Several server processes on the same ports, and the parent that keeps them running.

The parent serves nothing. It finds free ports, starts the workers, passes its signals on, and
starts a worker again that dies. What a worker is told goes through its standard input, whose end
is an order too: no worker outlives its parent, however that ends. It also owns the engine processes
that the workers share, so that the end of a worker is not theirs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from turnwire_server.adapters.engines.engine_host import EngineHost
from turnwire_server.app import StartFailure
from turnwire_server.config import Address
from turnwire_server.process import DRAIN, RELOAD, STOP

__all__ = ["Plan", "ReservedPorts", "Supervisor", "supervise"]

_log = logging.getLogger("turnwire.supervisor")

_SETTLED_S: Final = 10.0
"""A worker that has served for so long is one that works."""
_FIRST_DELAY_S: Final = 0.25
_LONGEST_DELAY_S: Final = 30.0
_MOST_FAILURES: Final = 6
"""So often in a row each worker must fail before the server is given up."""
_STOP_S: Final = 60.0
"""How long a worker may take to end in order, beside the time to drain."""
_PORT_TRIES: Final = 20


class ReservedPorts:
    """Ports that several processes may listen on, ours for as long as this is open.

    Nothing listens here: the workers do, and the kernel gives each connection to one of them.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def reserve(self, what: str, address: Address) -> Address:
        """Take an address for the workers; return it with its real port.

        Args:
            what: What is served there, for the message.
            address: Where; port 0 takes a free one.

        Raises:
            StartFailure: It cannot be had.
        """
        if not hasattr(socket, "SO_REUSEPORT"):
            raise StartFailure("Several workers need SO_REUSEPORT, which this system lacks.")
        tries = _PORT_TRIES if address.port == 0 else 1
        for left in reversed(range(tries)):
            bound: list[socket.socket] = []
            try:
                port = _bind_all(address, bound)
            except OSError as error:
                for one in bound:
                    one.close()
                if left:  # on another address of the host somebody has that very port
                    continue
                reason = error.strerror or "the address cannot be used"
                raise StartFailure(f"{what} cannot listen on {address}: {reason}.") from None
            self._sockets += bound
            return Address(address.host, port)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Give them back."""
        for one in self._sockets:
            one.close()
        self._sockets.clear()


def _bind_all(address: Address, bound: list[socket.socket]) -> int:
    """Bind a socket on every address of the host; add them to `bound`, return the port."""
    port = address.port
    found = socket.getaddrinfo(address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, number, _, where in dict.fromkeys(found):
        place = (where[0], port, *where[2:])
        if port:
            _check_free(family, kind, number, place)
        one = socket.socket(family, kind, number)
        bound.append(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:  # as the listeners do: the IPv4 one is another socket
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(place)
        port = int(one.getsockname()[1])
    return port


def _check_free(family: int, kind: int, number: int, place: tuple[Any, ...]) -> None:
    """Raise OSError when somebody listens there: another server that shares its port, say."""
    with socket.socket(family, kind, number) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind(place)
        probe.listen(1)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which workers there are."""

    count: int
    command: Callable[[int], Sequence[str]]
    """Returns the command of the worker with this number, from 0 on. It writes a line of JSON when
    it is ready, and follows the orders of `process` on its standard input."""
    grace_s: float
    """For how long a worker may drain, in seconds."""
    engines: Path | None = None
    """Where workers find the engines that they share; None when there are none."""


@dataclass(slots=True, eq=False)
class _Worker:
    """One of them, through all its starts."""

    number: int
    process: Process | None = None
    said: dict[str, Any] | None = None
    """What it said when it was ready; None while it is not."""
    ready_at: float = 0.0
    """Seconds on the loop's clock."""
    failures: int = 0
    """How often in a row it died before it had settled."""

    @property
    def delay_s(self) -> float:
        """How long to wait before the next start."""
        if self.failures < 2:
            return 0.0
        return min(_FIRST_DELAY_S * 2.0 ** (self.failures - 2), _LONGEST_DELAY_S)

    def has_settled(self, now: float) -> bool:
        """Whether it has served for a while."""
        return self.said is not None and now - self.ready_at >= _SETTLED_S

    def order(self, order: int) -> None:
        """Tell it something, if it lives."""
        if self.process is None or self.process.stdin is None:
            return
        with suppress(OSError, RuntimeError):  # it is about to be found dead
            self.process.stdin.write(bytes((order,)))


@dataclass(slots=True, eq=False)
class _State:
    """How far it is."""

    has_started: bool = False
    """Whether all workers were ready once."""
    order: int | None = None
    """The order to end, once it was given."""
    problems: list[str] = field(default_factory=list)
    """Why the server did not end as it should."""


class Supervisor:
    """Starts the workers, and starts them again. Used on one loop."""

    def __init__(self, plan: Plan) -> None:
        """Make it; `run` begins."""
        self._plan = plan
        self._workers = [_Worker(number) for number in range(plan.count)]
        self._state = _State()
        self._news = asyncio.Event()
        self._ending = asyncio.Event()
        self._limit: asyncio.TimerHandle | None = None

    async def run(self, on_ready: Callable[[list[dict[str, Any]]], None]) -> None:
        """Keep the workers running until an order to end, and until they have ended.

        Args:
            on_ready: Called once, with what each said, when all are ready.

        Raises:
            StartFailure: One did not start, or all failed again and again, or not all ended as
                they should.
        """
        try:
            async with asyncio.TaskGroup() as keeping:
                # One goes ahead: it makes what is not there yet, the database and the keys, and
                # says once, not for each worker, what is wrong.
                for group in (self._workers[:1], self._workers[1:]):
                    for worker in group:
                        keeping.create_task(self._keep(worker))
                    await self._until_ready(group)
                if self._state.order is None:
                    self._state.has_started = True
                    on_ready([worker.said for worker in self._workers if worker.said is not None])
        finally:
            if self._limit is not None:
                self._limit.cancel()
        if self._state.problems:
            raise StartFailure(" ".join(self._state.problems))

    def drain(self) -> None:
        """Let the workers finish what runs; the second time, end at once."""
        self._end(DRAIN if self._state.order is None else STOP)

    def stop(self) -> None:
        """End the workers at once, in order."""
        self._end(STOP)

    def reload(self) -> None:
        """Let the workers read their configuration again."""
        for worker in self._workers:
            worker.order(RELOAD)

    # Private.

    def _end(self, order: int) -> None:
        self._state.order = order
        self._ending.set()
        self._news.set()
        for worker in self._workers:
            worker.order(order)
        if self._limit is not None:
            self._limit.cancel()
        limit_s = _STOP_S + (self._plan.grace_s if order == DRAIN else 0.0)
        self._limit = asyncio.get_running_loop().call_later(limit_s, self._kill)

    def _kill(self) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.process.returncode is None:
                _log.error("worker killed: it did not end number=%d", worker.number)
                worker.process.kill()

    async def _until_ready(self, workers: Sequence[_Worker]) -> None:
        while self._state.order is None and any(worker.said is None for worker in workers):
            self._news.clear()
            await self._news.wait()

    async def _keep(self, worker: _Worker) -> None:
        """Keep one worker running."""
        while await self._rest(worker.delay_s):
            code, had_settled, was_ready = await self._live(worker)
            if self._state.order is not None:
                # Whoever signals a group of processes reaches one that cannot hear it yet.
                if code and (was_ready or code != -signal.SIGTERM):
                    self._state.problems.append(f"Worker {worker.number} ended with {code}.")
                return
            if not self._state.has_started:
                return self._give_up(f"Worker {worker.number} did not start (exit code {code}).")
            worker.failures = 1 if had_settled else worker.failures + 1
            if self._all_fail():
                return self._give_up(
                    f"No worker stays alive: each ended {_MOST_FAILURES} times in a row or more "
                    f"within {_SETTLED_S:g} s, the last one with exit code {code}."
                )
            _log.error(
                "worker ended number=%d exit_code=%s; starting it again in %g s",
                *(worker.number, code, worker.delay_s),
            )

    def _give_up(self, problem: str) -> None:
        self._state.problems.append(problem)
        self._end(STOP)

    def _all_fail(self) -> bool:
        now = asyncio.get_running_loop().time()
        return all(
            worker.failures >= _MOST_FAILURES and not worker.has_settled(now)
            for worker in self._workers
        )

    async def _rest(self, seconds: float) -> bool:
        """Wait; return whether to go on."""
        if seconds and not self._ending.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ending.wait()
        return not self._ending.is_set()

    async def _live(self, worker: _Worker) -> tuple[int, bool, bool]:
        """Run a worker's process once; return exit code, if it had settled, if it was ready."""
        loop = asyncio.get_running_loop()
        process = await asyncio.create_subprocess_exec(
            *self._plan.command(worker.number),
            stdin=PIPE,
            stdout=PIPE,
            # Ctrl-C on a terminal is for the parent, which tells the workers.
            start_new_session=True,
        )
        worker.process = process
        if self._state.order is not None:  # it was given while the process was made
            worker.order(self._state.order)
        try:
            assert process.stdout is not None
            if line := await process.stdout.readline():
                worker.said, worker.ready_at = json.loads(line), loop.time()
                self._news.set()
                if self._state.has_started:
                    _log.warning("worker serves again number=%d pid=%d", worker.number, process.pid)
            code = await process.wait()
            return code, worker.has_settled(loop.time()), worker.said is not None
        finally:
            worker.process = worker.said = None
            if process.returncode is None:
                process.kill()
                await process.wait()


async def supervise(
    plan: Plan,
    *,
    on_ready: Callable[[list[dict[str, Any]]], None],
    until_stdin_closes: bool = False,
) -> None:
    """Run workers until a signal ends them; see `Supervisor.run`.

    SIGTERM drains them, once more or SIGINT stops them at once, SIGHUP lets them read their
    configuration again.

    Args:
        plan: Which.
        on_ready: Called once, with what each said, when all are ready.
        until_stdin_closes: Also stop at the end of the standard input.

    Raises:
        StartFailure: As `Supervisor.run`.
    """
    supervisor, loop = Supervisor(plan), asyncio.get_running_loop()
    engines = EngineHost()
    if plan.engines is not None:
        try:
            engines.start(plan.engines)
        except OSError as error:
            reason = error.strerror or "its name is too long"
            raise StartFailure(f"The workers' directory cannot be used: {reason}.") from None
    loop.add_signal_handler(signal.SIGTERM, supervisor.drain)
    loop.add_signal_handler(signal.SIGINT, supervisor.stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    if until_stdin_closes:
        _watch_stdin(supervisor.stop)
    try:
        await supervisor.run(on_ready)
    finally:
        await engines.close()


def _watch_stdin(ended: Callable[[], None]) -> None:
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            ended()

    loop.add_reader(descriptor, read)
