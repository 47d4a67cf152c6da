"""Which back end serves gRPC in this test run, where a test does not say so itself.

`pytest --grpc-backend grpcio` runs every test that has a gRPC wire on that back end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from turnwire_server.transports.grpc import GrpcBackend, GrpcSettings

__all__ = ["BACKENDS", "on_backend", "served_by"]

BACKENDS: tuple[GrpcBackend, ...] = ("grpcio", "grpclib")

_DEFAULT: GrpcBackend = GrpcSettings().backend
_chosen: GrpcBackend = _DEFAULT


@contextmanager
def served_by(backend: GrpcBackend) -> Iterator[None]:
    """Serve gRPC with `backend` from here on."""
    global _chosen
    before, _chosen = _chosen, backend
    try:
        yield
    finally:
        _chosen = before


def on_backend(settings: GrpcSettings | None) -> GrpcSettings:
    """Return the settings, for the back end that was chosen unless they name one themselves."""
    settings = settings or GrpcSettings()
    return settings if settings.backend != _DEFAULT else replace(settings, backend=_chosen)
