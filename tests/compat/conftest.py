"""The server that clients run against, and the table of what they did.

`scripts/compat` selects the tests with clients from the cache; without it only the ones run that
need nothing more than the development environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness.compat import Row, Target, serving_process

ROW = "compat row"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("compat")
    group.addoption("--compat-model", help="serve this model on the embedded engine instead of sim")
    group.addoption("--compat-base-url", help="run against a server that is there already")
    group.addoption("--compat-grpc", help="the gRPC URL of that server")


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """A server on the simulated engine, or what the command line says."""

    def option(name: str) -> str | None:
        value = request.config.getoption(f"--compat-{name}", default=None)
        return None if value is None else str(value)

    model, base_url = option("model"), option("base-url")
    if base_url is not None:
        yield Target(base_url, option("grpc") or "", expects_tool=model is None)
        return
    engine = ("--engine", "sim") if model is None else ("--engine", "openvino", "--model", model)
    with serving_process(*engine) as served:
        yield served


@pytest.fixture
def obliging(target: Target) -> Target:
    """The server, where its model is sure to call a tool and to come to an end.

    A small model is neither, and agents take an answer that is cut for a failure.
    """
    if not target.expects_tool:
        pytest.skip("needs a model that is sure to call a tool and to come to an end")
    return target


@pytest.fixture
def row(record_property: Callable[[str, object], None]) -> Row:
    """Names the table's row of a test: client, version, transport."""

    def record(client: str, version: str, transport: str) -> None:
        record_property(ROW, (client, version, transport))

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = dict(getattr(report, "user_properties", ()))
            if ROW in properties and getattr(report, "when", None) == "call":
                rows.append((*properties[ROW], "pass" if report.passed else report.outcome))
    if not rows:
        return
    terminalreporter.section("real clients")
    for line in table(sorted(rows)):
        terminalreporter.write_line(line)


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Markdown, aligned."""
    head = ("client", "version", "transport", "result")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(cells: tuple[str, ...]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return [line(head), rule, *map(line, rows)]
