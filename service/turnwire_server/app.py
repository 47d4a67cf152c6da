"""The application: parts put together from a configuration, started, and stopped in order."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import grpc
from aiohttp import web

from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.engines.sim import SimEngine, SimSettings
from turnwire_server.adapters.ledgers.memory import MemoryLedger
from turnwire_server.adapters.metrics.prometheus import PrometheusMetrics
from turnwire_server.adapters.models import CATALOGUE, ModelFailure, find_model
from turnwire_server.adapters.renderers.loading import RendererFailure, load_renderer
from turnwire_server.adapters.renderers.sim_chatml import SimRenderer
from turnwire_server.adapters.screens.rules import RuleScreen
from turnwire_server.adapters.screens.rules_file import RulesFailure, read_rules
from turnwire_server.adapters.sealing import (
    KeyFailure,
    RingSealer,
    load_or_create_keys,
    parse_key,
)
from turnwire_server.adapters.stores.memory import MemoryResponseStore
from turnwire_server.config import (
    Address,
    Config,
    ModelConfig,
    ScreenConfig,
    SealingConfig,
)
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.engine import EngineFailure
from turnwire_server.ports.screen import Screen
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.services import Services
from turnwire_server.transports.grpc import make_grpc_server
from turnwire_server.transports.http import make_web_app, make_web_runner

__all__ = ["Server", "StartFailure", "make_services", "run", "serve"]

_log = logging.getLogger("turnwire.app")

_KEY_FILE: Final = "sealing.keys"
_STOP_GRACE_S: Final = 5.0
"""How long the wires may take to say good-bye."""


class StartFailure(Exception):
    """The server cannot start. `str()` is a sentence or two for the operator."""


def _openvino_model(config: ModelConfig, models_directory: Path, clock: Clock) -> ServedModel:
    """Make a model that runs on the embedded engine."""
    if importlib.util.find_spec("openvino_genai") is None:
        raise StartFailure(
            "The engine openvino needs openvino_genai, which is not installed. Install it with: "
            "pip install 'turnwire[server,openvino]', or simulate: turnwire serve --engine sim"
        )
    # Imported here, because an install without that extra must be able to simulate.
    from turnwire_server.adapters.engines.openvino import OpenVinoEngine, OpenVinoSettings

    assert isinstance(config.settings, OpenVinoSettings)
    try:
        path = find_model(config.path, models_directory)
    except ModelFailure as failure:
        hint = ""
        if config.path in CATALOGUE:
            hint = (
                f" Get it with: turnwire models pull {config.path}"
                " — or simulate: turnwire serve --engine sim"
            )
        raise StartFailure(f"{failure}{hint}") from None
    try:
        renderer = load_renderer(config.renderer, path)
    except RendererFailure as failure:
        raise StartFailure(f"The model {config.name!r} cannot be loaded. {failure}") from None
    try:
        engine = OpenVinoEngine(replace(config.settings, model_path=path), clock=clock)
    except ValueError as error:
        raise StartFailure(f"The model {config.name!r} cannot be loaded: {error}.") from None
    return ServedModel(config.name, engine, renderer, clock.wall(), takes_steers=config.steering)


def _sim_model(config: ModelConfig, clock: Clock) -> ServedModel:
    """Make a simulated model."""
    assert isinstance(config.settings, SimSettings)
    engine = SimEngine(config.settings, clock)
    return ServedModel(
        config.name, engine, SimRenderer(), clock.wall(), takes_steers=config.steering
    )


def make_services(config: Config, *, clock: Clock | None = None) -> Services:
    """Make the runtime of a configuration; blocks while vocabularies are read.

    Raises:
        StartFailure: A model, the screen's rules or the sealing keys cannot be used.
    """
    clock = clock or SystemClock()
    models = [
        _sim_model(model, clock)
        if model.engine == "sim"
        else _openvino_model(model, config.models_directory, clock)
        for model in config.models
    ]
    return Services(
        ModelRegistry(models, any_model=config.any_model),
        store=MemoryResponseStore(config.store, wall=clock.wall),
        ledger=MemoryLedger(),
        clock=clock,
        settings=config.runtime,
        screen=_screen(config.screen),
        metrics=PrometheusMetrics() if config.http.metrics else None,
        sealer=_sealer(config.sealing),
    )


def _screen(config: ScreenConfig) -> Screen | None:
    """Make the screen that the configuration asks for."""
    if config.rules is None:
        return None
    try:
        return RuleScreen(read_rules(config.rules))
    except RulesFailure as failure:
        raise StartFailure(f"screen.rules: {failure}") from None


def _sealer(config: SealingConfig) -> RingSealer:
    """Make the sealer from the keys of the configuration, or from those of the key file."""
    try:
        if config.keys:
            return RingSealer([parse_key(key) for key in config.keys])
        return RingSealer(load_or_create_keys(config.data_dir / _KEY_FILE))
    except KeyFailure as failure:
        where = "sealing.keys: " if config.keys else ""
        raise StartFailure(
            f"{where}{failure} The keys come from sealing.keys, else from {_KEY_FILE} in "
            "sealing.data_dir."
        ) from None


class Server:
    """The services and the wires in front of them."""

    def __init__(self, config: Config, services: Services) -> None:
        """Put the wires in front of `services`; call it inside the running loop."""
        self.services = services
        self._config = config
        self._runner = make_web_runner(make_web_app(services, config.http), config.http)
        self._grpc: grpc.aio.Server | None = None
        self.http_address = config.http_address
        """Where HTTP and WebSocket are served; the real port once started."""
        self.grpc_address = config.grpc_address
        """Where gRPC is served; the real port once started."""

    @property
    def http_url(self) -> str:
        """Base URL of HTTP, the `base_url` of the official SDKs."""
        return f"http://{self.http_address}/v1"

    @property
    def websocket_url(self) -> str:
        """URL of the WebSocket."""
        return f"ws://{self.http_address}/v1/responses"

    @property
    def grpc_url(self) -> str:
        """Target of gRPC, as the Python client takes it."""
        return f"grpc://{self.grpc_address}"

    async def start(self) -> None:
        """Serve HTTP, start the engines, serve gRPC; until the engines run, `/readyz` says so.

        Raises:
            StartFailure: A port is taken, or an engine cannot start; nothing is left running.
        """
        try:
            await self._serve_http()
            await self.services.start()
            # Last: grpcio's threads are in the way of starting an engine's process, and say so.
            await self._serve_grpc()
        except EngineFailure as failure:
            await self.close()
            raise StartFailure(str(failure)) from None
        except BaseException:
            await self.close()
            raise

    async def _serve_http(self) -> None:
        await self._runner.setup()
        address = self._config.http_address
        try:
            await web.TCPSite(self._runner, address.host, address.port).start()
        except OSError as error:
            reason = error.strerror or "the address cannot be used"
            raise StartFailure(f"HTTP cannot listen on {address}: {reason}.") from None
        self.http_address = Address(address.host, int(self._runner.addresses[0][1]))

    async def _serve_grpc(self) -> None:
        address = self._config.grpc_address
        self._grpc = make_grpc_server(self.services, self._config.grpc)
        try:
            port = self._grpc.add_insecure_port(str(address))
        except RuntimeError:
            raise StartFailure(
                f"gRPC cannot listen on {address}: it is in use or not an address of this machine."
            ) from None
        await self._grpc.start()
        self.grpc_address = Address(address.host, port)

    async def close(self) -> None:
        """Stop in order: no new work, end every connection, then the wires and the engines."""
        self.services.accepting = False
        stopping = asyncio.ensure_future(self._stop_grpc())
        try:
            await self.services.close()
            await self._runner.cleanup()
        finally:
            await stopping

    async def _stop_grpc(self) -> None:
        if self._grpc is not None:
            await self._grpc.stop(_STOP_GRACE_S)


async def serve(
    config: Config,
    *,
    on_ready: Callable[[Server], None],
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`.

    Args:
        config: What to serve.
        on_ready: Called once the server takes work.
        stop: Ends the server when set.

    Raises:
        StartFailure: It cannot start.
    """
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # Windows: Ctrl-C arrives as KeyboardInterrupt
            loop.add_signal_handler(number, stop.set)
    services = await asyncio.to_thread(make_services, config)
    server = Server(config, services)
    await _start_or_stop(server, stop)
    if not stop.is_set():
        # What was made until now lives as long as the process: no collection looks at it again.
        gc.collect()
        gc.freeze()
        on_ready(server)
        await stop.wait()
    _log.info("stopping connections=%d", services.connection_count)
    await server.close()
    _log.info("stopped")


async def _start_or_stop(server: Server, stop: asyncio.Event) -> None:
    """Start, unless `stop` is set first."""
    starting = asyncio.ensure_future(server.start())
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not starting.done():
            starting.cancel()
        outcomes = await asyncio.gather(starting, stopped, return_exceptions=True)
    if isinstance(outcomes[0], StartFailure):
        raise outcomes[0]
    if starting.done() and not starting.cancelled():
        starting.result()


def run(
    config: Config, *, on_ready: Callable[[Server], None], until_stdin_closes: bool = False
) -> None:
    """Serve in this process, on uvloop where it is installed.

    Args:
        config: What to serve.
        on_ready: Called once the server takes work.
        until_stdin_closes: Also stop at the end of the standard input, so that a server that was
            started by another program does not outlive it.

    Raises:
        StartFailure: It cannot start.
    """

    async def main() -> None:
        stop = asyncio.Event()
        if until_stdin_closes:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _read_stdin, stop)
        await serve(config, on_ready=on_ready, stop=stop)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())


def _read_stdin(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
