"""The server that clients run against, and the table of what they did.

`scripts/compat` selects the tests with clients from the cache; without it only the ones run that
need nothing more than the development environment.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.compat import Row, Target, serving_process

ROW = "compat row"


def _tables() -> ModuleType:
    """Import the module beside this one: it is a command of its own too."""
    spec = importlib.util.spec_from_file_location("tables", Path(__file__).parent / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = _tables()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("compat")
    group.addoption("--compat-model", help="serve this model on the embedded engine instead of sim")
    group.addoption("--compat-base-url", help="run against a server that is there already")
    group.addoption("--compat-grpc", help="the gRPC URL of that server")
    group.addoption("--compat-open-responses", help="a copy of the Open Responses repository")
    group.addoption("--compat-record", action="store_true", help="keep what came of the clients")


def _option(request: pytest.FixtureRequest, name: str) -> str | None:
    value = request.config.getoption(f"--compat-{name}", default=None)
    return None if value is None else str(value)


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """A server on the simulated engine, or what the command line says."""
    model, base_url = _option(request, "model"), _option(request, "base-url")
    if base_url is not None:
        yield Target(base_url, _option(request, "grpc") or "", model or "simulated")
        return
    engine = ("--engine", "sim") if model is None else ("--engine", "openvino", "--model", model)
    with serving_process(*engine) as served:
        yield served


@pytest.fixture
def obliging(target: Target) -> Target:
    """The server, where its model is sure to call a tool."""
    if not target.expects_tool:
        pytest.skip("needs a model that is sure to call a tool")
    return target


@pytest.fixture
def open_responses(request: pytest.FixtureRequest) -> Path:
    """The copy of the Open Responses repository that the command line names."""
    path = _option(request, "open-responses")
    if path is None:
        pytest.skip("needs --compat-open-responses PATH")
    return Path(path)


@pytest.fixture
def row(record_property: Callable[[str, object], None]) -> Row:
    """Names the table's row of a test."""
    named = Row()
    record_property(ROW, named.cells)
    return named


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    model = config.getoption("--compat-model", default=None) or "simulated"
    results = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            cells = dict(getattr(report, "user_properties", ())).get(ROW)
            if cells and getattr(report, "when", None) == "call":
                client, version, transport, *did = cells
                outcome = "pass" if report.passed else str(report.outcome)
                facts = {"client": client, "version": version, "transport": transport}
                results.append({**facts, "model": model, "result": outcome, "did": did})
    if not results:
        return
    terminalreporter.section("real clients")
    for line in tables.printed(results):
        terminalreporter.write_line(line)
    if config.getoption("--compat-record", default=False):
        tables.record(results)
