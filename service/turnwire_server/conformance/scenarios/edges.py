"""The edges of the transports: handshakes, keys, methods, frames."""

from __future__ import annotations

from typing import Final

import aiohttp

from turnwire_server.conformance.checks import Collector, Failure, Skip, Transport, bounded
from turnwire_server.conformance.clients.persistent import Lost
from turnwire_server.conformance.context import Context

__all__ = ["SCENARIO"]

SCENARIO: Final = Collector("2")

_HTTP: Final[tuple[Transport, ...]] = ("http",)
_WEBSOCKET: Final[tuple[Transport, ...]] = ("websocket",)
_WRONG_KEY: Final = "sk-conformance-wrong"
_LARGE: Final = 2 << 20
_NO_KEYS: Final = "the server admits everybody"


@SCENARIO("http.get_426", "GET on the responses path without an upgrade is 426.", transports=_HTTP)
async def _get(context: Context) -> None:
    answer = await context.request("GET", "/responses")
    if answer.status != 426:
        raise Failure(f"it is answered with {answer.status}")


@SCENARIO("http.head", "HEAD on the responses path is answered.", transports=_HTTP)
async def _head(context: Context) -> None:
    answer = await context.request("HEAD", "/responses")
    if answer.status >= 500:
        raise Failure(f"it is answered with {answer.status}")


@SCENARIO("http.options", "OPTIONS on the responses path is answered.", transports=_HTTP)
async def _options(context: Context) -> None:
    answer = await context.request("OPTIONS", "/responses")
    if answer.status >= 500:
        raise Failure(f"it is answered with {answer.status}")


@SCENARIO("http.unauthorized", "A wrong key is 401 with an error body.", transports=_HTTP)
async def _unauthorized(context: Context) -> None:
    headers = {"authorization": f"Bearer {_WRONG_KEY}"}
    body = context.create()
    del body["type"]
    answer = await context.request("POST", "/responses", body, headers=headers)
    context.skip_unless(answer.status != 200, _NO_KEYS)
    error = answer.json.get("error") if isinstance(answer.json, dict) else None
    if answer.status != 401 or not isinstance(error, dict):
        raise Failure(f"it is answered with {answer.status}", answer.json)


@SCENARIO("websocket.unauthorized", "A wrong key refuses the upgrade: 401.", transports=_WEBSOCKET)
async def _upgrade_unauthorized(context: Context) -> None:
    try:
        socket = await context.http.upgrade(headers={"authorization": f"Bearer {_WRONG_KEY}"})
    except aiohttp.WSServerHandshakeError as error:
        if error.status != 401:
            raise Failure(f"it is answered with {error.status}") from None
        return
    await socket.close()
    raise Skip(_NO_KEYS)


@SCENARIO(
    "grpc.unauthorized", "A wrong key ends the stream: UNAUTHENTICATED.", transports=("grpc",)
)
async def _stream_unauthorized(context: Context) -> None:
    assert context.server.grpc is not None
    status = await context.server.grpc.status_with(_WRONG_KEY, context.timeout_s)
    context.skip_unless(status != "OK", _NO_KEYS)
    if status != "UNAUTHENTICATED":
        raise Failure(f"the status is {status}")


@SCENARIO(
    "websocket.handshake",
    "Unknown queries and beta headers do not matter.",
    transports=_WEBSOCKET,
)
async def _handshake(context: Context) -> None:
    headers = {"openai-beta": "responses_websockets=2026-02-06", "x-conformance": "1"}
    connection = await context.websocket(headers=headers, query="?model=m&conformance=1")
    (await connection.turn(context.create(store=False))).finished()


@SCENARIO(
    "websocket.subprotocol",
    "Of offered subprotocols one is selected, and never the one with the key.",
    transports=_WEBSOCKET,
    profiles=("turnwire",),
)
async def _subprotocol(context: Context) -> None:
    key = f"openai-insecure-api-key.{context.server.settings.api_key or 'sk-conformance'}"
    connection = await context.websocket(protocols=("realtime", key))
    if connection.subprotocol != "realtime":
        selected = "the key" if connection.subprotocol == key else bounded(connection.subprotocol)
        raise Failure(f"the server selected {selected}")
    (await connection.turn(context.create(store=False))).finished()


@SCENARIO(
    "websocket.ignored",
    "`stream`, `stream_options`, `client_metadata` and unknown members are ignored.",
    source="3.1",
    transports=_WEBSOCKET,
)
async def _ignored(context: Context) -> None:
    connection = await context.websocket()
    create = context.create(
        store=False,
        stream=True,
        stream_options={"include_obfuscation": False},
        client_metadata={"x": "y"},
        conformance_unknown={"a": [1]},
    )
    (await connection.turn(create)).finished()


@SCENARIO("websocket.large", "A frame of 2 MiB is taken.", transports=_WEBSOCKET)
async def _large(context: Context) -> None:
    connection = await context.websocket()
    create = context.create(store=False, client_metadata={"x": "x" * _LARGE})
    (await connection.turn(create)).finished()


@SCENARIO("websocket.ping", "A ping is answered, also while a turn runs.", transports=_WEBSOCKET)
async def _ping(context: Context) -> None:
    connection = await context.websocket()
    await connection.send(context.create(store=False))
    try:
        await connection.ping()
    except Lost as lost:
        raise Failure("the connection ended instead") from lost
    (await connection.finish()).finished()
