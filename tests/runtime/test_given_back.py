from __future__ import annotations

import asyncio
import gc
import weakref

from harness.memory import MemoryPeer
from harness.server import make_sim_services
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate


async def run_session(services) -> list[weakref.ref[object]]:
    """Run a session with one turn to its end; return what must not be there any more."""
    peer = MemoryPeer(services)
    host = peer.connection._host
    gone = [weakref.ref(host), weakref.ref(peer.connection), weakref.ref(host.session)]
    create = ResponseCreate(model="sim", input={"text": "hi"}, store=False)
    await peer.send(ClientEvent(response_create=create))
    async with asyncio.timeout(20):
        while not (await peer.receive()).HasField("response_completed"):
            pass
        await peer.close()
    return gone


async def test_a_session_that_is_over_is_given_back_without_a_collection() -> None:
    services = make_sim_services()
    await services.start()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        gone = await run_session(services)
        await asyncio.sleep(0)  # the loop drops what it has called
        await asyncio.sleep(0)
        assert [each() for each in gone] == [None] * 3
    finally:
        if was_enabled:
            gc.enable()
        await services.close()
