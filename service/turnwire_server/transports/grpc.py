"""gRPC: `SessionService.Connect` as frames of events, and the server around all services."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import message
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from turnwire.v1 import session_pb2
from turnwire.v1.client_event_pb2 import ClientEvent, TurnwireSessionStart
from turnwire.v1.error_pb2 import (
    ERROR_REASON_SERVER_ERROR,
    ERROR_REASON_SERVER_IS_OVERLOADED,
    ERROR_REASON_WEBSOCKET_CONNECTION_LIMIT_REACHED,
)
from turnwire_server.runtime.connection import Connection
from turnwire_server.runtime.reports import log_bug
from turnwire_server.runtime.services import Services
from turnwire_server.runtime.unary import UnaryApi
from turnwire_server.session.errors import Rejection
from turnwire_server.transports.grpc_health import HealthServicer
from turnwire_server.transports.grpc_services import (
    MODELS_SERVICE,
    RESPONSES_SERVICE,
    FrameSink,
    UnaryServicer,
    metadata_of,
    tenant_or_abort,
)
from turnwire_server.transports.grpc_status import (
    Context,
    abort,
    broken_json,
    guarded,
    undecodable,
)
from turnwire_server.transports.turns import overload

__all__ = ["SESSION_SERVICE", "GrpcSettings", "SessionServicer", "make_grpc_server"]

logger = logging.getLogger("turnwire.transports")

SESSION_SERVICE = session_pb2.DESCRIPTOR.services_by_name["SessionService"].full_name
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"

_INTERNAL = Rejection(ERROR_REASON_SERVER_ERROR, "The server made an error and cut the stream.")
_ENDINGS = {
    "age": Rejection(
        ERROR_REASON_WEBSOCKET_CONNECTION_LIMIT_REACHED,
        "The stream reached its age limit. Open a new one.",
    ),
    "drain": Rejection(ERROR_REASON_SERVER_IS_OVERLOADED, "The server goes away. Reconnect."),
}


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Settings of the gRPC server. The message limit is `max_message_bytes` of the services."""

    max_concurrent_streams: int = 10_000
    """Calls at once on one HTTP/2 connection; more wait in the client until one ends."""
    max_pending_requests: int = 65_536
    """Calls that may wait to be picked up; above it they are refused with RESOURCE_EXHAUSTED."""
    max_frame_bytes: int = 1_048_576
    """Events are packed into one frame up to this size; a larger event gets its own frame."""
    ping_interval_s: float = 20.0
    """HTTP/2 ping to a silent client, with or without calls."""
    ping_timeout_s: float = 20.0
    """How long a ping may stay unanswered before the connection is dropped."""
    min_client_ping_interval_s: float = 4.0
    """Client pings closer together are strikes; below the 5 s that are promised, for jitter."""
    max_ping_strikes: int = 2
    """Strikes before GOAWAY ENHANCE_YOUR_CALM."""
    reuse_port: bool = False
    """Whether several processes may listen on the port (SO_REUSEPORT)."""

    def options(self, max_message_bytes: int) -> list[tuple[str, Any]]:
        """Return the channel arguments."""
        return [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.max_concurrent_streams", self.max_concurrent_streams),
            ("grpc.server.max_pending_requests", self.max_pending_requests),
            ("grpc.server.max_pending_requests_hard_limit", self.max_pending_requests),
            ("grpc.keepalive_time_ms", round(self.ping_interval_s * 1000)),
            ("grpc.keepalive_timeout_ms", round(self.ping_timeout_s * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            (
                "grpc.http2.min_ping_interval_without_data_ms",
                round(self.min_client_ping_interval_s * 1000),
            ),
            ("grpc.http2.max_ping_strikes", self.max_ping_strikes),
            ("grpc.so_reuseport", int(self.reuse_port)),
        ]


class SessionServicer:
    """Serves `SessionService`: one call is one connection."""

    def __init__(self, services: Services, *, max_frame_bytes: int) -> None:
        self._services = services
        self._max_frame_bytes = max_frame_bytes
        # Readers end with their call and are not cancelled: grpcio frees the memory of a
        # cancelled read while the core may still write to it.
        self._readers: set[asyncio.Task[Rejection | None]] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service."""
        connect: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            guarded(self.connect)
        )
        return grpc.method_handlers_generic_handler(SESSION_SERVICE, {"Connect": connect})

    async def connect(self, requests: object, context: Context) -> None:
        """Serve one call. The client's cancellation cancels it, and with it every turn.

        Args:
            requests: Unused: the call is read through `context`.
            context: The call, with bytes in both directions.
        """
        tenant = await tenant_or_abort(self._services, context)
        if (refusal := overload(self._services)) is not None:
            await abort(context, refusal)
        sink = FrameSink(context, max_frame_bytes=self._max_frame_bytes)
        connection = self._services.connect(sink, wire="grpc", tenant=tenant)
        if metadata_of(context, "turnwire-resume") == "1":
            start = TurnwireSessionStart(resume=True)
            connection.receive(ClientEvent(turnwire_session_start=start), 0)
        reader = asyncio.create_task(self._read(context, connection))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        ending = await connection.run()
        if reader.done() and (fault := reader.result()) is not None:
            code = None if fault is _INTERNAL else grpc.StatusCode.INVALID_ARGUMENT
            await abort(context, fault, code)
        if ending.reason == "internal":
            await abort(context, _INTERNAL)
        if (notice := _ENDINGS.get(ending.reason)) is not None:
            await abort(context, notice, grpc.StatusCode.UNAVAILABLE)

    async def _read(self, context: Context, connection: Connection) -> Rejection | None:
        """Hand over what arrives until the client has no more; return why it was cut."""
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                _receive(connection, ClientEvent.FromString(data), len(data))
                if connection.is_crowded:
                    await connection.calm()
        except grpc.aio.BaseError:
            connection.disconnect()
        except message.DecodeError:
            connection.disconnect()
            return undecodable(ClientEvent)
        except Exception as bug:  # The outermost frame of the reader: a bug must not hang the call.
            log_bug(logger, "reader failed", bug)
            connection.disconnect()
            return _INTERNAL
        else:
            # A cancelled call looks the same here; its handler is cancelled at the same time.
            connection.half_close()
        return None


def _receive(connection: Connection, event: ClientEvent, size: int) -> None:
    broken = broken_json(event)
    if broken is None:
        connection.receive(event, size)
        return
    connection.reject(
        broken,
        stream_id=event.stream_id if event.HasField("stream_id") else None,
        event_id=event.event_id if event.HasField("event_id") else None,
        event=event,
        size=size,
    )


def make_grpc_server(
    services: Services, settings: GrpcSettings, *, unary: UnaryApi | None = None
) -> grpc.aio.Server:
    """Return a server with every service, without a port; call it inside the running loop.

    Args:
        services: The server's services.
        settings: How to serve.
        unary: The unary calls, made from `services` when None.
    """
    server = grpc.aio.server(options=settings.options(services.settings.max_message_bytes))
    servicer = UnaryServicer(
        services, unary or UnaryApi(services), max_frame_bytes=settings.max_frame_bytes
    )
    sessions = SessionServicer(services, max_frame_bytes=settings.max_frame_bytes)
    server.add_generic_rpc_handlers([sessions.handler(), *servicer.handlers()])
    names = [SESSION_SERVICE, RESPONSES_SERVICE, MODELS_SERVICE, health.SERVICE_NAME]
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(services, names), server)
    reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
    server.add_generic_rpc_handlers([_reflection_v1(names)])
    return server


def _reflection_v1(names: list[str]) -> grpc.GenericRpcHandler:
    """Return the v1 reflection service, whose messages are those of v1alpha on the wire."""
    servicer = reflection.aio.ReflectionServicer([*names, REFLECTION_V1])
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=(reflection_pb2.ServerReflectionResponse.SerializeToString),
    )
    return grpc.method_handlers_generic_handler(REFLECTION_V1, {"ServerReflectionInfo": method})
