"""Where and with what a run was made."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from turnwire_bench.cold import cold_memory
from turnwire_server.config.environment import process_environment

__all__ = ["meta_of"]

_VERSIONS: Final = (
    *("turnwire", "grpcio", "aiohttp", "protobuf", "orjson", "uvloop", "pydantic", "openai"),
)
_SECRET: Final = ("KEY", "SECRET", "URL", "CERTIFICATE", "DIR")
_GIT_TIMEOUT_S: Final = 10.0


def meta_of(command: str, *, notes: Sequence[str] = (), **settings: object) -> dict[str, Any]:
    """Return what stands beside figures.

    Args:
        command: The subcommand.
        notes: Sentences that a reader of the figures has to know.
        settings: What it was told.
    """
    return {
        "command": command,
        "settings": settings,
        "machine": {
            "cpus": os.cpu_count(),
            "model": _cpu_model(),
            "architecture": platform.machine(),
            "system": f"{platform.system()} {platform.release()}",
            "load": [round(value, 2) for value in os.getloadavg()],
            "memory": cold_memory(),
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": _commit(),
        "server_settings": _server_settings(),
        "notes": list(notes),
    }


def _server_settings() -> dict[str, str]:
    """Return how the environment configures the server, without what may be secret."""
    return {
        name: value
        for name, value in sorted(process_environment().items())
        if name.startswith("TURNWIRE_") and not any(part in name for part in _SECRET)
    }


def _versions() -> dict[str, str]:
    versions = {}
    for name in _VERSIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _cpu_model() -> str | None:
    if sys.platform != "linux":
        return platform.processor() or None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, None)


def _commit() -> str | None:
    """Return the commit of a checkout, with a `+` when files differ from it; None outside one."""
    folder = Path(__file__).parent
    answers = []
    for command in (["rev-parse", "HEAD"], ["status", "--porcelain"]):
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *command],
                capture_output=True,
                timeout=_GIT_TIMEOUT_S,
                check=True,
                text=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        answers.append(done.stdout.strip())
    return answers[0] + ("+" if answers[1] else "")
