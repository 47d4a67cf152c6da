"""What can be configured: the settings of all layers, composed."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, get_args

from turnwire_server.adapters.database.settings import DatabaseSettings
from turnwire_server.adapters.engines.openvino import OpenVinoSettings
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.ledgers.settings import UsageSettings
from turnwire_server.adapters.renderers.harmony_settings import HarmonySettings
from turnwire_server.adapters.renderers.template_settings import ChatTemplateSettings
from turnwire_server.adapters.stores.memory import MemoryStoreSettings
from turnwire_server.config.environment import cache_directory, data_directory
from turnwire_server.ports.prices import PriceList
from turnwire_server.runtime.settings import RuntimeSettings
from turnwire_server.transports.grpc import GrpcSettings
from turnwire_server.transports.http import HttpSettings
from turnwire_server.transports.tls import TlsFiles

__all__ = [
    "DEFAULT_MODEL",
    "ENGINES",
    "RENDERERS",
    "Address",
    "Config",
    "ConfigFailure",
    "EngineName",
    "ModelConfig",
    "RendererName",
    "ScreenConfig",
    "SealingConfig",
    "WorkerPlace",
]

EngineName = Literal["sim", "openvino"]
ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)
RendererName = Literal["chat_template", "harmony"]
RENDERERS: Final[tuple[RendererName, ...]] = get_args(RendererName)
DEFAULT_MODEL: Final = "smollm2"


class ConfigFailure(Exception):
    """The configuration cannot be used. `str()` is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    """Name or IP address, an IPv6 one without brackets."""
    port: int
    """0 to 65535; 0 takes a free one."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `HOST:PORT`, an IPv6 host in brackets.

        Raises:
            ValueError: It is something else.
        """
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = str(ipaddress.IPv6Address(host[1:-1]))
        elif ":" in host or not host.isprintable() or " " in host:
            raise ValueError(text)
        if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise ValueError(text)
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model that is served."""

    name: str
    """What clients call it."""
    engine: EngineName
    """Which engine runs it."""
    path: str = ""
    """A GGUF file, a model folder, or a name of `turnwire models`; empty for `sim`."""
    settings: SimSettings | OpenVinoSettings = field(default_factory=SimSettings)
    """The engine's settings; a `model_path` is `path` as it was given."""
    renderer: ChatTemplateSettings | HarmonySettings = field(default_factory=ChatTemplateSettings)
    """The prompt format and its settings; `sim` has its own and takes none."""
    steering: bool = True
    """Whether its responses may be steered."""


@dataclass(frozen=True, slots=True)
class SealingConfig:
    """What seals reasoning and compacted conversations that clients keep."""

    keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys of 32 bytes in base64, the one that seals first; empty for those of a file."""
    data_dir: Path = field(default_factory=data_directory)
    """Where the key file `sealing.keys` is; it is made when there is none."""


@dataclass(frozen=True, slots=True)
class ScreenConfig:
    """What screens input."""

    rules: Path | None = None
    """A file of rules; None for no screen."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Which of a server's workers a process is."""

    directory: Path
    """Where the workers find each other; private to the server."""
    number: int
    """From 0 on; a worker that was started again has the same."""

    @property
    def engines(self) -> Path:
        """Where the parent has the engines that the workers share; no worker's own `*.sock`."""
        return self.directory / "engines"


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be configured, composed of each layer's settings."""

    models: tuple[ModelConfig, ...] = (
        ModelConfig(
            DEFAULT_MODEL, "openvino", DEFAULT_MODEL, OpenVinoSettings(Path(DEFAULT_MODEL))
        ),
    )
    any_model: bool = False
    """Whether the first model answers to every name."""
    http_address: Address = Address("127.0.0.1", 8080)
    grpc_address: Address = Address("127.0.0.1", 50051)
    http: HttpSettings = field(default_factory=HttpSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    tls: TlsFiles | None = None
    """The certificate of both listeners; None for no TLS."""
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    store: MemoryStoreSettings = field(default_factory=MemoryStoreSettings)
    database: DatabaseSettings = field(default_factory=lambda: DatabaseSettings("memory"))
    """The database; `load_config` takes a file in the data directory where none is named."""
    sealing: SealingConfig = field(default_factory=SealingConfig)
    screen: ScreenConfig = field(default_factory=ScreenConfig)
    usage: UsageSettings = field(default_factory=UsageSettings)
    prices: PriceList = field(default_factory=PriceList)
    """What tokens cost."""
    data_dir: Path = field(default_factory=data_directory)
    """Where the server keeps what is its own."""
    models_directory: Path = field(default_factory=cache_directory)
    """Where `turnwire models pull` puts models."""
    workers: int = 1
    """How many processes serve on the same ports."""
    worker: WorkerPlace | None = None
    """Which of them this one is; None for one that is alone, and for their parent."""

    @property
    def engines(self) -> Path | None:
        """Where the engines are that this worker shares with the others; None for one alone."""
        return None if self.worker is None else self.worker.engines

    def of_worker(self, place: WorkerPlace) -> Config:
        """Return the configuration of one of the workers."""
        return replace(self, worker=place, grpc=replace(self.grpc, reuse_port=True))
