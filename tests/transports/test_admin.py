from __future__ import annotations

import asyncio

import aiohttp

from harness.fake_services import FakeServices
from harness.wire_servers import http_port


async def test_probes_need_no_key_and_readiness_follows_the_services() -> None:
    services = FakeServices(key="secret")
    async with (
        http_port(services) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
        asyncio.timeout(5),
    ):
        assert (await client.get("/healthz")).status == 200
        ready = await client.get("/readyz")
        assert (ready.status, await ready.json()) == (200, {"status": "ready"})
        services.accepting = False
        assert (await client.get("/healthz")).status == 200
        ready = await client.get("/readyz")
        assert (ready.status, await ready.json()) == (503, {"status": "draining"})
