"""The application: parts put together from a configuration, and started and stopped in order."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from aiohttp import web

from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.database.failure import DatabaseFailure
from turnwire_server.adapters.engines.sim import SimEngine, SimSettings
from turnwire_server.adapters.ledgers.memory import MemoryLedger
from turnwire_server.adapters.metrics.prometheus import PrometheusMetrics
from turnwire_server.adapters.metrics.summing import sum_expositions
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
from turnwire_server.adapters.stores.conversations import MemoryConversationStore
from turnwire_server.adapters.stores.memory import MemoryResponseStore
from turnwire_server.config import (
    Address,
    Config,
    ModelConfig,
    ScreenConfig,
    SealingConfig,
)
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.conversations import ConversationStore
from turnwire_server.ports.engine import EngineFailure
from turnwire_server.ports.ledger import Ledger, LedgerFailure
from turnwire_server.ports.resource import Resource
from turnwire_server.ports.screen import Screen
from turnwire_server.ports.store import ResponseStore
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.services import Services, random_id
from turnwire_server.transports.grpc import (
    BackendFailure,
    GrpcServer,
    listen,
    make_grpc_server,
)
from turnwire_server.transports.http import make_web_app, make_web_runner
from turnwire_server.transports.siblings import Siblings
from turnwire_server.transports.tls import HTTP1, TlsFailure

if TYPE_CHECKING:
    from turnwire_server.adapters.database.engine import Database

__all__ = ["Server", "StartFailure", "make_model", "make_services"]

_log = logging.getLogger("turnwire.app")

_KEY_FILE: Final = "sealing.keys"
_INSTANCES: Final = "instances"
"""Where the journals of running servers are, in the data directory."""
_BACKLOG: Final = 4096
"""Connections over HTTP that may wait to be accepted, where the system allows as many: of a
crowd that comes at once the others would be put off, and try again in seconds."""
_STOP_GRACE_S: Final = 5.0
"""How long the wires may take to say good-bye."""


class StartFailure(Exception):
    """The server cannot start. `str()` is a sentence or two for the operator."""


def _openvino_model(
    config: ModelConfig, models_directory: Path, clock: Clock, engines: Path | None
) -> ServedModel:
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
        settings = replace(config.settings, model_path=path)
        host = engines if settings.engine_process == "shared" else None
        engine = OpenVinoEngine(settings, clock=clock, host=host)
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


def make_model(
    config: ModelConfig, models_directory: Path, clock: Clock, *, engines: Path | None = None
) -> ServedModel:
    """Make a model, whose engine is not started; blocks while its vocabulary is read.

    Args:
        config: Which.
        models_directory: Where models are that were pulled.
        clock: What the engine waits with.
        engines: Where the host of the engines that the workers share listens, if there is one.

    Raises:
        StartFailure: It cannot be used.
    """
    if config.engine == "sim":
        return _sim_model(config, clock)
    return _openvino_model(config, models_directory, clock, engines)


def make_services(config: Config, *, clock: Clock | None = None) -> Services:
    """Make the runtime of a configuration; blocks while vocabularies are read.

    Raises:
        StartFailure: A model, the database, the screen's rules or the sealing keys cannot be used.
    """
    clock = clock or SystemClock()
    models = [
        make_model(model, config.models_directory, clock, engines=config.engines)
        for model in config.models
    ]
    instance_id = random_id("inst_")
    stores = _stores(config, clock, instance_id)
    return Services(
        ModelRegistry(models, any_model=config.any_model),
        store=stores.responses,
        conversations=stores.conversations,
        resources=stores.resources,
        ledger=_ledger(config, stores.database, instance_id, clock),
        clock=clock,
        settings=config.runtime,
        screen=_screen(config.screen),
        metrics=PrometheusMetrics() if config.http.metrics else None,
        instance_id=instance_id,
        sealer=_sealer(config.sealing),
    )


class _Stores(NamedTuple):
    """Where responses and conversations are kept."""

    responses: ResponseStore
    conversations: ConversationStore
    database: Database | None = None
    """The database; it is among the resources."""
    resources: tuple[Resource, ...] = ()


def _stores(config: Config, clock: Clock, instance_id: str) -> _Stores:
    """Make the stores that the configuration asks for; nothing is opened yet."""
    if config.database.is_memory:
        responses = MemoryResponseStore(config.store, wall=clock.wall)
        return _Stores(responses, MemoryConversationStore(config.store.max_bytes))
    try:
        # Imported here: they take a while, and a server without a database needs none of it.
        from turnwire_server.adapters.database.engine import Database
        from turnwire_server.adapters.stores.segments import SegmentBook
        from turnwire_server.adapters.stores.sql import SqlResponseStore
        from turnwire_server.adapters.stores.sql_conversations import SqlConversationStore
        from turnwire_server.adapters.stores.sql_heartbeat import Heartbeat
        from turnwire_server.adapters.stores.sql_maintenance import StoreMaintenance
    except ModuleNotFoundError as error:
        raise StartFailure(
            f"The database needs {error.name}, which is not installed. Install it with: "
            "pip install 'turnwire[server]', or keep nothing: TURNWIRE_DATABASE_URL=memory"
        ) from None
    try:
        database = Database(config.database)
    except DatabaseFailure as failure:
        raise StartFailure(str(failure)) from None
    book = SegmentBook()
    store = SqlResponseStore(database, clock, book)
    heartbeat = Heartbeat(database, store, clock, instance_id=instance_id)
    return _Stores(
        store,
        SqlConversationStore(database, book),
        database,
        (database, StoreMaintenance(database, store, clock), heartbeat),
    )


def _ledger(config: Config, database: Database | None, instance_id: str, clock: Clock) -> Ledger:
    """Make the ledger; without a database it lives and dies with the process."""
    if database is None:
        if config.usage.export_file is not None or config.usage.webhook_url is not None:
            raise StartFailure("usage: an export needs a database (database.url).")
        return MemoryLedger()
    # Imported here, like the stores.
    from turnwire_server.adapters.ledgers.making import make_ledger

    try:
        return make_ledger(
            database,
            directory=config.data_dir / _INSTANCES,
            instance_id=instance_id,
            clock=clock,
            settings=config.usage,
            prices=config.prices,
        )
    except LedgerFailure as failure:
        raise StartFailure(str(failure)) from None


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


def _siblings(config: Config, services: Services) -> Siblings | None:
    """Return the server's workers when this process is one of them."""
    place = config.worker
    if place is None:
        return None
    return Siblings(services, place.directory, place.number, add=sum_expositions)


class Server:
    """The services and the wires in front of them."""

    def __init__(self, config: Config, services: Services) -> None:
        """Put the wires in front of `services`; call it inside the running loop."""
        self.services = services
        self._config = config
        self._siblings = _siblings(config, services)
        exposition = None if self._siblings is None else self._siblings.exposition
        app = make_web_app(services, config.http, exposition=exposition)
        self._runner = make_web_runner(app, config.http)
        self._grpc: GrpcServer | None = None
        self.http_address = config.http_address
        """Where HTTP and WebSocket are served; the real port once started."""
        self.grpc_address = config.grpc_address
        """Where gRPC is served; the real port once started."""

    @property
    def http_url(self) -> str:
        """Base URL of HTTP, the `base_url` of the official SDKs."""
        return f"http{self._s}://{self.http_address}/v1"

    @property
    def websocket_url(self) -> str:
        """URL of the WebSocket."""
        return f"ws{self._s}://{self.http_address}/v1/responses"

    @property
    def grpc_url(self) -> str:
        """Target of gRPC, as the Python client takes it."""
        return f"grpc{self._s}://{self.grpc_address}"

    @property
    def _s(self) -> str:
        """What schemes end with: all of them say the same way that there is TLS."""
        return "" if self._config.tls is None else "s"

    async def start(self) -> None:
        """Serve HTTP, start the engines, serve gRPC; until the engines run, `/readyz` says so.

        One of several workers serves nothing before its engines run: the others do.

        Raises:
            StartFailure: A port is taken, or the database or an engine cannot be used; nothing is
                left running.
        """
        try:
            if self._siblings is None:
                await self._serve_http()
            await self.services.start()
            if self._siblings is not None:
                await self._serve_siblings(self._siblings)
                await self._serve_http()
            # Last: grpcio's threads are in the way of starting an engine's process, and say so.
            await self._serve_grpc()
        except (DatabaseFailure, EngineFailure, LedgerFailure) as failure:
            await self.close()
            raise StartFailure(str(failure)) from None
        except BaseException:
            await self.close()
            raise

    async def _serve_http(self) -> None:
        await self._runner.setup()
        address, tls = self._config.http_address, self._config.tls
        try:
            context = None if tls is None else tls.context(HTTP1)
        except TlsFailure as failure:
            raise StartFailure(str(failure)) from None
        try:
            await web.TCPSite(
                self._runner,
                address.host,
                address.port,
                ssl_context=context,
                backlog=_BACKLOG,
                reuse_port=True if self._config.worker else None,
            ).start()
        except OSError as error:
            reason = error.strerror or "the address cannot be used"
            raise StartFailure(f"HTTP cannot listen on {address}: {reason}.") from None
        self.http_address = Address(address.host, int(self._runner.addresses[0][1]))

    async def _serve_siblings(self, siblings: Siblings) -> None:
        try:
            await siblings.start()
        except OSError as error:
            reason = error.strerror or "its name is too long"
            raise StartFailure(f"The workers' directory cannot be used: {reason}.") from None

    async def _serve_grpc(self) -> None:
        address = self._config.grpc_address
        try:
            self._grpc = make_grpc_server(self.services, self._config.grpc)
            port = listen(self._grpc, str(address), self._config.tls)
        except (BackendFailure, TlsFailure) as failure:
            raise StartFailure(str(failure)) from None
        except RuntimeError:
            raise StartFailure(
                f"gRPC cannot listen on {address}: it is in use or not an address of this machine."
            ) from None
        await self._grpc.start()
        self.grpc_address = Address(address.host, port)

    async def drain(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Take no new work, say so, and let what runs finish; `close` must follow.

        Args:
            grace_s: For how long, in seconds.
            hurry: Ends the wait when set.
        """
        await self.services.drain(grace_s, hurry)

    async def close(self, *, is_orphan: bool = False) -> None:
        """Stop in order: no new work, end every connection, then the wires and the engines.

        Args:
            is_orphan: Whether the parent of this worker was killed.
        """
        self.services.accepting = False
        stopping = asyncio.ensure_future(self._stop_grpc())
        try:
            await self.services.close()
            await self._runner.cleanup()
            if self._siblings is not None:
                await self._siblings.close(is_orphan=is_orphan)
        finally:
            await stopping

    async def _stop_grpc(self) -> None:
        if self._grpc is not None:
            await self._grpc.stop(_STOP_GRACE_S)
