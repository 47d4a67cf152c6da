"""The models of a configuration: each an engine, files, and how prompts are made for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from turnwire_server.adapters.engines.openvino import OpenVinoSettings
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.engines.sim_agent import AgentSettings
from turnwire_server.adapters.renderers.harmony_settings import HarmonySettings
from turnwire_server.adapters.renderers.template_settings import ChatTemplateSettings
from turnwire_server.config.keys import ENGINE_SETTINGS, RENDERER_SETTINGS, Key, fields_of
from turnwire_server.config.settings import (
    DEFAULT_MODEL,
    ENGINES,
    RENDERERS,
    ConfigFailure,
    EngineName,
    ModelConfig,
    RendererName,
)
from turnwire_server.config.values import converted

__all__ = ["read_models"]

_LONGEST_NAME: Final = 256

SettingsT = TypeVar("SettingsT")


def read_models(value: object, *, origin: str, base: Path) -> tuple[ModelConfig, ...]:
    """Return the models of an array of tables.

    Args:
        value: The array.
        origin: Where it came from, for messages.
        base: The folder that relative paths are relative to.

    Raises:
        ConfigFailure: Something in it cannot be used.
    """
    tables = _tables(value, origin)
    models = [_Model(table, f"models[{n}]", origin, base).read() for n, table in enumerate(tables)]
    names = [model.name for model in models]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ConfigFailure(f"{origin}: models[{position}].name: {name!r} is there twice.")
    return tuple(models)


def _tables(value: object, origin: str) -> Sequence[dict[str, object]]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ConfigFailure(f"{origin}: models: an array of tables ([[models]]) is needed.")
    if not value:
        raise ConfigFailure(f"{origin}: models: at least one is needed.")
    return value


class _Model:
    """One table."""

    def __init__(self, given: dict[str, object], path: str, origin: str, base: Path) -> None:
        self._given = given
        self._path = path
        self._origin = origin
        self._base = base

    def read(self) -> ModelConfig:
        engine: EngineName = self._choice("engine", ENGINES, "openvino")
        values = self._values(engine)
        steering = values.get("steering", True)
        if engine == "sim":
            settings = _of(SimSettings, values, agent=_of(AgentSettings, values))
            name = self._name(values.get("name", "sim"))
            return ModelConfig(name, engine, settings=settings, steering=steering)
        where = values.get("path", DEFAULT_MODEL)
        is_path = _is_path(where)
        if is_path:
            where = str(self._base / Path(where).expanduser())
        name = values.get("name", Path(where).stem if is_path else where)
        return ModelConfig(
            self._name(name),
            engine,
            where,
            _of(OpenVinoSettings, values, model_path=Path(where)),
            _renderer(values),
            steering=steering,
        )

    def _values(self, engine: EngineName) -> dict[str, Any]:
        """Return all values of the table, as their keys want them."""
        known = {"name": Key(str), "engine": Key(str), "steering": Key(bool)}
        kinds = [*ENGINE_SETTINGS[engine]]
        if engine == "openvino":
            renderer: RendererName = self._choice("renderer", RENDERERS, RENDERERS[0])
            known |= {"path": Key(str), "renderer": Key(str)}
            kinds.append(RENDERER_SETTINGS[renderer])
        for kind in kinds:
            known |= fields_of(kind)
        values: dict[str, Any] = {}
        for key, value in self._given.items():
            if key not in known:
                listed = ", ".join(sorted(known))
                raise self._failure(key, f"unknown key; known are {listed}")
            try:
                values[key] = converted(value, known[key], key)
            except ValueError as error:
                raise self._failure(key, str(error)) from None
            if isinstance(values[key], Path):
                values[key] = self._base / values[key]
        return values

    def _choice(self, key: str, choices: Sequence[Any], default: Any) -> Any:
        value = self._given.get(key, default)
        if value not in choices:
            needed = " or ".join(f'"{choice}"' for choice in choices)
            raise self._failure(key, f"{needed} is needed")
        return value

    def _name(self, name: str) -> str:
        if not name or len(name) > _LONGEST_NAME or not name.isprintable():
            raise self._failure("name", f"1 to {_LONGEST_NAME} printable characters are needed")
        return name

    def _failure(self, key: str, problem: str) -> ConfigFailure:
        return ConfigFailure(f"{self._origin}: {self._path}.{key}: {problem}.")


def _renderer(values: dict[str, Any]) -> ChatTemplateSettings | HarmonySettings:
    if values.get("renderer") == "harmony":
        return _of(HarmonySettings, values)
    return _of(ChatTemplateSettings, values)


def _of(kind: type[SettingsT], values: dict[str, Any], **given: object) -> SettingsT:
    own = fields_of(kind)
    return kind(**{key: value for key, value in values.items() if key in own}, **given)


def _is_path(text: str) -> bool:
    """Return whether `text` means a file or a folder and not a name of the catalogue."""
    return "/" in text or os.sep in text or text.endswith(".gguf")
