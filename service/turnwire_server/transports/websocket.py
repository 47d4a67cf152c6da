"""WebSocket: the public JSON, one event per text frame, on one aiohttp connection.

aiohttp parses what arrives and answers pings. What leaves is framed here (RFC 6455, 5.2; a
server does not mask), so that a batch of events is one write; with compression the frames are
aiohttp's.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

from turnwire.v1.client_event_pb2 import ClientEvent, TurnwireSessionStart
from turnwire.v1.error_pb2 import ERROR_REASON_INVALID_VALUE
from turnwire_server.codec.faults import Fault
from turnwire_server.codec.requests import decode_client_event
from turnwire_server.runtime.connection import Connection, Ending, KeepaliveMode
from turnwire_server.runtime.services import Services
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Outgoing
from turnwire_server.transports.encoding import JsonEncoder, refused_create, rejection_of
from turnwire_server.transports.http_errors import RefusedError
from turnwire_server.transports.turns import overload

__all__ = ["WebSocketBridge", "WebSocketSettings", "subprotocol_token"]

logger = logging.getLogger("turnwire.transports")

KEY_PROTOCOL = "openai-insecure-api-key."
_SECRET_PROTOCOLS = "openai-"

_LENGTH_16 = struct.Struct(">BBH")
_LENGTH_64 = struct.Struct(">BBQ")
_FINAL_TEXT = 0x81

_Close = tuple[int, bytes]

_FAULTS = {
    WSCloseCode.PROTOCOL_ERROR: b"protocol error",
    WSCloseCode.INVALID_TEXT: b"not UTF-8",
    WSCloseCode.MESSAGE_TOO_BIG: b"message over %(limit)d bytes",
}
"""What a client can do wrong below the level of events, and the reason that it is given."""


@dataclass(frozen=True, slots=True)
class WebSocketSettings:
    """Settings of WebSocket connections. The limit is `max_message_bytes` of the services."""

    ping_interval_s: float = 20.0
    """Ping after so long without a message or a pong from the client."""
    silence_limit_s: float = 60.0
    """Drop the connection after so long without any byte from the client."""
    close_timeout_s: float = 10.0
    """How long to wait for the client's half of a closing handshake."""
    compression: bool = False
    """Whether to accept permessage-deflate; it costs more than it saves on a fast network."""


def _offered_protocols(request: web.Request) -> list[str]:
    values = request.headers.getall("sec-websocket-protocol", [])
    return [offered.strip() for value in values for offered in value.split(",")]


def subprotocol_token(request: web.Request) -> str | None:
    """Return the key that a browser put among the subprotocols, None when there is none."""
    for offered in _offered_protocols(request):
        if offered.startswith(KEY_PROTOCOL):
            return offered.removeprefix(KEY_PROTOCOL)
    return None


class _Socket(web.WebSocketResponse):
    """Leaves it to `fail` to close after a fault.

    aiohttp closes at once and without a reason when it finds a fault, and while the rest of an
    oversize message is still on its way that resets the connection before the client has read
    the close frame.
    """

    async def close(
        self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True
    ) -> bool:
        if code in _FAULTS:
            return False
        return await super().close(code=code, message=message, drain=drain)

    async def fail(self, transport: asyncio.Transport, close: _Close, *, linger_s: float) -> None:
        """Close for the client's fault, and read on until it has seen it.

        Cancelled (by aiohttp, when the client hangs up) or after `linger_s`, it is over.
        """
        code, reason = close
        try:
            await self.send_frame(code.to_bytes(2, "big") + reason, WSMsgType.CLOSE)
            if transport.can_write_eof():
                transport.write_eof()
            await asyncio.sleep(linger_s)
        except ConnectionError:
            pass
        finally:
            transport.abort()


class _TextSink:
    """Writes events to one socket, a batch in one write."""

    __slots__ = ("_drain", "_encoder", "_is_compressed", "_socket", "_transport")

    def __init__(
        self, socket: _Socket, transport: asyncio.Transport, writer: AbstractStreamWriter
    ) -> None:
        self._encoder = JsonEncoder()
        self._socket = socket
        self._transport = transport
        self._drain = writer.drain
        self._is_compressed = bool(socket.compress)

    def encode(self, event: Outgoing) -> bytes:
        """Return the event as a text frame; as its payload when frames are compressed."""
        payload = self._encoder.encode(event)
        if self._is_compressed:
            return payload
        size = len(payload)
        if size < 126:
            return bytes((_FINAL_TEXT, size)) + payload
        if size < 65_536:
            return _LENGTH_16.pack(_FINAL_TEXT, 126, size) + payload
        return _LENGTH_64.pack(_FINAL_TEXT, 127, size) + payload

    async def write(self, batch: Sequence[bytes]) -> None:
        """Write the frames.

        Raises:
            ConnectionError: The socket is closed or closing.
        """
        if self._socket.closed or self._transport.is_closing():
            raise ConnectionResetError("the socket is closed")
        if self._is_compressed:
            for payload in batch:
                await self._socket.send_frame(payload, WSMsgType.TEXT)
        else:
            self._transport.write(b"".join(batch))
        await self._drain()

    def heartbeat(self) -> bytes | None:
        """Return None: pings are the transport's, keepalive events the session's."""
        return None


class WebSocketBridge:
    """Serves upgraded requests: one socket is one connection."""

    def __init__(self, services: Services, settings: WebSocketSettings) -> None:
        self._services = services
        self._settings = settings

    async def serve(self, request: web.Request, tenant: str) -> web.StreamResponse:
        """Upgrade and serve until the connection is over.

        Cancelling it (aiohttp does when the client hangs up) cancels every turn.

        Raises:
            RefusedError: Not upgraded.
        """
        if (refusal := overload(self._services)) is not None:
            raise RefusedError(refusal)
        keepalive = _keepalive(request)
        limit = self._services.settings.max_message_bytes
        offered = _offered_protocols(request)
        echoed = [name for name in offered if not name.startswith(_SECRET_PROTOCOLS)][:1]
        socket = _Socket(
            timeout=self._settings.close_timeout_s,
            # aiohttp gives up 1.5 heartbeats after the last byte.
            heartbeat=self._settings.silence_limit_s / 1.5,
            protocols=echoed,
            compress=self._settings.compression,
            max_msg_size=limit + 1,  # aiohttp refuses a message of this size.
        )
        if offered and not echoed:
            # aiohttp logs protocols that it does not select, and here they are secrets.
            headers = CIMultiDict(request.headers)
            headers.popall("sec-websocket-protocol")
            writer = await socket.prepare(request.clone(headers=headers))
        else:
            writer = await socket.prepare(request)
        transport = request.transport
        if transport is None:
            return socket
        connection = self._services.connect(
            _TextSink(socket, transport, writer),
            wire="websocket",
            tenant=tenant,
            keepalive=keepalive,
        )
        if request.headers.get("turnwire-resume") == "1":
            start = TurnwireSessionStart(resume=True)
            connection.receive(ClientEvent(turnwire_session_start=start), 0)
        reader = asyncio.create_task(self._read(socket, transport, connection))
        try:
            ending = await connection.run()
        finally:
            # Before closing: with a reader in `receive`, aiohttp hangs up at once.
            reader.cancel()
            (fault,) = await asyncio.gather(reader, return_exceptions=True)
        if isinstance(fault, tuple):
            await socket.fail(transport, fault, linger_s=self._settings.close_timeout_s)
        elif ending.reason != "disconnected":
            code, reason = _close_of(ending)
            await socket.close(code=code, message=reason)
        return socket

    async def _read(
        self, socket: _Socket, transport: asyncio.Transport, connection: Connection
    ) -> _Close | None:
        """Hand over what arrives until the socket is closed; return why it must be closed."""
        close: _Close | None = None
        try:
            close = await self._read_events(socket, transport, connection)
        except ConnectionError:
            pass
        except Exception:  # The outermost frame of the reader: a bug must not hang the socket.
            logger.exception("reader failed")
            close = (WSCloseCode.INTERNAL_ERROR, b"internal error")
        connection.disconnect()
        return close

    async def _read_events(
        self, socket: _Socket, transport: asyncio.Transport, connection: Connection
    ) -> _Close | None:
        while True:
            try:
                message = await socket.receive(timeout=self._settings.ping_interval_s)
            except TimeoutError:
                if transport.get_write_buffer_size() == 0:  # Else what waits there is the probe.
                    await socket.ping()
                continue
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return self._fault_of(message.data)
            try:
                data = message.data if message.type is WSMsgType.TEXT else message.data.decode()
            except UnicodeDecodeError:
                return (WSCloseCode.INVALID_TEXT, _FAULTS[WSCloseCode.INVALID_TEXT])
            size = len(data) if data.isascii() else len(data.encode())
            event = decode_client_event(data)
            if isinstance(event, Fault):
                connection.reject(
                    rejection_of(event),
                    stream_id=event.stream_id,
                    event_id=event.event_id,
                    create=refused_create(data),
                    size=size,
                )
            else:
                connection.receive(event, size)

    def _fault_of(self, detail: object) -> _Close | None:
        """Return how to close for what aiohttp found, None when the client closed."""
        code = getattr(detail, "code", None)
        if code is None:
            return None
        limit = self._services.settings.max_message_bytes
        return (code, _FAULTS.get(code, b"protocol error") % {b"limit": limit})


def _keepalive(request: web.Request) -> KeepaliveMode | None:
    match request.query.get("keepalive"):
        case None | "event" | "in_progress" | "off" as mode:
            return mode
    message = "`keepalive` is `event`, `in_progress` or `off`."
    raise RefusedError(Rejection(ERROR_REASON_INVALID_VALUE, message, "keepalive"))


def _close_of(ending: Ending) -> _Close:
    """Return the close code of an ending; 1000 stops the SDKs' reconnect, 1001 and 1012 do not."""
    match ending.reason:
        case "age" | "drain":
            reason = b"connection age limit" if ending.reason == "age" else b"server goes away"
            code = WSCloseCode.SERVICE_RESTART if ending.turns_cut else WSCloseCode.GOING_AWAY
            return (code, reason)
        case "internal":
            return (WSCloseCode.INTERNAL_ERROR, b"internal error")
        case _:
            return (WSCloseCode.OK, b"")
