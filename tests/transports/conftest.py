"""Fixtures of the wires' tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from harness.grpc_backends import BACKENDS, served_by
from turnwire_server.transports.grpc import GrpcBackend


@pytest.fixture(params=BACKENDS)
def each_grpc_backend(request: pytest.FixtureRequest) -> Iterator[GrpcBackend]:
    """Runs the test on each gRPC back end."""
    backend = cast(GrpcBackend, request.param)
    with served_by(backend):
        yield backend
