"""The standard health service, answered from the readiness of the services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc
from google.protobuf import message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from turnwire_server.runtime.services import Services
from turnwire_server.transports.grpc_status import Context

__all__ = ["HealthServicer"]

WATCH_INTERVAL_S = 1.0
"""How often a watched status is looked up, in seconds."""


class HealthServicer(health_pb2_grpc.HealthServicer):
    """SERVING while new work is accepted, NOT_SERVING after; the same for each service."""

    def __init__(self, services: Services, names: Sequence[str]) -> None:
        self._services = services
        self._names = frozenset(("", *names))

    def _status(self, name: str) -> int:
        if name not in self._names:
            return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        if self._services.accepting:
            return health_pb2.HealthCheckResponse.SERVING
        return health_pb2.HealthCheckResponse.NOT_SERVING

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Return the status now; NOT_FOUND for a service that is not served."""
        status = self._status(request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "This service is not served.")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Yield the status now and whenever it changed; ends when the client cancels."""
        sent: int | None = None
        while True:
            if (status := self._status(request.service)) != sent:
                sent = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def List(self, request: message.Message, context: Context) -> message.Message:
        """Return the status of every service."""
        statuses = {
            name: health_pb2.HealthCheckResponse(status=self._status(name)) for name in self._names
        }
        answer: message.Message = health_pb2.HealthListResponse(  # type: ignore[attr-defined]
            statuses=statuses
        )  # Newer than its stub.
        return answer
