"""The server as a process: what its signals do.

SIGTERM drains it: no new work, and what runs may finish within the grace. SIGINT, or SIGTERM once
more, ends everything at once, in order. SIGHUP reads the configuration again: keys and models are
taken over without a session being lost, and whatever cannot be used leaves everything as it is.

A process that is one of several workers takes the same orders from its parent, as bytes on its
standard input: whoever signals the parent may signal the worker too, and one SIGTERM must not
become two.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Final

from turnwire_server.adapters.allocator import EmptyCaches, find_trim
from turnwire_server.app import Server, StartFailure, make_services
from turnwire_server.config import Config
from turnwire_server.reloading import Reloading
from turnwire_server.runtime.services import Services
from turnwire_server.runtime.tidying import Tidying

__all__ = ["DRAIN", "RELOAD", "STOP", "run", "serve"]

_log = logging.getLogger("turnwire.process")

DRAIN: Final = ord("d")
"""What a parent writes in the place of SIGTERM, once or more;"""
STOP: Final = ord("s")
"""of SIGINT, as does its end;"""
RELOAD: Final = ord("r")
"""of SIGHUP."""

_GC_THRESHOLDS: Final = (700, 10, 200)
"""A full collection stops every session for as long as it takes to look at all of them. They leave
no cycles behind, so it finds next to nothing and need not come as often as by default (10)."""


async def serve(
    config: Config,
    *,
    on_ready: Callable[[Server], None],
    stop: asyncio.Event | None = None,
    load: Callable[[], Config] | None = None,
    takes_orders: bool = False,
) -> None:
    """Serve until a signal, an order or `stop` ends it.

    Args:
        config: What to serve.
        on_ready: Called once the server takes work.
        stop: Ends the server at once, in order, when set.
        load: Reads the configuration again, None where that cannot be done; a `ConfigFailure` of
            it leaves everything as it is.
        takes_orders: Whether a parent gives orders on the standard input.

    Raises:
        StartFailure: It cannot start.
    """
    stop, terminated = stop or asyncio.Event(), asyncio.Event()
    reloading: Reloading | None = None
    is_outdated = has_signal = is_orphan = False

    def terminate() -> None:
        nonlocal has_signal
        if has_signal:  # an order that came before does not count
            stop.set()
        has_signal = True
        terminated.set()

    def outlive() -> None:
        nonlocal is_orphan
        is_orphan = True
        stop.set()

    def reload() -> None:
        nonlocal is_outdated
        if reloading is None:
            is_outdated = True
        else:
            reloading.request()

    if takes_orders:
        _read_stdin({DRAIN: terminated.set, STOP: stop.set, RELOAD: reload}, outlive)
    _on_signal(signal.SIGTERM, terminate)
    _on_signal(signal.SIGINT, stop.set)
    services = await asyncio.to_thread(make_services, config)
    server = Server(config, services)
    has_started = await _unless(server.start(), stop, terminated)
    if has_started:
        reloading = Reloading(services, config, load)
        if hasattr(signal, "SIGHUP"):
            _on_signal(signal.SIGHUP, reloading.request)
        if is_outdated:
            reloading.request()
        # What was made until now lives as long as the process: no collection looks at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        on_ready(server)
        await _unless(_tidy(services), stop, terminated)
        await reloading.close()
    if has_started and not stop.is_set():
        grace_s = config.runtime.drain_grace_s
        _log.info("draining grace_s=%g connections=%d", grace_s, services.connection_count)
        await server.drain(grace_s, stop)
    _log.info("stopping connections=%d", services.connection_count)
    await server.close(is_orphan=is_orphan)
    _log.info("stopped")


_worked = time.process_time


async def _tidy(services: Services) -> None:
    """Take less memory when there is little to do, until cancelled."""
    empty_caches = EmptyCaches(lambda: services.connection_count)
    trim = find_trim() or _ignore

    def give_back() -> None:
        empty_caches()
        trim()

    tidying = Tidying(
        services.clock, _worked, services.resting.rest_one, empty_caches.look, give_back
    )
    await tidying.run()


def _on_signal(number: signal.Signals, call: Callable[[], None]) -> None:
    with suppress(NotImplementedError):  # Windows: Ctrl-C arrives as KeyboardInterrupt
        asyncio.get_running_loop().add_signal_handler(number, call)


async def _unless(work: Coroutine[None, None, object], *events: asyncio.Event) -> bool:
    """Do some work unless one of the events is set first; return whether it was done."""
    working = asyncio.ensure_future(work)
    ends = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait((working, *ends), return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_done = working.done()
        for task in (working, *ends):
            task.cancel()
        outcomes = await asyncio.gather(working, *ends, return_exceptions=True)
    if isinstance(outcomes[0], StartFailure):
        raise outcomes[0]
    if is_done:
        working.result()
    return is_done


def run(
    config: Config,
    *,
    on_ready: Callable[[Server], None],
    until_stdin_closes: bool = False,
    load: Callable[[], Config] | None = None,
    takes_orders: bool = False,
) -> None:
    """Serve in this process, on uvloop where it is installed.

    Args:
        config: What to serve.
        on_ready: Called once the server takes work.
        until_stdin_closes: Also stop at the end of the standard input, so that a server that was
            started by another program does not outlive it.
        load: See `serve`.
        takes_orders: See `serve`.

    Raises:
        StartFailure: It cannot start.
    """

    async def main() -> None:
        stop = asyncio.Event()
        if until_stdin_closes:
            _read_stdin({}, stop.set)
        await serve(config, on_ready=on_ready, stop=stop, load=load, takes_orders=takes_orders)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())


def _read_stdin(orders: Mapping[int, Callable[[], None]], ended: Callable[[], None]) -> None:
    """Follow the orders that the standard input brings; call `ended` when it ends."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        content = os.read(descriptor, 4096)
        for order in content:
            orders.get(order, _ignore)()
        if not content:
            loop.remove_reader(descriptor)
            ended()

    loop.add_reader(descriptor, read)


def _ignore() -> None:
    """Do nothing."""


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
