"""The environment of this process, and the directories that it names: read nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_directory", "data_directory", "process_environment"]


def process_environment() -> Mapping[str, str]:
    """Return the environment of this process."""
    return os.environ


def cache_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Return where models are kept unless the configuration names a directory."""
    base = _variable("XDG_CACHE_HOME", environment)
    return (Path(base) if base else Path.home() / ".cache") / "turnwire" / "models"


def data_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Return where the server keeps what is its own unless the configuration names a directory."""
    base = _variable("XDG_DATA_HOME", environment)
    return (Path(base) if base else Path.home() / ".local" / "share") / "turnwire"


def _variable(name: str, environment: Mapping[str, str] | None) -> str | None:
    return (os.environ if environment is None else environment).get(name)
