from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from unittest.mock import MagicMock

import pytest

from harness.clock import ManualClock
from harness.memory import MemorySink
from harness.server import make_sim_services
from turnwire_server import process
from turnwire_server.app import Server
from turnwire_server.config import load_config
from turnwire_server.runtime.connection import Connection
from turnwire_server.runtime.resting import REST_S, RestingSessions


class _Session:
    is_idle = True
    rested = False

    def rest(self) -> Iterator[None]:
        self.rested = True
        yield


class _Host:
    def __init__(self) -> None:
        self.session = _Session()


async def test_a_quiet_server_compresses_what_rests_and_gives_memory_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services, clock, host, given = make_sim_services(), ManualClock(), _Host(), []
    emptied: list[int] = []
    services.clock, services.resting = clock, RestingSessions(clock)
    services.resting.note(host)
    monkeypatch.setattr(type(services), "connection_count", 7)

    class EmptyCaches:
        def __init__(self, count: Callable[[], int]) -> None:
            self.count = count

        def look(self) -> bool:
            return False

        def __call__(self) -> None:
            emptied.append(self.count())

    monkeypatch.setattr(process, "EmptyCaches", EmptyCaches)
    monkeypatch.setattr(process, "find_trim", lambda: lambda: given.append(clock.monotonic()))
    monkeypatch.setattr(process, "_worked", lambda: 0.0)
    tidying = asyncio.create_task(process._tidy(services))
    await asyncio.sleep(0)
    await clock.run_for(REST_S + 2.5)
    tidying.cancel()
    await asyncio.gather(tidying, return_exceptions=True)
    assert host.session.rested
    assert len(given) == 2  # what the start left, and what rested
    assert emptied == [7]


async def test_where_memory_cannot_be_given_back_sessions_rest_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services, clock, host = make_sim_services(), ManualClock(), _Host()
    services.clock, services.resting = clock, RestingSessions(clock)
    services.resting.note(host)
    monkeypatch.setattr(process, "find_trim", lambda: None)
    monkeypatch.setattr(process, "_worked", lambda: 0.0)
    tidying = asyncio.create_task(process._tidy(services))
    await asyncio.sleep(0)
    await clock.run_for(REST_S + 2.5)
    assert not tidying.done()
    tidying.cancel()
    await asyncio.gather(tidying, return_exceptions=True)
    assert host.session.rested


async def test_a_server_takes_no_arenas_while_a_hundred_are_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections: list[Connection] = []
    switched: list[tuple[int, bool]] = []
    stop = asyncio.Event()

    def ready(server: Server) -> None:
        while len(connections) < 100:
            connections.append(server.services.connect(MemorySink(), wire="websocket"))
        while connections:
            server.services.forget(connections.pop())
        stop.set()

    monkeypatch.setattr(
        process,
        "find_arena_switch",
        lambda: lambda is_allowed: switched.append((len(connections), is_allowed)),
    )
    # What the tests have made by now does not live as long as their process.
    monkeypatch.setattr(process, "gc", MagicMock())
    config = load_config(
        environment={},
        options={
            **{"http.address": "127.0.0.1:0", "grpc.address": "127.0.0.1:0"},
            **{"models": [{"engine": "sim"}], "sealing.keys": ["A" * 43], "database.url": "memory"},
        },
    )
    async with asyncio.timeout(30):
        await process.serve(config, on_ready=ready, stop=stop)
    # While the hundredth opens 99 are noted here.
    assert switched == [(99, False), (50, True)]


async def test_where_arenas_cannot_be_refused_nobody_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services = make_sim_services()
    told_before = services.on_connections
    monkeypatch.setattr(process, "find_arena_switch", lambda: None)
    process._limit_arenas(services)
    assert services.on_connections is told_before
