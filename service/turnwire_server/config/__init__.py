"""The configuration: the only reader of the environment and of the configuration file.

Three sources, the later ones win: `turnwire.toml`, the environment (`TURNWIRE_…`), the options of
the command line. Every key is a field of a layer's frozen settings; defaults live there. A value
that cannot be used is a `ConfigFailure` that names the source, the key's path and what is needed.
"""

from __future__ import annotations

from turnwire_server.config.reader import load_config
from turnwire_server.config.settings import (
    DEFAULT_MODEL,
    Address,
    Config,
    ConfigFailure,
    EngineName,
    ModelConfig,
    RendererName,
    ScreenConfig,
    SealingConfig,
    WorkerPlace,
)

__all__ = [
    "DEFAULT_MODEL",
    "Address",
    "Config",
    "ConfigFailure",
    "EngineName",
    "ModelConfig",
    "RendererName",
    "ScreenConfig",
    "SealingConfig",
    "WorkerPlace",
    "load_config",
]
