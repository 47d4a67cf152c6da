"""Reads the three sources, remembering where each value comes from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any, Final, TypeVar

from turnwire_server.adapters.database.settings import DATABASE_FILE, DatabaseSettings
from turnwire_server.adapters.ledgers.settings import UsageSettings
from turnwire_server.adapters.stores.memory import MemoryStoreSettings
from turnwire_server.config.environment import (
    cache_directory,
    data_directory,
    process_environment,
)
from turnwire_server.config.keys import EXTRA_KEYS, SECTIONS, TOP_KEYS, fields_of, keys_of
from turnwire_server.config.models import read_models
from turnwire_server.config.settings import (
    Config,
    ConfigFailure,
    ModelConfig,
    ScreenConfig,
    SealingConfig,
)
from turnwire_server.config.usage import check_usage, read_prices
from turnwire_server.config.values import Text, converted
from turnwire_server.ports.prices import PriceList
from turnwire_server.runtime.prompts import StoredPrompt, read_prompts
from turnwire_server.runtime.settings import (
    BackgroundSettings,
    CompactionSettings,
    CompatSettings,
    IdempotencySettings,
    OutboxSettings,
    RuntimeSettings,
)
from turnwire_server.session.settings import SessionSettings
from turnwire_server.transports.grpc import GrpcSettings
from turnwire_server.transports.http import HttpSettings
from turnwire_server.transports.http_origin import is_origin
from turnwire_server.transports.tls import TlsFiles
from turnwire_server.transports.websocket import WebSocketSettings

__all__ = ["load_config"]

_PREFIX: Final = "TURNWIRE_"
_COMMAND_LINE: Final = "command line"

SettingsT = TypeVar("SettingsT")


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
    environment = process_environment() if environment is None else environment
    if path is None and environment.get("TURNWIRE_CONFIG"):
        path = Path(environment["TURNWIRE_CONFIG"])
    reader = _Reader()
    if path is not None:
        reader.add_file(path)
    reader.add_environment(environment)
    reader.add_options(options or {})
    return reader.config(cache_directory(environment), data_directory(environment))


class _Reader:
    """Collects values by the key's path, remembering where each comes from."""

    def __init__(self) -> None:
        self._values: dict[str, object] = {}
        self._origins: dict[str, str] = {}
        self._models: tuple[ModelConfig, ...] | None = None
        self._prompts: tuple[StoredPrompt, ...] = ()
        self._prices = PriceList()
        self._file: Path | None = None

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
        self._file = path
        for key, value in table.items():
            if key == "models":
                self._models = read_models(value, origin=str(path), base=path.parent)
            elif key == "prompts":
                try:
                    self._prompts = read_prompts(value)
                except ValueError as error:
                    raise ConfigFailure(f"{path}: {error}.") from None
            elif key == "prices":
                try:
                    self._prices = read_prices(value)
                except ValueError as error:
                    raise ConfigFailure(f"{path}: {error}.") from None
            elif key in TOP_KEYS:
                self._put(key, value, str(path))
            elif key not in {*SECTIONS, *EXTRA_KEYS}:
                known = sorted({*SECTIONS, *EXTRA_KEYS, *TOP_KEYS, "models", "prices", "prompts"})
                raise ConfigFailure(f"{path}: {key}: unknown key; known are {', '.join(known)}.")
            elif not isinstance(value, dict):
                raise ConfigFailure(f"{path}: {key}: a table is needed.")
            else:
                for name, entry in value.items():
                    self._put(f"{key}.{name}", entry, str(path))

    def add_environment(self, environment: Mapping[str, str]) -> None:
        by_variable = {f"{_PREFIX}{name.upper()}": name for name in TOP_KEYS}
        for section in {**SECTIONS, **EXTRA_KEYS}:
            for name in keys_of(section):
                by_variable[f"{_PREFIX}{section.upper()}_{name.upper()}"] = f"{section}.{name}"
        sections = tuple(f"{_PREFIX}{section.upper()}_" for section in {**SECTIONS, **EXTRA_KEYS})
        for variable, text in environment.items():
            if variable in by_variable:
                self._put(by_variable[variable], Text(text), variable)
            elif variable.startswith(sections):
                # A typing error here could leave a server without its keys.
                raise ConfigFailure(f"{variable}: there is no such key.")

    def add_options(self, options: Mapping[str, object]) -> None:
        for key, value in options.items():
            if key == "models":
                self._models = read_models(value, origin=_COMMAND_LINE, base=Path())
            else:
                self._put(key, value, _COMMAND_LINE)

    def _put(self, key: str, value: object, origin: str) -> None:
        self._values[key] = value
        self._origins[key] = origin

    # The result.

    def config(self, models_directory: Path, data_directory: Path) -> Config:
        self._check_known()
        websocket = self._settings("websocket", WebSocketSettings)
        is_enabled = self._value("websocket.enabled", default=True)
        keys = self._value("auth.keys", default=())
        runtime = self._settings(
            "runtime",
            RuntimeSettings,
            session=self._settings("session", SessionSettings),
            outbox=self._settings("outbox", OutboxSettings),
            background=self._settings("background", BackgroundSettings),
            idempotency=self._settings("idempotency", IdempotencySettings),
            compaction=self._settings("compaction", CompactionSettings),
            compat=self._settings("compat", CompatSettings),
            prompts=self._prompts,
            auth_keys=_usable_keys(keys, self._origins.get("auth.keys", "")),
        )
        plain = Config()
        data_dir = self._value("data_dir", default=data_directory)
        config = Config(
            models=plain.models if self._models is None else self._models,
            any_model=self._value("any_model", default=plain.any_model),
            http_address=self._value("http.address", default=plain.http_address),
            grpc_address=self._value("grpc.address", default=plain.grpc_address),
            http=self._settings("http", HttpSettings, websocket=websocket if is_enabled else None),
            grpc=self._settings("grpc", GrpcSettings),
            tls=self._tls(),
            runtime=runtime,
            store=self._settings("store", MemoryStoreSettings),
            database=self._settings(
                "database",
                DatabaseSettings,
                url=self._value("database.url", default=None),
                default_file=data_dir / DATABASE_FILE,
            ),
            data_dir=data_dir,
            sealing=SealingConfig(
                keys=self._value("sealing.keys", default=()),
                data_dir=self._value("sealing.data_dir", default=data_dir),
            ),
            screen=ScreenConfig(rules=self._path("screen.rules")),
            usage=self._settings(
                "usage", UsageSettings, export_file=self._path("usage.export_file")
            ),
            prices=self._prices,
            models_directory=self._value("models_directory", default=models_directory),
            workers=self._value("workers", default=plain.workers),
        )
        for origin in config.http.allowed_origins:
            if not is_origin(origin):
                problem = f"SCHEME://HOST or SCHEME://HOST:PORT is needed, not {origin[:80]!r}"
                raise self._failure("http.allowed_origins", problem)
        check_usage(config.usage, self._failure)
        _check_exposure(config)
        return config

    def _settings(self, section: str, kind: type[SettingsT], **given: object) -> SettingsT:
        """Make a layer's settings of a section's keys."""
        prefix = f"{section}."
        members = {
            name: self._value(prefix + name)
            for name in fields_of(kind)
            if prefix + name in self._values and name not in given
        }
        return kind(**members, **given)

    def _check_known(self) -> None:
        for key in self._values:
            section, _, name = key.partition(".")
            if name and name not in (known := keys_of(section)):
                raise self._failure(key, f"unknown key; known are {', '.join(sorted(known))}")

    def _value(self, key: str, default: Any = MISSING) -> Any:
        if key not in self._values:
            return default
        section, _, name = key.rpartition(".")
        known = keys_of(section) if section else TOP_KEYS
        try:
            return converted(self._values[key], known[name], name)
        except ValueError as error:
            raise self._failure(key, str(error)) from None

    def _tls(self) -> TlsFiles | None:
        certificate, key = self._path("tls.certificate"), self._path("tls.key")
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            there, missing = ("key", "certificate") if key else ("certificate", "key")
            raise self._failure(f"tls.{there}", f"tls.{missing} is needed too")
        return TlsFiles(certificate, key)

    def _path(self, key: str) -> Path | None:
        """Return a path; one of the file is relative to the file's folder."""
        path: Path | None = self._value(key, default=None)
        if path is None or self._file is None or self._origins[key] != str(self._file):
            return path
        return self._file.parent / path

    def _failure(self, key: str, problem: str) -> ConfigFailure:
        return ConfigFailure(f"{self._origins[key]}: {key}: {problem}.")


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
