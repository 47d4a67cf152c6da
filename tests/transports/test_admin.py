from __future__ import annotations

import asyncio

import aiohttp

from harness.fake_services import FakeServices
from harness.server import make_sim_services, serving
from harness.wire_servers import http_port
from turnwire_server.adapters.metrics.prometheus import PrometheusMetrics
from turnwire_server.ports.metrics import Levels
from turnwire_server.runtime.settings import RuntimeSettings


async def test_probes_need_no_key_and_readiness_follows_the_services() -> None:
    services = FakeServices(key="secret")
    async with (
        http_port(services) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
        asyncio.timeout(20),
    ):
        assert (await client.get("/healthz")).status == 200
        ready = await client.get("/readyz")
        assert (ready.status, await ready.json()) == (200, {"status": "ready"})
        services.accepting = False
        assert (await client.get("/healthz")).status == 200
        ready = await client.get("/readyz")
        assert (ready.status, await ready.json()) == (503, {"status": "draining"})


async def test_metrics_are_shown_to_whoever_has_a_key() -> None:
    services = FakeServices(key="secret")
    services.metrics = PrometheusMetrics()
    services.levels = lambda: Levels({"grpc": 3}, running=0, queued=0, dropped={}, restarts={})
    async with (
        http_port(services) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
        asyncio.timeout(20),
    ):
        assert (await client.get("/metrics")).status == 401
        shown = await client.get("/metrics", headers={"authorization": "Bearer secret"})
        assert shown.status == 200
        assert shown.content_type == "text/plain"
        assert 'turnwire_connections{transport="grpc"} 3.0' in await shown.text()


async def test_without_counting_there_is_no_such_path() -> None:
    services = FakeServices()
    services.metrics = None
    async with (
        http_port(services) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
        asyncio.timeout(20),
    ):
        assert (await client.get("/metrics")).status == 404


async def test_a_turn_shows_in_the_metrics_of_a_real_server() -> None:
    services = make_sim_services(runtime=RuntimeSettings(), metrics=PrometheusMetrics())
    async with (
        serving(services) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.http_port}") as client,
        asyncio.timeout(20),
    ):
        created = await client.post("/v1/responses", json={"model": "sim", "input": "Secret"})
        assert created.status == 200
        await services.afterwork.finish(5)
        text = await (await client.get("/metrics")).text()
    counted = 'turnwire_turns_total{model="sim",status="completed",transport="http"} 1.0'
    assert counted in text
    assert "Secret" not in text
