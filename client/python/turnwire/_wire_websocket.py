"""The WebSocket wire."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import aiohttp

from turnwire._create import Create
from turnwire._http_calls import HttpCalls, client_error, open_client
from turnwire._reading import EventReader
from turnwire._rejections import rejection, seconds
from turnwire._wire import Arrival, Target, WireName, WireSettings
from turnwire._writing import EventWriter
from turnwire.errors import ConnectionFailed, ConnectionLost, ProtocolViolation, TurnwireError
from turnwire.v1.client_event_pb2 import ClientEvent

__all__ = ["WebSocketWire", "open_websocket"]

_HEARTBEAT_S = 20.0
_NORMAL = 1000
_NO_CODE = 1005
_ABNORMAL = 1006
# Others say that what was sent is at fault, or mean something of the server's own.
_PASSING = frozenset({_NORMAL, 1001, _NO_CODE, _ABNORMAL, 1011, 1012, 1013, 1014, 1015})
_RESUME_HEADERS = {"turnwire-resume": "1"}


async def open_websocket(
    target: Target, settings: WireSettings, *, wants_resume: bool = False
) -> WebSocketWire:
    """Connect and shake hands.

    Args:
        target: Where the server is.
        settings: What all wires are told.
        wants_resume: Ask for a session that can be resumed: by a header, which other servers
            ignore.

    Raises:
        AuthenticationFailed: The key is missing or wrong.
        ConnectionFailed: There is no server, it does not speak WebSocket here (`status` 426 when
            that is switched off), or not within `connect_timeout_s`.
    """
    client = open_client(settings)
    url = f"{target.http_base}/responses"
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            socket = await client.ws_connect(
                url,
                headers=_RESUME_HEADERS if wants_resume else None,
                heartbeat=_HEARTBEAT_S,
                # Answers to pings are seen here, so that one can be waited for.
                autoping=False,
                # The server has the limits.
                max_msg_size=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=settings.close_timeout_s),
            )
        return WebSocketWire(client, socket, target, settings)
    except aiohttp.WSServerHandshakeError as error:
        await client.close()
        raise _refused(error, target.authority) from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        await client.close()
        raise ConnectionFailed(str(client_error(error, target.authority))) from None
    except BaseException:
        await client.close()
        raise


class WebSocketWire:
    """One WebSocket, and HTTP calls to the same origin."""

    name: WireName = "websocket"
    persistent = True

    def __init__(
        self,
        client: aiohttp.ClientSession,
        socket: aiohttp.ClientWebSocketResponse,
        target: Target,
        settings: WireSettings,
    ) -> None:
        self._client = client
        self._socket = socket
        self._reader = EventReader()
        self._writer = EventWriter()
        self._pong = asyncio.Event()
        self.unary = HttpCalls(client, target, settings.unary_timeout_s)

    @property
    def unary_bytes(self) -> tuple[int, int]:
        """Payload bytes of `unary` so far, up and down."""
        return self.unary.bytes_up, self.unary.bytes_down

    async def send(self, event: ClientEvent) -> int:
        """Write one text message."""
        return await self._write(self._writer.write(event))

    async def send_create(self, create: Create) -> int:
        """Write a create of which there is no message yet."""
        return await self._write(self._writer.write_create(create))

    async def _write(self, data: bytes) -> int:
        try:
            # The JSON is UTF-8 already: as bytes in a text frame it is not decoded to be encoded.
            await self._socket.send_frame(data, aiohttp.WSMsgType.TEXT)
        except (aiohttp.ClientError, OSError):
            raise _lost(self._socket.close_code or _ABNORMAL) from None
        return len(data)

    async def receive(self) -> Sequence[Arrival]:
        """Read one message."""
        message = await self._socket.receive()
        kind = message.type
        if kind is aiohttp.WSMsgType.TEXT:
            text: str = message.data
            size = len(text) if text.isascii() else len(text.encode())
            return (self._reader.read(text, size),)
        if kind is aiohttp.WSMsgType.PONG:
            self._pong.set()
            return ()
        if kind is aiohttp.WSMsgType.PING:
            try:
                await self._socket.pong(message.data)
            except (aiohttp.ClientError, OSError):
                raise _lost(_ABNORMAL) from None
            return ()
        if kind is aiohttp.WSMsgType.BINARY:
            raise ProtocolViolation("a binary message came")
        if kind is aiohttp.WSMsgType.CLOSE:
            raise _lost(message.data or _NO_CODE)
        # No word of the server. What aiohttp has for a code is of its own making then.
        fault = message.data if kind is aiohttp.WSMsgType.ERROR else None
        raise _lost(fault.code if isinstance(fault, aiohttp.WebSocketError) else _ABNORMAL)

    async def ping(self) -> None:
        """Send a ping and wait for the answer."""
        self._pong.clear()
        try:
            await self._socket.ping()
        except (aiohttp.ClientError, OSError):
            raise _lost(_ABNORMAL) from None
        await self._pong.wait()

    async def close(self) -> None:
        """Close with 1000 and wait for the server's close frame."""
        await self._socket.close(code=_NORMAL)

    async def abort(self) -> None:
        """Say good-bye without waiting for an answer, and close all connections."""
        with suppress(TimeoutError):
            # Closing is what releases the connection; the bound cuts its wait for the other side.
            async with asyncio.timeout(0):
                await self._socket.close(code=_NORMAL)
        await self._client.close()


def _lost(code: int) -> ConnectionLost:
    return ConnectionLost(
        f"the connection was closed ({code})", close_code=code, retryable=code in _PASSING
    )


def _refused(error: aiohttp.WSServerHandshakeError, authority: str) -> TurnwireError:
    text = f"{authority} refused the WebSocket with HTTP status {error.status}"
    if error.status == 401:
        return rejection("invalid_api_key", text, status=401)
    if error.status == 403:
        return rejection("permission_denied", text, status=403)
    headers: Mapping[str, str] = error.headers or {}
    return ConnectionFailed(
        text, status=error.status, retry_after_s=seconds(headers.get("retry-after"))
    )
