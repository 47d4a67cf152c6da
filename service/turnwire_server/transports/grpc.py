"""The gRPC server around all services."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from turnwire_server.runtime.services import Services
from turnwire_server.runtime.unary import UnaryApi
from turnwire_server.transports.grpc_health import HealthServicer
from turnwire_server.transports.grpc_services import (
    MODELS_SERVICE,
    RESPONSES_SERVICE,
    UnaryServicer,
)
from turnwire_server.transports.grpc_session import SESSION_SERVICE, SessionServicer
from turnwire_server.transports.tls import HTTP2, TlsFiles

__all__ = [
    "SESSION_SERVICE",
    "BackendFailure",
    "GrpcBackend",
    "GrpcServer",
    "GrpcSettings",
    "SessionServicer",
    "listen",
    "make_grpc_server",
]

GrpcBackend = Literal["grpcio", "grpclib"]

REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"


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
    max_metadata_bytes: int = 16_384
    """Most of a call's headers together, counted as HTTP/2 does."""
    reuse_port: bool = False
    """Whether several processes may listen on the port (SO_REUSEPORT)."""
    backend: GrpcBackend = "grpclib"
    """What speaks HTTP/2: `grpclib`, which needs less CPU, or `grpcio`, the reference."""

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
            # Without it the core waits a minute for the answer, whatever the line above says.
            ("grpc.http2.ping_timeout_ms", round(self.ping_timeout_s * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            (
                "grpc.http2.min_ping_interval_without_data_ms",
                round(self.min_client_ping_interval_s * 1000),
            ),
            ("grpc.http2.max_ping_strikes", self.max_ping_strikes),
            ("grpc.max_metadata_size", self.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", self.max_metadata_bytes),
            ("grpc.so_reuseport", int(self.reuse_port)),
        ]


class GrpcServer(Protocol):
    """What both back ends' servers have: the part of `grpc.aio.Server` that we use."""

    def add_insecure_port(self, address: str) -> int:
        """Listen on `HOST:PORT` and return the port. `RuntimeError`: it cannot be done."""
        ...

    async def start(self) -> None:
        """Serve on the ports that were added."""
        ...

    async def stop(self, grace: float | None) -> None:
        """Take no new calls, give running ones `grace` seconds, end the rest."""
        ...


class BackendFailure(Exception):
    """The back end cannot be used. `str()` is a sentence for the operator."""


class _Methods:
    """Collects handlers from generated code, which adds them to a server."""

    def __init__(self) -> None:
        self.handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self.handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Ignore the same again in a second form."""


def make_grpc_server(
    services: Services, settings: GrpcSettings, *, unary: UnaryApi | None = None
) -> GrpcServer:
    """Return a server with every service, without a port; call it inside the running loop.

    Args:
        services: The server's services.
        settings: How to serve.
        unary: The unary calls, made from `services` when None.

    Raises:
        BackendFailure: The back end is not installed.
    """
    handlers = _handlers(services, settings, unary or UnaryApi(services))
    limit = services.settings.max_message_bytes
    if settings.backend == "grpclib":
        for name in ("grpclib", "h2"):
            if importlib.util.find_spec(name) is None:
                raise BackendFailure(
                    f"grpc.backend grpclib needs {name}, which is not installed. Install it with: "
                    "pip install 'turnwire[server]'; or set grpc.backend to grpcio"
                )
        # Imported here, because a server on grpcio does without it.
        from turnwire_server.transports.grpclib.server import GrpclibServer

        other = GrpclibServer(settings, max_message_bytes=limit)
        other.add_generic_rpc_handlers(handlers)
        return other
    server = grpc.aio.server(options=settings.options(limit))
    server.add_generic_rpc_handlers(handlers)
    return server


def listen(server: GrpcServer, address: str, tls: TlsFiles | None = None) -> int:
    """Listen on `HOST:PORT`; return the port.

    Raises:
        RuntimeError: It cannot be listened on.
        TlsFailure: The certificate cannot be used.
    """
    if tls is None:
        return server.add_insecure_port(address)
    if isinstance(server, grpc.aio.Server):
        return server.add_secure_port(address, tls.grpc_credentials())
    from turnwire_server.transports.grpclib.server import GrpclibServer

    assert isinstance(server, GrpclibServer), "there are two back ends"
    return server.add_secure_port(address, tls.context(HTTP2))


def _handlers(
    services: Services, settings: GrpcSettings, unary: UnaryApi
) -> list[grpc.GenericRpcHandler]:
    """Return every method of every service, from the generated descriptions."""
    servicer = UnaryServicer(services, unary, max_frame_bytes=settings.max_frame_bytes)
    sessions = SessionServicer(
        services,
        max_frame_bytes=settings.max_frame_bytes,
        silence_limit_s=settings.ping_timeout_s / 2,
    )
    names = [SESSION_SERVICE, RESPONSES_SERVICE, MODELS_SERVICE, health.SERVICE_NAME]
    methods: Any = _Methods()  # Generated code wants a server; it only adds handlers to it.
    methods.add_generic_rpc_handlers([sessions.handler(), *servicer.handlers()])
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(services, names), methods)
    reflecting = reflection.aio.ReflectionServicer([*names, reflection.SERVICE_NAME])
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(  # type: ignore[no-untyped-call]
        reflecting, methods
    )
    methods.add_generic_rpc_handlers([_reflection_v1(names)])
    handlers: list[grpc.GenericRpcHandler] = methods.handlers
    return handlers


def _reflection_v1(names: list[str]) -> grpc.GenericRpcHandler:
    """Return the v1 reflection service, whose messages are those of v1alpha on the wire."""
    servicer = reflection.aio.ReflectionServicer([*names, REFLECTION_V1])
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=(reflection_pb2.ServerReflectionResponse.SerializeToString),
    )
    return grpc.method_handlers_generic_handler(REFLECTION_V1, {"ServerReflectionInfo": method})
