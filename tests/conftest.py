"""Fixtures that every test may ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from harness.server import RunningServer

# A test is not slow because the machine is busy.
settings.register_profile("turnwire", settings.default, deadline=None)
settings.load_profile("turnwire")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--grpc-backend",
        default=None,
        choices=("grpcio", "grpclib"),
        help="what serves gRPC where a test does not say so itself; default: the server's",
    )


@pytest.fixture(autouse=True, scope="session")
def _grpc_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Serve gRPC with the back end that the command line asks for."""
    backend = request.config.getoption("--grpc-backend")
    if backend is None:
        yield
        return
    # Imported here, see `server`.
    from harness.grpc_backends import served_by

    with served_by(backend):
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the key files of servers, in this process or not, out of the user's directories."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    """A whole server on the simulated engine, as fast as it is read."""
    # Imported here: the pure suites also run where no server is installed (`--lowest`).
    from harness.server import running_server

    async with running_server() as running:
        yield running


@pytest.fixture
async def grpc_target(server: RunningServer) -> str:
    """Where that server speaks gRPC, as the Python client takes it."""
    return server.grpc_url
