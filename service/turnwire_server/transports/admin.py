"""Probes for whoever runs the server: alive, and ready for new work."""

from __future__ import annotations

from aiohttp import web

from turnwire_server.runtime.services import Services

__all__ = ["admin_routes"]


def admin_routes(services: Services) -> list[web.RouteDef]:
    """Return `/healthz` (the loop runs) and `/readyz` (new work is accepted, else 503)."""

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(request: web.Request) -> web.Response:
        if services.accepting:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "draining"}, status=503)

    return [web.get("/healthz", health), web.get("/readyz", ready)]
