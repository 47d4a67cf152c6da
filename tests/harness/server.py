"""A whole server in this process, on free ports of 127.0.0.1."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from harness.grpc_backends import on_backend
from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.engines.sim import ScriptHook, SimEngine, SimSettings
from turnwire_server.adapters.ledgers.memory import MemoryLedger
from turnwire_server.adapters.renderers.sim_chatml import SimRenderer
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.engine import Engine
from turnwire_server.ports.metrics import Metrics
from turnwire_server.ports.screen import Screen
from turnwire_server.ports.store import ResponseStore
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.services import Services
from turnwire_server.runtime.settings import RuntimeSettings
from turnwire_server.transports.grpc import GrpcSettings, make_grpc_server
from turnwire_server.transports.http import HttpSettings, make_web_app, make_web_runner

__all__ = ["RunningServer", "make_sim_services", "running_server", "serving"]


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server and where it listens."""

    services: Services
    http_port: int
    grpc_port: int

    @property
    def http_url(self) -> str:
        """Base URL of HTTP, the `base_url` of SDKs."""
        return f"http://127.0.0.1:{self.http_port}/v1"

    @property
    def websocket_url(self) -> str:
        """URL of the WebSocket."""
        return f"ws://127.0.0.1:{self.http_port}/v1/responses"

    @property
    def grpc_target(self) -> str:
        """Target as grpcio takes it."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def grpc_url(self) -> str:
        """Target as the Python client takes it."""
        return f"grpc://{self.grpc_target}"

    def url(self, wire: str) -> str:
        """Return the client's URL for `grpc`, `websocket` or `http`."""
        return {
            "grpc": self.grpc_url,
            "websocket": self.websocket_url,
            "http": self.http_url,
        }[wire]


def make_sim_services(
    *,
    sim: SimSettings | None = None,
    script: ScriptHook | None = None,
    runtime: RuntimeSettings | None = None,
    models: Sequence[str] = ("sim",),
    any_model: bool = False,
    screen: Screen | None = None,
    metrics: Metrics | None = None,
    store: ResponseStore | None = None,
) -> Services:
    """Return services on the simulated engine, not started.

    Args:
        sim: How the engine behaves; as fast as it is read when None.
        script: Decides turns, see `SimEngine`.
        runtime: Settings of the runtime.
        models: Names of the models; they share one engine.
        any_model: Whether the first answers to every name.
        screen: The safety screen.
        metrics: Counts.
        store: Where responses are kept; a memory of its own when None.
    """
    clock = SystemClock()
    engine: Engine = SimEngine(sim or SimSettings(), clock, script=script)
    renderer = SimRenderer()
    served = [ServedModel(name, engine, renderer, clock.wall()) for name in models]
    return Services(
        ModelRegistry(served, any_model=any_model),
        store=store or MemoryResponseStore(MemoryStoreSettings(), wall=clock.wall),
        ledger=MemoryLedger(),
        clock=clock,
        settings=runtime or RuntimeSettings(),
        screen=screen,
        metrics=metrics,
    )


@asynccontextmanager
async def running_server(
    *,
    sim: SimSettings | None = None,
    script: ScriptHook | None = None,
    runtime: RuntimeSettings | None = None,
    http: HttpSettings | None = None,
    grpc: GrpcSettings | None = None,
    models: Sequence[str] = ("sim",),
    any_model: bool = False,
    screen: Screen | None = None,
    store: ResponseStore | None = None,
) -> AsyncIterator[RunningServer]:
    """Run a server on the simulated engine; see `make_sim_services` for the arguments."""
    services = make_sim_services(
        sim=sim,
        script=script,
        runtime=runtime,
        models=models,
        any_model=any_model,
        screen=screen,
        store=store,
    )
    async with serving(services, http=http, grpc=grpc) as server:
        yield server


@asynccontextmanager
async def serving(
    services: Services, *, http: HttpSettings | None = None, grpc: GrpcSettings | None = None
) -> AsyncIterator[RunningServer]:
    """Start `services` and put all wires in front of them; close everything in the end."""
    http = http or HttpSettings(shutdown_timeout_s=1.0)
    grpc_server = make_grpc_server(services, on_backend(grpc))
    runner = make_web_runner(make_web_app(services, http), http)
    await services.start()
    try:
        grpc_port = grpc_server.add_insecure_port("127.0.0.1:0")
        await grpc_server.start()
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield RunningServer(services, int(runner.addresses[0][1]), grpc_port)
    finally:
        await services.close()
        await grpc_server.stop(1.0)
        await runner.cleanup()
