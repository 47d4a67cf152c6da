"""gRPC: `SessionService.Connect` as frames of events."""

from __future__ import annotations

import asyncio
import logging

import grpc
from google.protobuf import message

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
from turnwire_server.runtime.validate import Validator
from turnwire_server.session.errors import Rejection
from turnwire_server.session.opening import TAKEN_OVER
from turnwire_server.transports.grpc_peer import Departure
from turnwire_server.transports.grpc_services import frame_sink, metadata_of, tenant_or_abort
from turnwire_server.transports.grpc_status import (
    Context,
    Leaving,
    abort,
    broken_json,
    call_when_left,
    guarded,
    message_reader,
    undecodable,
)
from turnwire_server.transports.turns import overload

__all__ = ["SESSION_SERVICE", "SessionServicer"]

logger = logging.getLogger("turnwire.transports")

SESSION_SERVICE = session_pb2.DESCRIPTOR.services_by_name["SessionService"].full_name

_INTERNAL = Rejection(ERROR_REASON_SERVER_ERROR, "The server made an error and cut the stream.")
_ENDINGS = {
    "age": Rejection(
        ERROR_REASON_WEBSOCKET_CONNECTION_LIMIT_REACHED,
        "The stream reached its age limit. Open a new one.",
    ),
    "drain": Rejection(ERROR_REASON_SERVER_IS_OVERLOADED, "The server goes away. Reconnect."),
}


class SessionServicer:
    """Serves `SessionService`: one call is one connection."""

    def __init__(
        self, services: Services, *, max_frame_bytes: int, silence_limit_s: float = 10.0
    ) -> None:
        """Make it.

        Args:
            services: The server's services.
            max_frame_bytes: Bound on a frame of several events.
            silence_limit_s: Silence of a peer that tells a dead connection from a cancel; less
                than a ping may take.
        """
        self._services = services
        self._max_frame_bytes = max_frame_bytes
        self._silence_limit_s = silence_limit_s
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

        A resumable session outlives a call whose connection was lost.

        Args:
            requests: Unused: the call is read through `context`.
            context: The call, with bytes in both directions.
        """
        tenant = await tenant_or_abort(self._services, context)
        if (refusal := overload(self._services)) is not None:
            await abort(context, refusal)
        sink = frame_sink(context, max_frame_bytes=self._max_frame_bytes)
        departure = Departure(context, silence_limit_s=self._silence_limit_s)
        connection = self._services.connect(
            sink, wire="grpc", tenant=tenant, was_lost=departure.was_lost
        )

        def left(leaving: Leaving) -> None:
            # It is asked again when the last word was sent but not read: both must say the same.
            departure.told(is_lost=leaving == "lost")
            connection.lose() if leaving == "lost" else connection.disconnect()

        call_when_left(context, left)
        if metadata_of(context, "turnwire-resume") == "1":
            start = TurnwireSessionStart(resume=True)
            connection.receive(ClientEvent(turnwire_session_start=start), 0)
        reader = asyncio.create_task(self._read(context, connection, departure))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        ending = await connection.run()
        if reader.done() and (fault := reader.result()) is not None:
            code = None if fault is _INTERNAL else grpc.StatusCode.INVALID_ARGUMENT
            await abort(context, fault, code)
        if ending.reason == "internal":
            await abort(context, _INTERNAL)
        if ending.reason == "taken_over":
            await abort(context, TAKEN_OVER)
        if (notice := _ENDINGS.get(ending.reason)) is not None:
            await abort(context, notice, grpc.StatusCode.UNAVAILABLE)

    async def _read(
        self, context: Context, connection: Connection, departure: Departure
    ) -> Rejection | None:
        """Hand over what arrives until the client has no more; return why it was cut."""

        def receive(data: bytes) -> bool:
            self._receive(connection, data)
            if connection.is_resumable:
                departure.watch()
            return not connection.is_crowded

        try:
            if connection.is_resumable:
                departure.watch()
            read_into = message_reader(context)
            while await read_into(receive):
                await connection.calm()
        except grpc.aio.BaseError:
            connection.vanish()
        except message.DecodeError:
            connection.disconnect()
            return undecodable(ClientEvent)
        except Exception as bug:  # The outermost frame of the reader: a bug must not hang the call.
            log_bug(logger, "reader failed", bug)
            connection.disconnect()
            return _INTERNAL
        else:
            # A cancelled call looks like a half-close; its handler is cancelled at the same time.
            # So does a lost one, but a resumable session must not take it for the last word.
            if connection.is_resumable and departure.is_loss():
                connection.lose()
            else:
                connection.half_close()
        return None

    def _receive(self, connection: Connection, data: bytes) -> None:
        event, size = ClientEvent.FromString(data), len(data)
        passed = _has_passed(event, data, self._services.validator)
        if passed or (broken := broken_json(event)) is None:
            connection.receive(event, size)
            return
        connection.reject(
            broken,
            stream_id=event.stream_id if event.HasField("stream_id") else None,
            event_id=event.event_id if event.HasField("event_id") else None,
            event=event,
            size=size,
        )


def _has_passed(event: ClientEvent, data: bytes, validator: Validator) -> bool:
    """Return whether an event has no JSON text but that of settings which passed the rules before.

    To look at every tool of a usual create takes four times as long.
    """
    if not event.HasField("response_create"):
        return False
    create = event.response_create
    if create.HasField("conversation") or create.HasField("prompt"):
        return False
    if not create.input.HasField("text") and broken_json(create.input) is not None:
        return False
    return validator.knows_settings(data, create)
