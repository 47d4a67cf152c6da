"""The server: sockets, connections, and the methods that their calls ask for."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
from grpclib.protocol import AbstractHandler, Stream
from h2.errors import ErrorCodes

from turnwire_server.transports.grpclib import fast_data
from turnwire_server.transports.grpclib.call import Call, send_status
from turnwire_server.transports.grpclib.connection import (
    LINGER_S,
    Connection,
    Connections,
    ConnectionSettings,
    WireProtocol,
)
from turnwire_server.transports.grpclib.headers import BadRequestError, NoGrpcError, read_head

if TYPE_CHECKING:
    from turnwire_server.transports.grpc import GrpcSettings

__all__ = ["GrpclibServer"]

logger = logging.getLogger("turnwire.transports")

_BACKLOG: Final = 4096
_HANDSHAKE_S: Final = 20.0
_CLEANUP_S: Final = 5.0

DIFFERENCE: Final = fast_data.difference()
"""Why the DATA fast path cannot be used with the installed h2, None when it can."""


class _Details(NamedTuple):
    """`grpc.HandlerCallDetails`, which cannot be instantiated."""

    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...]


class GrpclibServer:
    """Serves grpcio's generic handlers; has the part of `grpc.aio.Server` that we use."""

    def __init__(self, settings: GrpcSettings, *, max_message_bytes: int) -> None:
        """Make a server without handlers and ports; call it inside the running loop.

        Args:
            settings: How to serve.
            max_message_bytes: Most bytes of a message in either direction.
        """
        if DIFFERENCE is not None:
            logger.warning(
                "grpclib: DATA goes the plain, slower way, because %s; pip install "
                "'turnwire[grpclib]' brings the h2 that is known",
                DIFFERENCE,
            )
        self._max_message_bytes = max_message_bytes
        self._reuse_port = settings.reuse_port
        self._settings = ConnectionSettings(
            max_concurrent_streams=settings.max_concurrent_streams,
            max_metadata_bytes=settings.max_metadata_bytes,
            ping_interval_s=settings.ping_interval_s,
            ping_timeout_s=settings.ping_timeout_s,
            min_client_ping_interval_s=settings.min_client_ping_interval_s,
            max_ping_strikes=settings.max_ping_strikes,
            is_fast=DIFFERENCE is None,
        )
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._sockets: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._servers: list[asyncio.Server] = []
        self._connections = Connections()
        self._tasks: set[asyncio.Task[None]] = set()

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Serve these methods too."""
        self._handlers.extend(handlers)

    def add_insecure_port(self, address: str) -> int:
        """Listen on `HOST:PORT`; return the port.

        Raises:
            RuntimeError: It cannot be listened on.
        """
        return self._bind(address, None)

    def add_secure_port(self, address: str, context: ssl.SSLContext) -> int:
        """Listen on `HOST:PORT` with TLS; return the port.

        Args:
            address: Where.
            context: With a certificate, and `h2` among its ALPN protocols.

        Raises:
            RuntimeError: It cannot be listened on.
        """
        return self._bind(address, context)

    def _bind(self, address: str, context: ssl.SSLContext | None) -> int:
        host, _, text = address.rpartition(":")
        port = int(text)
        bound: list[socket.socket] = []
        try:
            found = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, number, _, where in dict.fromkeys(found):
                listener = socket.socket(family, kind, number)
                bound.append(listener)
                listener.setblocking(False)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if self._reuse_port:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                listener.bind((where[0], port, *where[2:]))
                port = int(listener.getsockname()[1])  # One port on all addresses.
                listener.listen(_BACKLOG)
        except OSError as error:
            for listener in bound:
                listener.close()
            raise RuntimeError(f"cannot listen on {address}") from error
        self._sockets.extend((listener, context) for listener in bound)
        return port

    async def start(self) -> None:
        """Serve on the ports that were added."""
        loop = asyncio.get_running_loop()
        for listener, context in self._sockets:
            handshake = None if context is None else _HANDSHAKE_S
            self._servers.append(
                await loop.create_server(
                    self._protocol,
                    sock=listener,
                    ssl=context,
                    ssl_handshake_timeout=handshake,
                    backlog=_BACKLOG,
                )
            )

    def _protocol(self) -> WireProtocol:
        return WireProtocol(partial(_Handler, self), self._settings, self._connections)

    async def stop(self, grace: float | None) -> None:
        """Take no more connections, let calls end, then end them; idempotent.

        Args:
            grace: Seconds that calls may take; None for none.
        """
        for server in self._servers:
            server.close()
        if not self._servers:
            for listener, _ in self._sockets:
                listener.close()
        self._sockets.clear()
        for wire in self._connections.all():
            if wire.processor.streams:
                wire.connection.go_away()
            else:
                wire.connection.leave()
        if grace is not None and self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for wire in self._connections.all():
            assert isinstance(wire.processor.handler, _Handler)
            wire.processor.handler.shut_down()
            wire.connection.leave()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLEANUP_S)
        await self._close(LINGER_S if grace else 0.0)

    async def _close(self, patience_s: float) -> None:
        """Wait until the clients have closed their connections, then close what is left."""
        try:
            async with asyncio.timeout(patience_s):
                await self._connections.until_empty()
        except TimeoutError:
            for wire in self._connections.all():
                wire.connection.writer.close()
        try:
            async with asyncio.timeout(LINGER_S):
                await self._connections.until_empty()
        except TimeoutError:  # What they do not read is lost.
            for wire in self._connections.all():
                wire.connection.writer.abort()
            await self._connections.until_empty()

    # From the connections.

    def method(self, path: str, metadata: Any) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the method that a call asks for."""
        details: Any = _Details(path, metadata)
        for handler in self._handlers:
            if (found := handler.service(details)) is not None:
                return found
        return None

    def start_call(self, call: Call, when_done: Any) -> None:
        """Run a call and remember it until it is over."""
        task = call.start(when_done)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def max_message_bytes(self) -> int:
        """Most bytes of a message."""
        return self._max_message_bytes


class _Handler(AbstractHandler):
    """Makes calls of one connection's streams."""

    def __init__(self, server: GrpclibServer, connection: Connection) -> None:
        self._server = server
        self._connection = connection
        self._calls: dict[int, Call] = {}

    def accept(self, stream: Stream, headers: Sequence[Any], release_stream: Any) -> None:
        """Start a call."""
        stream_id = stream.id
        assert stream_id is not None
        connection = self._connection
        try:
            head = read_head(headers, connection.settings.max_metadata_bytes)
            method = self._server.method(head.path, head.metadata)
            if method is None:
                raise BadRequestError(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            if head.timeout_s is not None and head.timeout_s <= 0:
                raise BadRequestError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        except NoGrpcError:
            connection.h2.reset_stream(stream_id, ErrorCodes.INTERNAL_ERROR)
            release_stream()
            return
        except BadRequestError as refusal:
            send_status(connection, stream_id, refusal.code, refusal.details)
            release_stream()
            return

        def done() -> None:
            del self._calls[stream_id]
            connection.writer.calls -= 1
            release_stream()
            if connection.is_leaving and not self._calls:
                connection.leave()

        call = self._calls[stream_id] = Call(
            connection, stream, head, method, max_message_bytes=self._server.max_message_bytes
        )
        connection.writer.calls += 1
        self._server.start_call(call, done)

    def cancel(self, stream: Stream) -> None:
        """The client gave a call up."""
        call = self._calls.get(stream.id or 0)
        if call is not None:
            call.leave("cancelled")

    def close(self) -> None:
        """The connection is lost."""
        for call in list(self._calls.values()):
            call.leave("lost")

    def shut_down(self) -> None:
        """End what is left."""
        for call in list(self._calls.values()):
            call.shut_down()
