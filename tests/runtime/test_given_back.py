from __future__ import annotations

import asyncio
import gc
import json
import logging
import weakref
from collections.abc import Iterator, Sequence

import pytest

from harness.memory import MemoryPeer
from harness.server import make_sim_services
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.item_pb2 import Item
from turnwire_server.ports.screen import Screen, ScreenFailure, Verdict
from turnwire_server.runtime.run import TurnRun

PACED = {"tokens": 9, "tokens_per_second": 1_000}


class AllowingScreen:
    async def check(
        self, state: bytes, new_items: Sequence[Item], *, instructions: str = ""
    ) -> Verdict:
        await asyncio.sleep(0)
        return Verdict(allowed=True)


class BrokenScreen:
    async def check(
        self, state: bytes, new_items: Sequence[Item], *, instructions: str = ""
    ) -> Verdict:
        await asyncio.sleep(0)
        raise ScreenFailure("no connection")


@pytest.fixture
def no_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    yield
    if was_enabled:
        gc.enable()


def runs(known: Sequence[TurnRun] = ()) -> list[TurnRun]:
    """Return the turns that are in memory, but for those of other tests."""
    found = [each for each in gc.get_objects() if type(each) is TurnRun]
    return [each for each in found if not any(each is other for other in known)]


async def run_session(services, says: dict[str, object]) -> list[weakref.ref[object]]:
    """Run a session with one turn to its end; return what must not be there any more."""
    peer = MemoryPeer(services)
    host = peer.connection._host
    gone = [weakref.ref(host), weakref.ref(peer.connection), weakref.ref(host.session)]
    create = ResponseCreate(
        model="sim",
        input={"text": "hi"},
        store=False,
        metadata={"turnwire.sim": json.dumps(says)} if says else {},
    )
    await peer.send(ClientEvent(response_create=create))
    async with asyncio.timeout(20):
        while True:
            event = await peer.receive()
            if event.HasField("response_created") and says:
                ((_, run),) = services.running.values()
                gone.append(weakref.ref(run.generation))
                del run
            if event.HasField("response_completed") or event.HasField("response_failed"):
                break
        await peer.close()
    return gone


@pytest.mark.parametrize("screen", [None, AllowingScreen(), BrokenScreen()])
@pytest.mark.parametrize("says", [{}, PACED, {**PACED, "fail_after": 4}])
async def test_a_session_that_is_over_is_given_back_without_a_collection(
    no_collection: None,
    says: dict[str, object],
    screen: Screen | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # What pytest keeps of a log holds the exception in it, and that the turn.
    caplog.set_level(logging.CRITICAL, logger="turnwire.runtime")
    services = make_sim_services(screen=screen)
    await services.start()
    try:
        known = runs()
        gone = await run_session(services, says)
        for _ in range(5):  # the loop drops what it has called
            await asyncio.sleep(0)
        assert [each() for each in gone] == [None] * len(gone)
        assert not runs(known)
    finally:
        await services.close()
