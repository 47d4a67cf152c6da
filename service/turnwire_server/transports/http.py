"""HTTP and WebSocket on one port: the aiohttp application and its runner."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from turnwire.v1.error_pb2 import ERROR_REASON_TRANSPORT_DISABLED
from turnwire_server.codec.openapi import openapi
from turnwire_server.ports.metrics import Exposition
from turnwire_server.runtime.services import Services
from turnwire_server.runtime.unary import UnaryApi
from turnwire_server.session.errors import Rejection
from turnwire_server.transports.admin import METRICS_PATH, admin_routes
from turnwire_server.transports.http_body import BODIES, BodyReader
from turnwire_server.transports.http_conversations import ConversationsApi
from turnwire_server.transports.http_errors import answer_errors, error_answer, name_answer
from turnwire_server.transports.http_origin import OriginPolicy
from turnwire_server.transports.http_protocol import WebRunner
from turnwire_server.transports.http_responses import TENANT, ResponsesApi
from turnwire_server.transports.turns import bearer_token
from turnwire_server.transports.websocket import (
    WebSocketBridge,
    WebSocketSettings,
    subprotocol_token,
)

__all__ = ["HttpSettings", "make_web_app", "make_web_runner"]

RESPONSES_PATHS = ("/v1/responses", "/v1/codex/responses")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of the HTTP port. The body limit is `max_message_bytes` of the services."""

    websocket: WebSocketSettings | None = field(default_factory=WebSocketSettings)
    """Settings of upgraded connections; None answers upgrades with 426."""
    max_header_bytes: int = 65_536
    """Limit of the request line and of each header; Codex sends JSON in headers."""
    idle_timeout_s: float = 630.0
    """How long a kept-alive connection may wait for its next request."""
    shutdown_timeout_s: float = 5.0
    """How long running requests may take after the server was told to stop."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may use the server, as browsers send them, for example
    `https://app.example`; without keys, pages of loopback addresses may too."""
    metrics: bool = True
    """Whether to count, and to show it at `/metrics`."""


def make_web_app(
    services: Services,
    settings: HttpSettings,
    *,
    unary: UnaryApi | None = None,
    exposition: Callable[[], Awaitable[Exposition]] | None = None,
) -> web.Application:
    """Return the application; serve it with `make_web_runner`.

    Args:
        services: The server's services.
        settings: How to serve.
        unary: The unary calls, made from `services` when None.
        exposition: Returns the metrics to show; those of `services` alone when None.
    """
    api = ResponsesApi(services, unary or UnaryApi(services))
    bodies = BodyReader(services.settings.max_message_bytes)
    origins = OriginPolicy(settings.allowed_origins, has_keys=bool(services.settings.auth_keys))
    app = web.Application(middlewares=[answer_errors, origins.admit, _authorizing(services)])
    app[BODIES] = bodies
    app.on_cleanup.append(bodies.close)
    app.on_response_prepare.extend((name_answer, origins.share))
    connect = _upgrading(services, settings.websocket)
    for path in RESPONSES_PATHS:
        app.router.add_get(path, connect, allow_head=False)
        app.router.add_post(path, api.create)
        app.router.add_route("HEAD", path, _head)
    app.router.add_routes(api.routes())
    app.router.add_routes(ConversationsApi(services).routes())
    app.router.add_routes(admin_routes(services, exposition))
    app.router.add_get("/openapi.json", _describe)
    return app


def make_web_runner(app: web.Application, settings: HttpSettings) -> web.AppRunner:
    """Return the runner that the handlers rely on.

    It cancels a handler when its client hangs up, leaves bodies compressed, so that the limit can
    be counted after decompression, and keeps what clients send out of answers and logs.
    """
    return WebRunner(
        app,
        shutdown_timeout_s=settings.shutdown_timeout_s,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=settings.idle_timeout_s,
        max_field_size=settings.max_header_bytes,
        max_line_size=settings.max_header_bytes,
    )


def _is_upgrade(request: web.Request) -> bool:
    return request.headers.get("upgrade", "").strip().lower() == "websocket"


def _authorizing(services: Services) -> Middleware:
    """Return the middleware that admits `/v1/` and metrics to known keys, before any upgrade."""

    @web.middleware
    async def authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_guarded = request.path.startswith("/v1/") or request.path == METRICS_PATH
        if is_guarded and request.method != "OPTIONS":
            token = bearer_token(request.headers.get("authorization"))
            if token is None and _is_upgrade(request):
                token = subprotocol_token(request)
            if token is not None and not token.isascii():
                token = None  # No key is; and it may be bytes that no text can hold.
            tenant = services.authorize(token)
            if isinstance(tenant, Rejection):
                answer = error_answer(tenant)
                answer.headers.setdefault("www-authenticate", "Bearer")
                return answer
            TENANT.set(tenant)
        return await handler(request)

    return authorize


def _upgrading(services: Services, settings: WebSocketSettings | None) -> Handler:
    """Return the handler of GET on the responses path: upgrade, or 426."""
    bridge = None if settings is None else WebSocketBridge(services, settings)

    async def connect(request: web.Request) -> web.StreamResponse:
        if bridge is not None and _is_upgrade(request):
            return await bridge.serve(request, TENANT.get())
        if bridge is None:
            message = "WebSocket is switched off here; POST to this path instead."
        else:
            message = "GET here opens a WebSocket; POST to this path for one response."
        answer = error_answer(Rejection(ERROR_REASON_TRANSPORT_DISABLED, message))
        if bridge is not None:
            answer.headers["upgrade"] = "websocket"
        return answer

    return connect


async def _head(request: web.Request) -> web.Response:
    return web.Response(headers={"allow": "GET, HEAD, OPTIONS, POST"})


@functools.cache  # It takes 0.2 s to make and is the same for every application.
def _document() -> bytes:
    return orjson.dumps(openapi())


async def _describe(request: web.Request) -> web.Response:
    return web.Response(body=_document(), content_type="application/json")
