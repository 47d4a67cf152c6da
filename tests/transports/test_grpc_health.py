from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)

from harness.fake_services import FakeServices
from harness.wire_servers import serving_grpc
from turnwire_server.transports import grpc_health

pytestmark = pytest.mark.usefixtures("each_grpc_backend")


async def check(channel: grpc.aio.Channel, name: str) -> HealthCheckResponse:
    data = await channel.unary_unary("/grpc.health.v1.Health/Check")(
        HealthCheckRequest(service=name).SerializeToString()
    )
    return HealthCheckResponse.FromString(data)


@pytest.mark.parametrize("name", ["", "turnwire.v1.SessionService", "grpc.health.v1.Health"])
async def test_health_follows_readiness_without_a_key(name: str) -> None:
    services = FakeServices(key="secret")
    async with serving_grpc(services) as channel:
        assert (await check(channel, name)).status == HealthCheckResponse.SERVING
        services.accepting = False
        assert (await check(channel, name)).status == HealthCheckResponse.NOT_SERVING


async def test_the_health_of_an_unknown_service_is_not_found() -> None:
    async with serving_grpc(FakeServices()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(channel, "nope")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watch_tells_changes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_health, "WATCH_INTERVAL_S", 0.0)
    services = FakeServices()
    async with serving_grpc(services) as channel:
        call: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        async with asyncio.timeout(20):
            first = HealthCheckResponse.FromString(await call.read())
            for _ in range(20):  # The watch looks again and again, and has nothing to tell.
                await check(channel, "")
            services.accepting = False
            second = HealthCheckResponse.FromString(await call.read())
        call.cancel()
    assert (first.status, second.status) == (
        HealthCheckResponse.SERVING,
        HealthCheckResponse.NOT_SERVING,
    )


async def test_list_names_every_service() -> None:
    async with serving_grpc(FakeServices()) as channel:
        data = await channel.unary_unary("/grpc.health.v1.Health/List")(
            HealthListRequest().SerializeToString()
        )
    statuses = HealthListResponse.FromString(data).statuses
    assert "turnwire.v1.ResponsesService" in statuses
    assert {health.status for health in statuses.values()} == {HealthCheckResponse.SERVING}
