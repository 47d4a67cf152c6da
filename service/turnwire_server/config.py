"""The configuration: the only reader of the environment and of the configuration file.

Three sources, the later ones win: `turnwire.toml`, the environment (`TURNWIRE_…`), the options of
the command line. Every key is a field of a layer's frozen settings; defaults live there. A value
that cannot be used is a `ConfigFailure` that names the source, the key's path and what is needed.
"""

from __future__ import annotations

import ipaddress
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from turnwire_server.adapters.engines.openvino import OpenVinoSettings
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.engines.sim_agent import AgentSettings
from turnwire_server.adapters.stores.memory import MemoryStoreSettings
from turnwire_server.runtime.prompts import StoredPrompt, read_prompts
from turnwire_server.runtime.settings import (
    CompactionSettings,
    CompatSettings,
    OutboxSettings,
    RuntimeSettings,
)
from turnwire_server.session.settings import SessionSettings
from turnwire_server.transports.grpc import GrpcSettings
from turnwire_server.transports.http import HttpSettings
from turnwire_server.transports.websocket import WebSocketSettings

__all__ = ["Address", "Config", "ConfigFailure", "EngineName", "ModelConfig", "load_config"]

EngineName = Literal["sim", "openvino"]
ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)
PREFIX: Final = "TURNWIRE_"
DEFAULT_MODEL: Final = "smollm2"

SettingsT = TypeVar("SettingsT")


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
    """A GGUF file, or a name of `turnwire models`; empty for `sim`."""
    settings: SimSettings | OpenVinoSettings = field(default_factory=SimSettings)
    """The engine's settings; a `model_path` is `path` as it was given."""


@dataclass(frozen=True, slots=True)
class SealingConfig:
    """What seals reasoning and compacted conversations that clients keep."""

    keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys of 32 bytes in base64, the one that seals first; empty for those of a file."""
    data_dir: Path = field(default_factory=lambda: _data_directory(os.environ))
    """Where the key file `sealing.keys` is; it is made when there is none."""


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
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    store: MemoryStoreSettings = field(default_factory=MemoryStoreSettings)
    sealing: SealingConfig = field(default_factory=SealingConfig)
    models_directory: Path = field(default_factory=lambda: _cache_directory(os.environ))
    """Where `turnwire models pull` puts models."""


def load_config(
    path: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
) -> Config:
    """Read the configuration.

    Args:
        path: The file; None for the one that `TURNWIRE_CONFIG` names, if any.
        environment: The environment; the process's own when None.
        options: Values of the command line by the key's path, for example `http.address`. With
            `models`, a list of tables, the models of the file are replaced.

    Raises:
        ConfigFailure: Something in it cannot be used.
    """
    environment = os.environ if environment is None else environment
    if path is None and environment.get("TURNWIRE_CONFIG"):
        path = Path(environment["TURNWIRE_CONFIG"])
    reader = _Reader()
    if path is not None:
        reader.add_file(path)
    reader.add_environment(environment)
    reader.add_options(options or {})
    return reader.config(_cache_directory(environment), _data_directory(environment))


def _cache_directory(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "turnwire" / "models"


def _data_directory(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "turnwire"


# What the sections are made of. A section is a table of the file; its keys are fields.


class _Key(NamedTuple):
    """What a key takes."""

    annotation: Any
    may_be_zero: bool = False


_SECTIONS: Final[Mapping[str, tuple[type, ...]]] = {
    "http": (HttpSettings,),
    "websocket": (WebSocketSettings,),
    "grpc": (GrpcSettings,),
    "runtime": (RuntimeSettings,),
    "session": (SessionSettings,),
    "outbox": (OutboxSettings,),
    "compaction": (CompactionSettings,),
    "compat": (CompatSettings,),
    "store": (MemoryStoreSettings,),
}
_EXTRA_KEYS: Final[Mapping[str, Mapping[str, _Key]]] = {
    "http": {"address": _Key(Address)},
    "websocket": {"enabled": _Key(bool)},
    "grpc": {"address": _Key(Address)},
    "auth": {"keys": _Key(tuple[str, ...])},
    "sealing": {"keys": _Key(tuple[str, ...]), "data_dir": _Key(Path)},
}
_TOP_KEYS: Final = {"any_model": _Key(bool), "models_directory": _Key(Path)}
_NO_KEYS: Final = frozenset({"auth_keys", "model_path", "prompts", "restart_delays_s"})
"""Fields that another key sets, or none."""
_ENGINE_SETTINGS: Final[Mapping[EngineName, tuple[type, ...]]] = {
    "sim": (SimSettings, AgentSettings),
    "openvino": (OpenVinoSettings,),
}
_MAY_BE_ZERO: Final = frozenset(
    {
        "age_grace_s",
        "fast_window_s",
        "fastest_window_s",
        "max_event_ids",
        "max_named_lanes",
        "max_ping_strikes",
        "max_queued",
        "max_warm_ups",
        "quiet_s",
        "tool_rounds",
    }
)
"""Numbers that may be 0; so may those whose default it is."""
_MOST: Final = 2**31 - 1
_MOST_STORED: Final = 2**53
_LONGEST_NAME: Final = 256


def _keys_of(section: str) -> dict[str, _Key]:
    """Return the keys of a section."""
    keys = dict(_EXTRA_KEYS.get(section, {}))
    for settings in _SECTIONS.get(section, ()):
        keys.update(_fields_of(settings))
    return keys


def _fields_of(settings: type) -> dict[str, _Key]:
    """Return the fields that are keys: those of the layers below have sections of their own."""
    hints = get_type_hints(settings)
    return {
        entry.name: _Key(
            hints[entry.name], may_be_zero=entry.name in _MAY_BE_ZERO or entry.default == 0
        )
        for entry in fields(settings)
        if entry.name not in _NO_KEYS and not _is_nested(hints[entry.name])
    }


def _is_nested(annotation: object) -> bool:
    parts = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return any(is_dataclass(part) for part in parts)


class _Reader:
    """Collects values by the key's path, remembering where each comes from."""

    def __init__(self) -> None:
        self._values: dict[str, object] = {}
        self._origins: dict[str, str] = {}
        self._models: Sequence[object] | None = None
        self._models_origin = ""
        self._prompts: tuple[StoredPrompt, ...] = ()
        self._base = Path()

    # Sources.

    def add_file(self, path: Path) -> None:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigFailure(f"{path}: cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise ConfigFailure(f"{path}: is not UTF-8 text.") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigFailure(f"{path}: is not TOML: {error}.") from None
        self._base = path.parent
        for key, value in table.items():
            if key == "models":
                self._models, self._models_origin = _tables(value, str(path)), str(path)
            elif key == "prompts":
                try:
                    self._prompts = read_prompts(value)
                except ValueError as error:
                    raise ConfigFailure(f"{path}: {error}.") from None
            elif key in _TOP_KEYS:
                self._put(key, value, str(path))
            elif key not in {*_SECTIONS, *_EXTRA_KEYS}:
                known = sorted({*_SECTIONS, *_EXTRA_KEYS, *_TOP_KEYS, "models", "prompts"})
                raise ConfigFailure(f"{path}: {key}: unknown key; known are {', '.join(known)}.")
            elif not isinstance(value, dict):
                raise ConfigFailure(f"{path}: {key}: a table is needed.")
            else:
                for name, entry in value.items():
                    self._put(f"{key}.{name}", entry, str(path))

    def add_environment(self, environment: Mapping[str, str]) -> None:
        by_variable = {f"{PREFIX}{name.upper()}": name for name in _TOP_KEYS}
        for section in {**_SECTIONS, **_EXTRA_KEYS}:
            for name in _keys_of(section):
                by_variable[f"{PREFIX}{section.upper()}_{name.upper()}"] = f"{section}.{name}"
        sections = tuple(f"{PREFIX}{section.upper()}_" for section in {**_SECTIONS, **_EXTRA_KEYS})
        for variable, text in environment.items():
            if variable in by_variable:
                self._put(by_variable[variable], _Text(text), variable)
            elif variable.startswith(sections):
                # A typing error here could leave a server without its keys.
                raise ConfigFailure(f"{variable}: there is no such key.")

    def add_options(self, options: Mapping[str, object]) -> None:
        for key, value in options.items():
            if key == "models":
                self._models, self._models_origin = _tables(value, "command line"), "command line"
                self._base = Path()
            else:
                self._put(key, value, "command line")

    def _put(self, key: str, value: object, origin: str) -> None:
        self._values[key] = value
        self._origins[key] = origin

    # The result.

    def config(self, models_directory: Path, data_directory: Path) -> Config:
        websocket = self._settings("websocket", WebSocketSettings)
        is_enabled = self._value("websocket.enabled", default=True)
        keys = self._value("auth.keys", default=())
        runtime = self._settings(
            "runtime",
            RuntimeSettings,
            session=self._settings("session", SessionSettings),
            outbox=self._settings("outbox", OutboxSettings),
            compaction=self._settings("compaction", CompactionSettings),
            compat=self._settings("compat", CompatSettings),
            prompts=self._prompts,
            auth_keys=_usable_keys(keys, self._origins.get("auth.keys", "")),
        )
        plain = Config()
        config = Config(
            models=plain.models if self._models is None else self._read_models(self._models),
            any_model=self._value("any_model", default=plain.any_model),
            http_address=self._value("http.address", default=plain.http_address),
            grpc_address=self._value("grpc.address", default=plain.grpc_address),
            http=self._settings("http", HttpSettings, websocket=websocket if is_enabled else None),
            grpc=self._settings("grpc", GrpcSettings),
            runtime=runtime,
            store=self._settings("store", MemoryStoreSettings),
            sealing=SealingConfig(
                keys=self._value("sealing.keys", default=()),
                data_dir=self._value("sealing.data_dir", default=data_directory),
            ),
            models_directory=self._value("models_directory", default=models_directory),
        )
        _check_exposure(config)
        return config

    def _settings(self, section: str, kind: type[SettingsT], **given: object) -> SettingsT:
        """Make a layer's settings of a section's keys."""
        known = _keys_of(section)
        prefix = f"{section}."
        for key in [key for key in self._values if key.startswith(prefix)]:
            if key.removeprefix(prefix) not in known:
                raise self._failure(key, f"unknown key; known are {', '.join(sorted(known))}")
        members = {
            name: self._value(prefix + name)
            for name in _fields_of(kind)
            if prefix + name in self._values and name not in given
        }
        return kind(**members, **given)

    def _value(self, key: str, default: Any = MISSING) -> Any:
        if key not in self._values:
            return default
        section, _, name = key.rpartition(".")
        known = _keys_of(section) if section else _TOP_KEYS
        try:
            return _converted(self._values[key], known[name], name)
        except ValueError as error:
            raise self._failure(key, str(error)) from None

    def _failure(self, key: str, problem: str) -> ConfigFailure:
        return ConfigFailure(f"{self._origins[key]}: {key}: {problem}.")

    def _read_models(self, tables: Sequence[object]) -> tuple[ModelConfig, ...]:
        models = [self._read_model(table, f"models[{n}]") for n, table in enumerate(tables)]
        names = [model.name for model in models]
        for position, name in enumerate(names):
            if name in names[:position]:
                raise self._model_failure(f"models[{position}].name", f"{name!r} is there twice")
        return tuple(models)

    def _model_failure(self, key: str, problem: str) -> ConfigFailure:
        return ConfigFailure(f"{self._models_origin}: {key}: {problem}.")

    def _read_model(self, given: object, path: str) -> ModelConfig:
        assert isinstance(given, dict)  # `_tables` saw to it
        engine = given.get("engine", "openvino")
        if engine not in ENGINES:
            needed = " or ".join(f'"{name}"' for name in ENGINES)
            raise self._model_failure(f"{path}.engine", f"{needed} is needed")
        known = {"name": _Key(str), "engine": _Key(str)}
        known |= {"path": _Key(str)} if engine == "openvino" else {}
        kinds = _ENGINE_SETTINGS[engine]
        for kind in kinds:
            known |= _fields_of(kind)
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key not in known:
                listed = ", ".join(sorted(known))
                raise self._model_failure(f"{path}.{key}", f"unknown key; known are {listed}")
            try:
                values[key] = _converted(value, known[key], key)
            except ValueError as error:
                raise self._model_failure(f"{path}.{key}", str(error)) from None
            if isinstance(values[key], Path):
                values[key] = self._base / values[key]
        return self._model(engine, values, path)

    def _model(self, engine: EngineName, values: dict[str, Any], path: str) -> ModelConfig:
        def of(kind: type[SettingsT], **given: object) -> SettingsT:
            own = _fields_of(kind)
            return kind(**{key: value for key, value in values.items() if key in own}, **given)

        if engine == "sim":
            name = values.get("name", "sim")
            settings: SimSettings | OpenVinoSettings = of(SimSettings, agent=of(AgentSettings))
            where = ""
        else:
            where = values.get("path", DEFAULT_MODEL)
            if _is_file_path(where):
                where = str(self._base / Path(where).expanduser())
            name = values.get("name", Path(where).stem if _is_file_path(where) else where)
            settings = of(OpenVinoSettings, model_path=Path(where))
        if not name or len(name) > _LONGEST_NAME or not name.isprintable():
            problem = f"1 to {_LONGEST_NAME} printable characters are needed"
            raise self._model_failure(f"{path}.name", problem)
        return ModelConfig(name, engine, where, settings)


def _is_file_path(text: str) -> bool:
    """Return whether `text` means a file and not a name of the catalogue."""
    return "/" in text or os.sep in text or text.endswith(".gguf")


class _Text(str):
    """A value of the environment: text that stands for any type."""


def _tables(value: object, origin: str) -> list[object]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ConfigFailure(f"{origin}: models: an array of tables ([[models]]) is needed.")
    if not value:
        raise ConfigFailure(f"{origin}: models: at least one is needed.")
    return value


def _converted(value: object, key: _Key, name: str) -> object:
    """Return `value` as the key called `name` wants it.

    Raises:
        ValueError: It cannot be; `str()` says what is needed.
    """
    annotation = key.annotation
    if isinstance(annotation, UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        if value not in choices:
            raise ValueError(" or ".join(f'"{choice}"' for choice in choices) + " is needed")
        return str(value)
    if get_origin(annotation) is tuple:
        return _list_of_texts(value)
    if annotation is bool:
        return _boolean(value)
    if annotation is int or annotation is float:
        most = _MOST_STORED if name == "max_bytes" else _MOST
        return _number(value, annotation, may_be_zero=key.may_be_zero, most=most)
    if not isinstance(value, str):
        raise ValueError("text is needed")
    if annotation is Address:
        try:
            return Address.parse(value)
        except ValueError:
            raise ValueError(f"HOST:PORT is needed, not {value[:80]!r}") from None
    if annotation is Path:
        return Path(value).expanduser()
    assert annotation is str, f"{name}: a settings field of a type that no key can have"
    return value


def _boolean(value: object) -> bool:
    if isinstance(value, _Text) and value.lower() in ("true", "false", "1", "0"):
        return value.lower() in ("true", "1")
    if not isinstance(value, bool):
        raise ValueError("true or false is needed")
    return value


def _number(
    value: object, kind: type[int] | type[float], *, may_be_zero: bool, most: int
) -> int | float:
    what = "a whole number" if kind is int else "a number"
    least = "of at least 0" if may_be_zero else "of at least 1" if kind is int else "above 0"
    problem = ValueError(f"{what} {least} and at most {most} is needed")
    if isinstance(value, _Text):
        try:
            value = kind(value)
        except ValueError:
            raise problem from None
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        raise problem
    number = kind(value)
    if not math.isfinite(number) or not 0 <= number <= most or (number == 0 and not may_be_zero):
        raise problem
    return number


def _list_of_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, _Text):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise ValueError("an array of strings is needed")
    return tuple(value)


def _usable_keys(keys: tuple[str, ...], origin: str) -> tuple[str, ...]:
    for position, key in enumerate(keys):
        # The value itself stays out of the message: it is a secret.
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            problem = "visible ASCII characters are needed"
            raise ConfigFailure(f"{origin}: auth.keys[{position}]: {problem}.")
    return keys


def _check_exposure(config: Config) -> None:
    """Refuse to be open to a network without keys."""
    if config.runtime.auth_keys:
        return
    for key, address in (
        ("http.address", config.http_address),
        ("grpc.address", config.grpc_address),
    ):
        if not address.is_loopback:
            raise ConfigFailure(
                f"auth.keys: at least one key is needed, because {key} ({address}) is not a "
                "loopback address."
            )
