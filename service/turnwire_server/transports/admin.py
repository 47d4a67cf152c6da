"""For whoever runs the server: alive, ready for new work, and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from turnwire_server.ports.metrics import Exposition
from turnwire_server.runtime.services import Services

__all__ = ["METRICS_PATH", "admin_routes"]

METRICS_PATH: Final = "/metrics"


def admin_routes(
    services: Services, exposition: Callable[[], Awaitable[Exposition]] | None = None
) -> list[web.RouteDef]:
    """Return the routes.

    `/healthz`: the loop runs; `/readyz`: new work is accepted, else 503; `/metrics`, where the
    services count. The last one needs a key where there are keys.

    Args:
        services: Whose.
        exposition: Returns the metrics to show; those of the services alone when None.
    """

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(request: web.Request) -> web.Response:
        if services.accepting:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "draining"}, status=503)

    async def expose(request: web.Request) -> web.Response:
        if services.metrics is None:
            raise web.HTTPNotFound
        if exposition is None:
            shown = services.metrics.exposition(services.levels())
        else:
            shown = await exposition()
        return web.Response(body=shown.body, headers={"content-type": shown.content_type})

    return [
        web.get("/healthz", health),
        web.get("/readyz", ready),
        web.get(METRICS_PATH, expose),
    ]
