"""Peers of which nothing comes any more though their connection stands."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

from harness.peers import Peer
from harness.reading import response_of, text_of
from harness.resuming import resume_event, start_session
from harness.waiting import until
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import said, script
from turnwire_server.transports.grpc import GrpcSettings
from turnwire_server.transports.http import HttpSettings
from turnwire_server.transports.websocket import WebSocketSettings

FOUND_S = 20.0
"""Bound on finding a dead peer that is looked for within a second."""


async def _watched(connect: Connect) -> Peer:
    """Open a peer of a server that looks for dead ones often."""
    connect.parts.settings = replace(connect.parts.settings, heartbeat_s=3600, keepalive_s=3600)
    connect.parts.grpc = GrpcSettings(ping_interval_s=0.3, ping_timeout_s=0.3)
    websocket = WebSocketSettings(ping_interval_s=0.2, silence_limit_s=0.6, close_timeout_s=0.2)
    connect.parts.http = HttpSettings(shutdown_timeout_s=1.0, websocket=websocket)
    stack = await connect.start()
    return await stack.losable(connect.wire)


def _go_dark(peer: Peer) -> None:
    assert peer.proxy is not None
    peer.proxy.swallow()


@requirement("silence.dead")
async def test_a_dead_peer_is_found_and_its_memory_given_back(connect: Connect) -> None:
    peer = await _watched(connect)
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk", metadata=script(tokens=100))
    response_id = await stack.engine.held(hold)
    (host,) = stack.services.hosts
    references = [weakref.ref(host), weakref.ref(host.session)]
    del host
    _go_dark(peer)
    await until(lambda: not stack.services.hosts, within_s=FOUND_S)
    assert ("cancel", response_id) in stack.engine.log
    await until(lambda: not stack.services.connection_count)
    await stack.services.afterwork.finish(5)

    def is_gone() -> bool:
        gc.collect()
        return all(reference() is None for reference in references)

    await until(is_gone, within_s=FOUND_S)
    await peer.disconnect()  # nobody would answer its good-bye


@requirement("silence.dead_resumable")
async def test_a_dead_peer_has_lost_its_connection_and_not_its_session(connect: Connect) -> None:
    peer = await _watched(connect)
    stack = await connect.start()
    ticket = await start_session(peer)
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk", metadata=said("Still here."))
    response_id = await stack.engine.held(hold)
    ticket.see([await peer.receive()])
    _go_dark(peer)
    await until(lambda: stack.services.sessions.waiting, within_s=FOUND_S)
    assert ("cancel", response_id) not in stack.engine.log
    again = await stack.losable(connect.wire)
    again.checker = peer.checker
    await again.send(resume_event(ticket))
    stack.engine.release(hold)
    assert text_of(response_of(await again.finish())) == "Still here."
    await peer.disconnect()  # nobody would answer its good-bye
