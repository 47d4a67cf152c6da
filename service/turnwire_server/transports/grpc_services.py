"""The unary and server-streaming gRPC calls: `ResponsesService` and `ModelsService`.

Requests and answers cross grpcio as bytes, so that a request that cannot be decoded gets our
status and not grpcio's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import grpc
from google.protobuf import message, message_factory

from turnwire.v1 import models_service_pb2, responses_service_pb2
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.error_pb2 import ERROR_REASON_SERVER_ERROR, ErrorBody
from turnwire.v1.response_pb2 import Response
from turnwire_server.runtime.idempotency import Found, check_key
from turnwire_server.runtime.services import Services
from turnwire_server.runtime.unary import UnaryApi
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Outgoing
from turnwire_server.session.replay import replay
from turnwire_server.transports.encoding import ProtoEncoder
from turnwire_server.transports.grpc_status import Context, abort, decode_or_abort, guarded
from turnwire_server.transports.turns import (
    TerminalSink,
    bearer_token,
    begin_detached,
    error_of,
    outcome_of,
    overload,
    response_of,
    run_turn,
)

__all__ = [
    "MODELS_SERVICE",
    "RESPONSES_SERVICE",
    "FrameSink",
    "UnaryServicer",
    "frame_sink",
    "metadata_of",
    "tenant_or_abort",
]

RESPONSES_SERVICE = responses_service_pb2.DESCRIPTOR.services_by_name["ResponsesService"].full_name
MODELS_SERVICE = models_service_pb2.DESCRIPTOR.services_by_name["ModelsService"].full_name

Answer = message.Message | Rejection
NO_OUTCOME = Rejection(ERROR_REASON_SERVER_ERROR, "The turn ended without an outcome.")


def metadata_of(context: Context, name: str) -> str | None:
    """Return the first text of this name in the call's metadata."""
    for key, value in context.invocation_metadata() or ():
        if key == name and isinstance(value, str):
            return value
    return None


async def tenant_or_abort(services: Services, context: Context) -> str:
    """Return who calls; end the call when the key is missing or wrong."""
    tenant = services.authorize(bearer_token(metadata_of(context, "authorization")))
    if isinstance(tenant, Rejection):
        await abort(context, tenant)
    return tenant


@runtime_checkable
class PromptContext(Protocol):
    """A call that says whether a message would have to wait (`grpclib/call.py`)."""

    @property
    def write(self) -> Callable[[bytes], Awaitable[None]]:
        """Write a message, waiting where it must."""
        ...

    def write_now(self, data: bytes) -> bool:
        """Write a message if it need not wait; False: nothing was written."""
        ...


class FrameSink(ProtoEncoder):
    """Encodes events and writes them to one call as `ServerFrame`s, several events to a frame."""

    __slots__ = ("_max_frame_bytes", "_write")

    def __init__(self, context: Context | PromptContext, *, max_frame_bytes: int) -> None:
        super().__init__()
        self._max_frame_bytes = max_frame_bytes
        self._write: Callable[[bytes], Awaitable[None]] = context.write

    async def write(self, batch: Sequence[bytes]) -> None:
        """Write the entries in as few frames as `max_frame_bytes` allows.

        Raises:
            ConnectionError: The call is over.
        """
        try:
            if len(batch) == 1:  # Paced tokens come one by one.
                await self._write(batch[0])
                return
            frame: list[bytes] = []
            size = 0
            for entry in batch:
                if frame and size + len(entry) > self._max_frame_bytes:
                    await self._write(b"".join(frame))
                    frame.clear()
                    size = 0
                frame.append(entry)
                size += len(entry)
            await self._write(b"".join(frame))
        except grpc.aio.BaseError as error:
            raise ConnectionError("the call is over") from error

    def heartbeat(self) -> bytes | None:
        """Return an empty frame."""
        return b""


class PromptFrameSink(FrameSink):
    """Writes to a call that says whether a message would have to wait."""

    __slots__ = ("_context",)

    def __init__(self, context: PromptContext, *, max_frame_bytes: int) -> None:
        super().__init__(context, max_frame_bytes=max_frame_bytes)
        self._context = context

    def write_now(self, batch: Sequence[bytes]) -> bool:
        """Write the entries as one frame if it need not wait and is not too large."""
        frame = batch[0] if len(batch) == 1 else b"".join(batch)
        return len(frame) <= self._max_frame_bytes and self._context.write_now(frame)


def frame_sink(context: Context, *, max_frame_bytes: int) -> FrameSink:
    """Return what writes to a call."""
    if isinstance(context, PromptContext):
        return PromptFrameSink(context, max_frame_bytes=max_frame_bytes)
    return FrameSink(context, max_frame_bytes=max_frame_bytes)


class _RefusableSink(FrameSink):
    """Frames of one turn, except that a refusal is kept: it becomes the call's status."""

    __slots__ = ("refusal",)

    def __init__(self, context: Context, *, max_frame_bytes: int) -> None:
        super().__init__(context, max_frame_bytes=max_frame_bytes)
        self.refusal: ErrorBody | None = None

    def encode(self, event: Outgoing) -> bytes:
        self.refusal = error_of(event)
        return b"" if self.refusal else super().encode(event)

    async def write(self, batch: Sequence[bytes]) -> None:
        if self.refusal is None:
            await super().write(batch)


class UnaryServicer:
    """Answers every call but `Connect`."""

    def __init__(self, services: Services, unary: UnaryApi, *, max_frame_bytes: int) -> None:
        self._services = services
        self._unary = unary
        self._max_frame_bytes = max_frame_bytes

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the two services."""
        unary = self._unary
        by_id = {"Get": unary.get, "Delete": unary.delete, "Cancel": unary.cancel}
        calls: dict[str, Callable[[Any, str], Awaitable[Answer]]] = {
            name: _by_response_id(call) for name, call in by_id.items()
        }
        calls["ListInputItems"] = lambda request, tenant: unary.list_input_items(
            request, tenant=tenant
        )
        calls["CountInputTokens"] = lambda request, tenant: unary.count_input_tokens(
            request, tenant=tenant
        )
        calls["Compact"] = lambda request, tenant: unary.compact(request, tenant=tenant)
        methods = responses_service_pb2.DESCRIPTOR.services_by_name[
            "ResponsesService"
        ].methods_by_name
        responses = {
            name: self._method(message_factory.GetMessageClass(methods[name].input_type), call)
            for name, call in calls.items()
        }
        responses["Create"] = grpc.unary_unary_rpc_method_handler(guarded(self._create))
        responses["StreamCreate"] = grpc.unary_stream_rpc_method_handler(
            guarded(self._stream_create)
        )
        models = {
            "ListModels": self._method(models_service_pb2.ListModelsRequest, self._list_models),
            "GetModel": self._method(models_service_pb2.GetModelRequest, self._get_model),
        }
        return [
            grpc.method_handlers_generic_handler(RESPONSES_SERVICE, responses),
            grpc.method_handlers_generic_handler(MODELS_SERVICE, models),
        ]

    def _method(
        self,
        request_type: type[message.Message],
        call: Callable[[Any, str], Awaitable[Answer]],
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def handle(data: bytes, context: Context) -> bytes:
            tenant = await tenant_or_abort(self._services, context)
            answer = await call(await decode_or_abort(context, request_type, data), tenant)
            if isinstance(answer, Rejection):
                await abort(context, answer)
            return answer.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(guarded(handle))

    async def _admit(self, data: bytes, context: Context) -> tuple[ResponseCreate, str]:
        tenant = await tenant_or_abort(self._services, context)
        if (refusal := overload(self._services)) is not None:
            await abort(context, refusal)
        return await decode_or_abort(context, ResponseCreate, data), tenant

    async def _detached(
        self, create: ResponseCreate, size: int, context: Context, tenant: str
    ) -> Found | None:
        """Begin, or find, a turn that runs without its call; None for one that does not.

        The call's end leaves it alone.
        """
        key = metadata_of(context, "idempotency-key")
        if key is None and not create.background:
            return None
        if key is not None and (refusal := check_key(key)) is not None:
            await abort(context, refusal)
        found = await begin_detached(
            self._services, create, size=size, wire="grpc", tenant=tenant, key=key
        )
        if isinstance(found, Rejection):
            await abort(context, found)
        return found

    async def _create(self, data: bytes, context: Context) -> bytes:
        create, tenant = await self._admit(data, context)
        is_background = create.background
        if (found := await self._detached(create, len(data), context, tenant)) is not None:
            outcome = await outcome_of(found, is_background=is_background)
            if isinstance(outcome, Response):
                return outcome.SerializeToString()
            await abort(context, outcome.error)
        sink = TerminalSink()
        await run_turn(self._services, sink, create, size=len(data), wire="grpc", tenant=tenant)
        if sink.terminal is None:
            await abort(context, NO_OUTCOME)
        if (refusal := error_of(sink.terminal)) is not None:
            await abort(context, refusal)
        return response_of(sink.terminal).SerializeToString()

    async def _stream_create(self, data: bytes, context: Context) -> None:
        create, tenant = await self._admit(data, context)
        sink = _RefusableSink(context, max_frame_bytes=self._max_frame_bytes)
        if (found := await self._detached(create, len(data), context, tenant)) is None:
            await run_turn(self._services, sink, create, size=len(data), wire="grpc", tenant=tenant)
        elif found.turn is not None:
            await found.turn.follow(sink, heartbeat_s=self._services.settings.heartbeat_s)
        elif found.response is not None:
            await sink.write([sink.encode(event) for event in replay(found.response)])
        if sink.refusal is not None:
            await abort(context, sink.refusal)

    async def _list_models(self, request: message.Message, tenant: str) -> Answer:
        return self._unary.list_models()

    async def _get_model(self, request: models_service_pb2.GetModelRequest, tenant: str) -> Answer:
        return self._unary.get_model(request.model)


def _by_response_id(
    call: Callable[..., Awaitable[Answer]],
) -> Callable[[Any, str], Awaitable[Answer]]:
    return lambda request, tenant: call(request.response_id, tenant=tenant)
