"""When a silent WebSocket client is pinged, and when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from turnwire_server.transports.websocket_pings import Pings

INTERVAL_S = 1000.0
"""No test waits for it: time is moved by hand."""


class Wire:
    """A socket and its transport."""

    def __init__(self) -> None:
        self.pings = 0
        self.unwritten = 0
        self.failure: Exception | None = None
        self.has_room = asyncio.Event()
        self.has_room.set()

    async def ping(self) -> None:
        self.pings += 1
        await self.has_room.wait()
        if self.failure is not None:
            raise self.failure

    def get_write_buffer_size(self) -> int:
        return self.unwritten


@contextmanager
def pinging(wire: Wire) -> Iterator[Pings]:
    pings = Pings(cast(Any, wire), cast(Any, wire), INTERVAL_S)
    try:
        yield pings
    finally:
        pings.stop()


async def after(pings: Pings, silent_s: float) -> None:
    """Let the timer look so long after the client was heard last."""
    pings._heard_at = pings._loop.time() - silent_s
    pings._look()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_a_client_is_pinged_after_each_interval_of_silence_and_not_before() -> None:
    wire = Wire()
    with pinging(wire) as pings:
        await after(pings, INTERVAL_S - 1)
        assert wire.pings == 0
        left = pings._timer.when() - pings._loop.time()
        assert 0 < left <= 1  # It looks again when the interval is over, not a whole one later.
        await after(pings, INTERVAL_S)
        await after(pings, 2 * INTERVAL_S)
        assert wire.pings == 2
        assert pings._timer.when() - pings._loop.time() > INTERVAL_S - 100


async def test_a_client_that_was_heard_is_not_pinged() -> None:
    wire = Wire()
    with pinging(wire) as pings:
        pings._heard_at -= INTERVAL_S
        pings.heard()
        pings._look()
        await asyncio.sleep(0)
    assert wire.pings == 0


async def test_what_waits_to_be_written_is_the_probe() -> None:
    wire = Wire()
    with pinging(wire) as pings:
        wire.unwritten = 1
        await after(pings, INTERVAL_S)
        assert wire.pings == 0
        wire.unwritten = 0
        wire.has_room.clear()
        await after(pings, INTERVAL_S)
        await after(pings, INTERVAL_S)  # The first ping still waits.
        assert wire.pings == 1


async def test_a_ping_to_a_client_that_is_gone_is_no_error() -> None:
    wire = Wire()
    wire.failure = ConnectionResetError()
    with pinging(wire) as pings:
        await after(pings, INTERVAL_S)
        await after(pings, INTERVAL_S)
    assert wire.pings == 2


async def test_the_end_stops_the_timer_and_the_ping_that_waits() -> None:
    wire = Wire()
    wire.has_room.clear()
    with pinging(wire) as pings:
        await after(pings, INTERVAL_S)
        waiting = pings._ping
        assert waiting is not None
    await asyncio.wait((waiting,), timeout=20)
    assert waiting.cancelled() and pings._timer.cancelled()
