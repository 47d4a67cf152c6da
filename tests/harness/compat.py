"""Real clients of other people: installed into a cache on demand, run against our server."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "ROOT",
    "SCENARIOS",
    "Client",
    "Row",
    "Target",
    "clean_environment",
    "installed",
    "node_path",
    "run",
    "serving_process",
]

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "tests/compat/scenarios"
INSTALL_TIMEOUT_S = 600
RUN_TIMEOUT_S = 240
PATIENCE = 4
"""How much longer a run may take on a model that computes."""
OLDEST_NODE = 22


@dataclass(frozen=True, slots=True)
class Client:
    """A client that can be run."""

    name: str
    version: str
    """As pinned; of the package that the client is."""
    directory: Path

    @property
    def python(self) -> Path:
        """Its interpreter, for a client from pip."""
        return self.directory / "venv/bin/python"


@dataclass(frozen=True, slots=True)
class Target:
    """The server under test."""

    base_url: str
    grpc: str
    model: str = "simulated"
    """What runs: the name of a small model, or `simulated`."""

    @property
    def expects_tool(self) -> bool:
        """Whether its model is sure to call a tool when it is offered one."""
        return self.model == "simulated"

    @property
    def timeout_s(self) -> float:
        """Most seconds that a client's run may take."""
        return RUN_TIMEOUT_S if self.expects_tool else RUN_TIMEOUT_S * PATIENCE


@dataclass(slots=True)
class Row:
    """The line of the table that a test is for: what it is, and what was done."""

    cells: list[str] = field(default_factory=list)
    """Client, version, transport, then everything that it did. Plain: reports are sent around."""

    def __call__(self, client: str, version: str, transport: str) -> None:
        """Name the line."""
        self.cells[:] = [client, version, transport]

    def read(self, output: str) -> None:
        """Take from what a scenario printed what it did: its lines `ok WHAT: …`."""
        said = [line[3:] for line in output.splitlines() if line.startswith("ok ")]
        assert said, f"it did nothing\n{output[-2000:]}"
        self.cells += [_words(line.partition(":")[0].strip()) for line in said]


def installed(name: str) -> Client:
    """Return a client of `versions.toml`, after installing it if it is not there yet."""
    text = (ROOT / "tests/compat/versions.toml").read_text(encoding="utf-8")
    recipe = tomllib.loads(text)[name]
    packages = [package.format(platform=_node_platform()) for package in _packages(recipe)]
    version = packages[0].rpartition("==" if "pip" in recipe else "@")[2]
    directory = _cache() / f"{name}-{version}"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Test processes run side by side.
        stamp = directory / "stamp.json"
        wanted = json.dumps([packages, recipe.get("with_turnwire", False)])
        if not stamp.exists() or stamp.read_text() != wanted:
            (_pip if "pip" in recipe else _npm)(directory, packages, recipe)
            stamp.write_text(wanted)
    return Client(name, version, directory)


def node_path() -> Path:
    """Return a Node that the clients can run on: the machine's, or one from the cache."""
    own = shutil.which("node")
    if own is not None:
        said = subprocess.run([own, "--version"], capture_output=True, text=True, check=True)
        if int(said.stdout.strip().removeprefix("v").partition(".")[0]) >= OLDEST_NODE:
            return Path(own)
    client = installed("node")
    return client.directory / f"node_modules/node-{_node_platform()}/bin/node"


def run(
    command: Sequence[str | Path],
    *,
    directory: Path,
    timeout_s: float = RUN_TIMEOUT_S,
    **environment: str,
) -> str:
    """Run a command to its end and return what it printed.

    Raises:
        AssertionError: It failed; has its output.
    """
    done = subprocess.run(
        list(map(str, command)),
        cwd=directory,
        env={**clean_environment(), "PWD": str(directory), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-6000:]}"
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Return the environment without what would decide where a client connects, and as whom."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "CODEX_")) and not name.lower().endswith("_proxy")
    }


@contextmanager
def serving_process(*arguments: str) -> Iterator[Target]:
    """Run `turnwire serve` on free ports, as users do."""
    command = [sys.executable, "-m", "turnwire", "serve", "--until-stdin-closes"]
    command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--any-model", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                assert process.stderr is not None
                raise AssertionError(f"no server\n{process.stderr.read()[-2000:]}")
            ready: dict[str, Any] = json.loads(line)
            model = "simulated" if "sim" in arguments else str(ready["models"][0])
            yield Target(ready["http"], ready["grpc"], model)
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def _words(name: str) -> str:
    """Return the name of a scenario, of Python or JavaScript, in words."""
    if " " not in name:
        name = re.sub(r"(?<=[a-zA-Z])[A-Z]", lambda found: f" {found[0].lower()}", name)
    return name.replace("_", " ")


def _packages(recipe: dict[str, Any]) -> list[str]:
    packages: list[str] = recipe["pip"] if "pip" in recipe else recipe["npm"]
    return packages


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "turnwire/compat"


def _pip(directory: Path, packages: list[str], recipe: dict[str, Any]) -> None:
    _install([sys.executable, "-m", "venv", "--clear", directory / "venv"], directory)
    pip = [directory / "venv/bin/python", "-m", "pip", "install", "--quiet"]
    pip.append("--disable-pip-version-check")
    ours = ["--editable", str(ROOT)] if recipe.get("with_turnwire") else []
    _install([*pip, *packages, *ours], directory)


def _npm(directory: Path, packages: list[str], recipe: dict[str, Any]) -> None:
    (directory / "package.json").write_text('{"private": true}\n')
    npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--save-exact"]
    # A Node for this machine is not one that its package takes for right everywhere.
    force = ["--force"] if directory.name.startswith("node-") else []
    _install([*npm, *force, *packages], directory)


def _install(command: Sequence[str | Path], directory: Path) -> None:
    done = subprocess.run(
        list(map(str, command)),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]} could not install\n{done.stdout[-3000:]}"


def _node_platform() -> str:
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
    name = platform.machine().lower()
    return f"{sys.platform}-{machine.get(name, name)}"
