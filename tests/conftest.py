"""Fixtures that every test may ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from harness.server import RunningServer, running_server


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    """A whole server on the simulated engine, as fast as it is read."""
    async with running_server() as running:
        yield running


@pytest.fixture
async def grpc_target(server: RunningServer) -> str:
    """Where that server speaks gRPC, as the Python client takes it."""
    return server.grpc_url
