"""The whole server of one test: real services on a simulated engine, and peers on any wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from harness.held_engine import HeldEngine
from harness.peers import GrpcPeer, HttpPeer, MemoryWirePeer, Peer, WebSocketPeer, Wire
from harness.server import RunningServer, serving
from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.engines.sim import ScriptHook, SimEngine, SimSettings
from turnwire_server.adapters.ledgers.memory import MemoryLedger
from turnwire_server.adapters.renderers.sim_chatml import SimRenderer
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.ledger import Ledger
from turnwire_server.ports.screen import Screen
from turnwire_server.ports.sealer import Sealer
from turnwire_server.ports.store import ResponseStore
from turnwire_server.runtime.connection import KeepaliveMode
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.services import Services
from turnwire_server.runtime.settings import RuntimeSettings

__all__ = ["MODEL", "Parts", "Stack", "running_stack"]

MODEL = "sim"


@dataclass(slots=True)
class Parts:
    """What a stack is made of; a test changes parts before its first peer."""

    settings: RuntimeSettings = field(default_factory=RuntimeSettings)
    sim: SimSettings = field(default_factory=SimSettings)
    script: ScriptHook | None = None
    screen: Screen | None = None
    store: ResponseStore | None = None
    ledger: Ledger | None = None
    sealer: Sealer | None = None
    clock: Clock = field(default_factory=SystemClock)


class Stack:
    """Services, and peers that are closed with them."""

    def __init__(self, services: Services, engine: HeldEngine, exits: AsyncExitStack) -> None:
        """Stand before `services`; what is opened later is put on `exits`."""
        self.services = services
        self.engine = engine
        self._exits = exits
        self._server: RunningServer | None = None

    @property
    def ledger(self) -> MemoryLedger:
        """The usage records, of a ledger in memory."""
        assert isinstance(self.services.ledger, MemoryLedger)
        return self.services.ledger

    async def connect(self, wire: Wire, *, keepalive: KeepaliveMode | None = None) -> Peer:
        """Return a new peer; the servers are started for the first one that needs them.

        Args:
            wire: Its transport.
            keepalive: What it asks for, where its wire can ask.
        """
        peer: Peer
        if wire == "memory":
            peer = MemoryWirePeer(self.services, keepalive=keepalive)
        else:
            if self._server is None:
                self._server = await self._exits.enter_async_context(serving(self.services))
            match wire:
                case "grpc":
                    peer = GrpcPeer(self._server.grpc_target)
                case "websocket":
                    peer = WebSocketPeer(self._server.websocket_url, keepalive=keepalive)
                case "http":
                    peer = HttpPeer(self._server.http_url)
        self._exits.push_async_callback(peer.close)
        await peer.open()
        return peer


@asynccontextmanager
async def running_stack(parts: Parts | None = None) -> AsyncIterator[Stack]:
    """Run a stack made of `parts`."""
    parts = parts or Parts()
    clock = parts.clock
    engine = HeldEngine(SimEngine(parts.sim, clock, script=parts.script))
    services = Services(
        ModelRegistry([ServedModel(MODEL, engine, SimRenderer(), clock.wall())]),
        store=parts.store or MemoryResponseStore(MemoryStoreSettings(), wall=clock.wall),
        ledger=parts.ledger or MemoryLedger(),
        clock=clock,
        settings=parts.settings,
        screen=parts.screen,
        sealer=parts.sealer,
    )
    await services.start()
    try:
        async with AsyncExitStack() as exits:
            yield Stack(services, engine, exits)
    finally:
        await services.close()
