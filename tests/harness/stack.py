"""The whole server of one test: real services on a simulated engine, and peers on any wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from harness.held_engine import HeldEngine
from harness.peers import GrpcPeer, HttpPeer, MemoryWirePeer, Peer, WebSocketPeer, Wire
from harness.server import RunningServer, serving
from harness.tcp_proxy import tcp_proxy
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
from turnwire_server.transports.grpc import GrpcSettings
from turnwire_server.transports.http import HttpSettings

__all__ = ["MODEL", "Parts", "Stack", "one_peer", "running_stack"]

MODEL = "sim"


@dataclass(slots=True)
class Parts:
    """What a stack is made of; a test changes parts before its first peer."""

    settings: RuntimeSettings = field(default_factory=RuntimeSettings)
    sim: SimSettings = field(default_factory=SimSettings)
    script: ScriptHook | None = None
    screen: Screen | None = None
    store: ResponseStore | None = None
    database: str = ""
    """URL of the database that keeps responses and conversations; in memory without one."""
    ledger: Ledger | None = None
    sealer: Sealer | None = None
    clock: Clock = field(default_factory=SystemClock)
    http: HttpSettings | None = None
    grpc: GrpcSettings | None = None


class Stack:
    """Services, and peers that are closed with them."""

    def __init__(
        self, services: Services, engine: HeldEngine, exits: AsyncExitStack, parts: Parts
    ) -> None:
        """Stand before `services`; what is opened later is put on `exits`."""
        self._parts = parts
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
            server = await self._serving()
            match wire:
                case "grpc":
                    peer = GrpcPeer(server.grpc_target)
                case "websocket":
                    peer = WebSocketPeer(server.websocket_url, keepalive=keepalive)
                case "http":
                    peer = HttpPeer(server.http_url)
        return await self._opened(peer)

    async def losable(self, wire: Wire) -> Peer:
        """Return a new peer of a persistent wire whose connection can be lost without a word."""
        if wire == "memory":
            return await self.connect(wire)
        server = await self._serving()
        port = server.grpc_port if wire == "grpc" else server.http_port
        proxy = await self._exits.enter_async_context(tcp_proxy(port))
        if wire == "grpc":
            return await self._opened(GrpcPeer(server.grpc_target, proxy=proxy))
        peer = WebSocketPeer(f"ws://127.0.0.1:{proxy.port}/v1/responses")
        peer.proxy = proxy
        return await self._opened(peer)

    async def with_deadline(self, timeout_s: float) -> Peer:
        """Return a new gRPC peer whose call may last so long."""
        server = await self._serving()
        return await self._opened(GrpcPeer(server.grpc_target, timeout_s=timeout_s))

    async def _opened(self, peer: Peer) -> Peer:
        self._exits.push_async_callback(peer.close)
        await peer.open()
        return peer

    async def _serving(self) -> RunningServer:
        if self._server is None:
            wires = serving(self.services, http=self._parts.http, grpc=self._parts.grpc)
            self._server = await self._exits.enter_async_context(wires)
        return self._server


@asynccontextmanager
async def running_stack(parts: Parts | None = None) -> AsyncIterator[Stack]:
    """Run a stack made of `parts`."""
    parts = parts or Parts()
    clock = parts.clock
    engine = HeldEngine(SimEngine(parts.sim, clock, script=parts.script))
    async with AsyncExitStack() as bases:
        store, conversations = parts.store, None
        if parts.database:
            # Imported here: most tests need no database.
            from harness.stores import sql_stores

            stores = await bases.enter_async_context(sql_stores(parts.database, clock))
            store, conversations = store or stores.responses, stores.conversations
        services = Services(
            ModelRegistry([ServedModel(MODEL, engine, SimRenderer(), clock.wall())]),
            store=store or MemoryResponseStore(MemoryStoreSettings(), wall=clock.wall),
            conversations=conversations,
            ledger=parts.ledger or MemoryLedger(),
            clock=clock,
            settings=parts.settings,
            screen=parts.screen,
            sealer=parts.sealer,
        )
        await services.start()
        try:
            async with AsyncExitStack() as exits:
                yield Stack(services, engine, exits, parts)
        finally:
            await services.close()


@asynccontextmanager
async def one_peer(**parts: Any) -> AsyncIterator[tuple[Stack, MemoryWirePeer]]:
    """Run a server made of such `Parts`, with one peer in memory."""
    async with running_stack(Parts(**parts)) as stack:
        peer = await stack.connect("memory")
        assert isinstance(peer, MemoryWirePeer)
        yield stack, peer
