"""WebSocket: the public JSON, one event per text frame, on one aiohttp connection."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web
from multidict import CIMultiDict

from turnwire.v1.client_event_pb2 import ClientEvent, TurnwireSessionStart
from turnwire.v1.error_pb2 import ERROR_REASON_INVALID_VALUE
from turnwire_server.codec.faults import Fault
from turnwire_server.codec.requests import decode_client_event
from turnwire_server.runtime.connection import Connection, Ending, KeepaliveMode
from turnwire_server.runtime.reports import log_bug
from turnwire_server.runtime.services import Services
from turnwire_server.session.errors import Rejection
from turnwire_server.transports.encoding import refused_event, rejection_of
from turnwire_server.transports.http_errors import RefusedError
from turnwire_server.transports.turns import overload
from turnwire_server.transports.websocket_mask import MaskGuard
from turnwire_server.transports.websocket_pings import Pings
from turnwire_server.transports.websocket_socket import FAULTS, Close, Socket, TextSink

__all__ = ["WebSocketBridge", "WebSocketSettings", "subprotocol_token"]

logger = logging.getLogger("turnwire.transports")

KEY_PROTOCOL = "openai-insecure-api-key."
_SECRET_PROTOCOLS = "openai-"


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


class WebSocketBridge:
    """Serves upgraded requests: one socket is one connection."""

    def __init__(self, services: Services, settings: WebSocketSettings) -> None:
        self._services = services
        self._settings = settings

    async def serve(self, request: web.Request, tenant: str) -> web.StreamResponse:
        """Upgrade and serve until the connection is over.

        Cancelling it (aiohttp does when the client hangs up) cancels every turn, unless the session
        may be resumed and the client went without a word.

        Raises:
            RefusedError: Not upgraded.
        """
        if (refusal := overload(self._services)) is not None:
            raise RefusedError(refusal)
        keepalive = _keepalive(request)
        limit = self._services.settings.max_message_bytes
        offered = _offered_protocols(request)
        echoed = [name for name in offered if not name.startswith(_SECRET_PROTOCOLS)][:1]
        socket = Socket(
            timeout=self._settings.close_timeout_s,
            # aiohttp gives up 1.5 heartbeats after the last byte.
            heartbeat=self._settings.silence_limit_s / 1.5,
            protocols=echoed,
            compress=self._settings.compression,
            max_msg_size=limit + 1,  # aiohttp refuses a message of this size.
            autoclose=False,  # Turns are told before the client's close is answered.
            autoping=False,  # Pings and pongs are heard, as signs of life.
        )
        if offered and not echoed:
            # aiohttp logs protocols that it does not select, and here they are secrets.
            headers = CIMultiDict(request.headers)
            headers.popall("sec-websocket-protocol")
            writer = await socket.prepare(request.clone(headers=headers))
        else:
            writer = await socket.prepare(request)
        protocol: Any = request.protocol  # `http_protocol`'s, which imports what serves it.
        frames: MaskGuard = protocol.take_frames()
        frames.max_text_bytes = limit
        transport = request.transport
        if transport is None:
            return socket
        connection = self._services.connect(
            TextSink(socket, transport, writer),
            wire="websocket",
            tenant=tenant,
            keepalive=keepalive,
            was_lost=lambda: socket.was_lost,
        )
        if request.headers.get("turnwire-resume") == "1":
            start = TurnwireSessionStart(resume=True)
            connection.receive(ClientEvent(turnwire_session_start=start), 0)
        reader = asyncio.create_task(self._read(socket, frames, transport, connection))
        try:
            ending = await connection.run()
        except Exception as error:  # The outermost frame: no HTTP answer may follow an upgrade.
            log_bug(logger, "connection failed", error)
            ending = Ending("internal")
        finally:
            # Before closing: with a reader in `receive`, aiohttp hangs up at once.
            reader.cancel()
            (fault,) = await asyncio.gather(reader, return_exceptions=True)
            socket.forget_fault()
        if isinstance(fault, tuple):
            await socket.fail(transport, fault, linger_s=self._settings.close_timeout_s)
        elif ending.reason not in ("disconnected", "lost"):
            code, reason = _close_of(ending)
            await socket.close(code=code, message=reason)
        return socket

    async def _read(
        self,
        socket: Socket,
        frames: MaskGuard,
        transport: asyncio.Transport,
        connection: Connection,
    ) -> Close | None:
        """Hand over what arrives until the socket is closed; return why it must be closed."""
        close: Close | None = None
        pings = Pings(socket, transport, self._settings.ping_interval_s)
        try:
            close = await self._read_events(socket, frames, pings, connection)
        except ConnectionError:
            pass
        except Exception as error:  # The reader's outermost frame: a bug must not hang the socket.
            log_bug(logger, "reader failed", error)
            close = (WSCloseCode.INTERNAL_ERROR, b"internal error")
        finally:
            frames.receiver = None
            pings.stop()
        if close is not None:
            connection.disconnect()
            return close
        connection.vanish()
        if socket.client_code is not None:
            await socket.close(drain=False)  # the client hangs up: a write may fail
        return None

    async def _read_events(
        self, socket: Socket, frames: MaskGuard, pings: Pings, connection: Connection
    ) -> Close | None:
        bugs: list[Exception] = []

        def receive(text: str, size: int) -> bool:
            pings.heard()
            try:
                _receive(connection, text, size)
            except Exception as bug:  # The reader's, as if it had read the text itself.
                bugs.append(bug)
                return False
            return not connection.is_crowded

        while True:
            frames.receiver = receive
            message = await socket.receive()
            frames.receiver = None
            pings.heard()
            if bugs:
                raise bugs.pop()
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                is_text = message.type is WSMsgType.TEXT
                try:
                    text = message.data if is_text else message.data.decode()
                except UnicodeDecodeError:
                    return (WSCloseCode.INVALID_TEXT, FAULTS[WSCloseCode.INVALID_TEXT])
                _receive(connection, text, len(text) if text.isascii() else len(text.encode()))
                # An idle session holds nothing of the last message while it waits for the next.
                del message, text
            elif message.type is WSMsgType.PING:
                await socket.pong(message.data)
                continue
            elif message.type is not WSMsgType.PONG:
                if message.type is WSMsgType.CLOSE:
                    socket.client_code = message.data
                return self._fault_of(message.data)
            if connection.is_crowded:
                await connection.calm()

    def _fault_of(self, detail: object) -> Close | None:
        """Return how to close for what aiohttp found, None when the client closed."""
        code = getattr(detail, "code", None)
        if code is None:
            return None
        limit = self._services.settings.max_message_bytes
        return (code, FAULTS.get(code, b"protocol error") % {b"limit": limit})


def _receive(connection: Connection, text: str, size: int) -> None:
    """Hand over an event of `size` bytes."""
    event = decode_client_event(text)
    if isinstance(event, Fault):
        connection.reject(
            rejection_of(event),
            stream_id=event.stream_id,
            event_id=event.event_id,
            event=refused_event(text),
            size=size,
        )
    else:
        connection.receive(event, size)


def _keepalive(request: web.Request) -> KeepaliveMode | None:
    match request.query.get("keepalive"):
        case None | "event" | "in_progress" | "off" as mode:
            return mode
    message = "`keepalive` is `event`, `in_progress` or `off`."
    raise RefusedError(Rejection(ERROR_REASON_INVALID_VALUE, message, "keepalive"))


def _close_of(ending: Ending) -> Close:
    """Return the close code of an ending; 1000 stops the SDKs' reconnect, 1001 and 1012 do not."""
    match ending.reason:
        case "age" | "drain":
            reason = b"connection age limit" if ending.reason == "age" else b"server goes away"
            code = WSCloseCode.SERVICE_RESTART if ending.turns_cut else WSCloseCode.GOING_AWAY
            return (code, reason)
        case "internal":
            return (WSCloseCode.INTERNAL_ERROR, b"internal error")
        case "taken_over":
            return (WSCloseCode.OK, b"session taken over")
        case _:
            return (WSCloseCode.OK, b"")
