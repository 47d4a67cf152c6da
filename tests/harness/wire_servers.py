"""Our servers on a free port of 127.0.0.1, around fake services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
from aiohttp import web

from harness.fake_services import FakeServices, FakeUnaryApi
from harness.grpc_backends import on_backend
from turnwire_server.transports.grpc import GrpcSettings, make_grpc_server
from turnwire_server.transports.http import HttpSettings, make_web_app, make_web_runner

__all__ = ["CONNECT", "RESPONSES", "grpc_port", "http_port", "raw_call", "serving_grpc"]

CONNECT = "/turnwire.v1.SessionService/Connect"
RESPONSES = "/turnwire.v1.ResponsesService/"


@asynccontextmanager
async def grpc_port(
    services: FakeServices,
    settings: GrpcSettings | None = None,
    unary: FakeUnaryApi | None = None,
) -> AsyncIterator[int]:
    """Serve gRPC; stopping cuts the calls that are left."""
    server = make_grpc_server(
        cast(Any, services), on_backend(settings), unary=cast(Any, unary or FakeUnaryApi())
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@asynccontextmanager
async def serving_grpc(
    services: FakeServices,
    settings: GrpcSettings | None = None,
    unary: FakeUnaryApi | None = None,
    options: list[tuple[str, Any]] | None = None,
) -> AsyncIterator[grpc.aio.Channel]:
    """Serve gRPC and open a channel to it."""
    async with (
        grpc_port(services, settings, unary) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel,
    ):
        yield channel


@asynccontextmanager
async def http_port(
    services: FakeServices,
    settings: HttpSettings | None = None,
    unary: FakeUnaryApi | None = None,
) -> AsyncIterator[int]:
    """Serve HTTP and WebSocket."""
    settings = settings or HttpSettings()
    app = make_web_app(cast(Any, services), settings, unary=cast(Any, unary or FakeUnaryApi()))
    runner = make_web_runner(app, settings)
    await runner.setup()
    try:
        site = await _listen(runner)
        yield site
    finally:
        await runner.cleanup()


async def _listen(runner: Any) -> int:
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return int(runner.addresses[0][1])


def raw_call(channel: grpc.aio.Channel, path: str) -> Any:
    """Return a callable for `path` that sends and receives bytes."""
    if path == CONNECT:
        return channel.stream_stream(path)
    if path.endswith("/StreamCreate"):
        return channel.unary_stream(path)
    return channel.unary_unary(path)
