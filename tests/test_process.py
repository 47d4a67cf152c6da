from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from harness.clock import ManualClock
from harness.server import make_sim_services
from turnwire_server import process
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
    assert len(given) == 1
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
