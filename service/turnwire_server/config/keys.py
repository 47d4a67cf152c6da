"""Which keys there are: a section is a table of the file, its keys are fields of settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from turnwire_server.adapters.database.settings import DatabaseSettings
from turnwire_server.adapters.engines.openvino import OpenVinoSettings
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.engines.sim_agent import AgentSettings
from turnwire_server.adapters.ledgers.settings import UsageSettings
from turnwire_server.adapters.renderers.harmony_settings import HarmonySettings
from turnwire_server.adapters.renderers.template_settings import ChatTemplateSettings
from turnwire_server.adapters.stores.memory import MemoryStoreSettings
from turnwire_server.config.settings import Address, EngineName, RendererName
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
from turnwire_server.transports.websocket import WebSocketSettings

__all__ = [
    "ENGINE_SETTINGS",
    "EXTRA_KEYS",
    "RENDERER_SETTINGS",
    "SECTIONS",
    "TOP_KEYS",
    "Key",
    "fields_of",
    "keys_of",
]


class Key(NamedTuple):
    """What a key takes."""

    annotation: Any
    may_be_zero: bool = False


SECTIONS: Final[Mapping[str, tuple[type, ...]]] = {
    "http": (HttpSettings,),
    "websocket": (WebSocketSettings,),
    "grpc": (GrpcSettings,),
    "runtime": (RuntimeSettings,),
    "session": (SessionSettings,),
    "outbox": (OutboxSettings,),
    "background": (BackgroundSettings,),
    "idempotency": (IdempotencySettings,),
    "compaction": (CompactionSettings,),
    "compat": (CompatSettings,),
    "store": (MemoryStoreSettings,),
    "database": (DatabaseSettings,),
    "usage": (UsageSettings,),
}
EXTRA_KEYS: Final[Mapping[str, Mapping[str, Key]]] = {
    "http": {"address": Key(Address)},
    "websocket": {"enabled": Key(bool)},
    "grpc": {"address": Key(Address)},
    "auth": {"keys": Key(tuple[str, ...])},
    "screen": {"rules": Key(Path)},
    "sealing": {"keys": Key(tuple[str, ...]), "data_dir": Key(Path)},
    "tls": {"certificate": Key(Path), "key": Key(Path)},
}
TOP_KEYS: Final = {
    "any_model": Key(bool),
    "data_dir": Key(Path),
    "models_directory": Key(Path),
    "workers": Key(int),
}
_NO_KEYS: Final = frozenset(
    {"auth_keys", "default_file", "model_path", "prompts", "restart_delays_s"}
)
"""Fields that another key sets, or none."""
ENGINE_SETTINGS: Final[Mapping[EngineName, tuple[type, ...]]] = {
    "sim": (SimSettings, AgentSettings),
    "openvino": (OpenVinoSettings,),
}
RENDERER_SETTINGS: Final[Mapping[RendererName, type]] = {
    "chat_template": ChatTemplateSettings,
    "harmony": HarmonySettings,
}
_MAY_BE_ZERO: Final = frozenset(
    {
        "age_grace_s",
        "cache_bytes",
        "drain_grace_s",
        "fast_window_s",
        "fastest_window_s",
        "max_answer_bytes",
        "max_detached_sessions",
        "max_event_ids",
        "max_named_lanes",
        "max_ping_strikes",
        "max_queued",
        "max_warm_ups",
        "quiet_s",
        "resume_grace_s",
        "tool_rounds",
        "verify_s",
    }
)
"""Numbers that may be 0; so may those whose default it is."""


def keys_of(section: str) -> dict[str, Key]:
    """Return the keys of a section."""
    keys = dict(EXTRA_KEYS.get(section, {}))
    for settings in SECTIONS.get(section, ()):
        keys.update(fields_of(settings))
    return keys


def fields_of(settings: type) -> dict[str, Key]:
    """Return the fields that are keys: those of the layers below have sections of their own."""
    hints = get_type_hints(settings)
    return {
        entry.name: Key(
            hints[entry.name], may_be_zero=entry.name in _MAY_BE_ZERO or entry.default == 0
        )
        for entry in fields(settings)
        if entry.name not in _NO_KEYS and not _is_nested(hints[entry.name])
    }


def _is_nested(annotation: object) -> bool:
    parts = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return any(is_dataclass(part) for part in parts)
