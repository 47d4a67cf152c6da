"""Fixtures that every test may ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.server import RunningServer


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
