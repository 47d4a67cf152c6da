"""The official Python SDK, openai-agents, and what we give them: the drop-in and the provider.

Each runs twice: with the development environment's versions in every test run, and from the cache
at the pinned versions when `scripts/compat` asks.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from harness.compat import SCENARIOS, Row, Target, installed, run

HERE = "here"
CACHE = pytest.param("cache", marks=pytest.mark.compat)


def converse(scenario: str, python: Path | str, transport: str, target: Target, at: Path) -> str:
    """Run a scenario and return what it printed; it fails by an exception."""
    tool = [] if target.expects_tool else ["--no-tool"]
    command = [python, SCENARIOS / scenario, transport, "--base-url", target.base_url]
    command += ["--grpc", target.grpc, *tool]
    return run(command, directory=at, timeout_s=target.timeout_s, PYTHONUTF8="1")


def python_of(place: str, client: str, package: str) -> tuple[Path | str, str]:
    """The interpreter that has the client, and the client's version."""
    if place == HERE:
        return sys.executable, importlib.metadata.version(package)
    cached = installed(client)
    return cached.python, cached.version


@pytest.mark.parametrize("place", [HERE, CACHE])
@pytest.mark.parametrize("transport", ["http", "websocket", "lanes"])
def test_the_official_sdk(
    place: str, transport: str, target: Target, row: Row, tmp_path: Path
) -> None:
    python, version = python_of(place, "openai-python", "openai")
    row("openai (Python), sync and async", version, transport)
    row.read(converse("openai_python.py", python, transport, target, tmp_path))


@pytest.mark.parametrize("place", [HERE, CACHE])
def test_the_official_sdk_over_the_drop_in(
    place: str, target: Target, row: Row, tmp_path: Path
) -> None:
    python, version = python_of(place, "openai-python", "openai")
    row("openai (Python) with `turnwire.openai`", version, "grpc")
    row.read(converse("openai_python.py", python, "drop-in", target, tmp_path))


@pytest.mark.compat
def test_an_sdk_on_the_older_http_library_over_the_drop_in(
    target: Target, row: Row, tmp_path: Path
) -> None:
    client = installed("openai-python-2")
    row("openai (Python) on `httpx` with `turnwire.openai`", client.version, "grpc")
    row.read(converse("openai_python.py", client.python, "drop-in", target, tmp_path))


@pytest.mark.parametrize("place", [HERE, CACHE])
@pytest.mark.parametrize("transport", ["http", "websocket"])
def test_openai_agents(
    place: str, transport: str, target: Target, row: Row, tmp_path: Path
) -> None:
    python, version = python_of(place, "openai-agents-python", "openai-agents")
    row("openai-agents (Python)", version, transport)
    row.read(converse("openai_agents_python.py", python, transport, target, tmp_path))


@pytest.mark.parametrize("place", [HERE, CACHE])
def test_openai_agents_with_our_provider(
    place: str, target: Target, row: Row, tmp_path: Path
) -> None:
    python, version = python_of(place, "openai-agents-python", "openai-agents")
    row("openai-agents (Python) with `turnwire.agents`", version, "grpc")
    row.read(converse("openai_agents_python.py", python, "provider", target, tmp_path))
