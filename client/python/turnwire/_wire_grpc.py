"""The gRPC wire."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from turnwire._event import Event
from turnwire._grpc_errors import stream_error, unary_error
from turnwire._wire import Arrival, Target, WireName, WireSettings
from turnwire.errors import ConnectionFailed, ConnectionLost, ProtocolViolation, TurnwireError
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.models_service_pb2 import ListModelsRequest, ListModelsResult
from turnwire.v1.models_service_pb2_grpc import ModelsServiceStub
from turnwire.v1.response_pb2 import Response
from turnwire.v1.responses_service_pb2 import (
    CancelRequest,
    CountInputTokensResult,
    DeleteRequest,
    DeleteResult,
    GetRequest,
    ListInputItemsRequest,
    ListInputItemsResult,
)
from turnwire.v1.responses_service_pb2_grpc import ResponsesServiceStub
from turnwire.v1.server_event_pb2 import ServerEvent, ServerFrame

__all__ = ["CHANNEL_OPTIONS", "GrpcWire", "channel_credentials", "open_grpc", "shares"]

CONNECT = "/turnwire.v1.SessionService/Connect"
HEALTH = "/grpc.health.v1.Health/Check"
RESUME_HEADER = ("turnwire-resume", "1")
# How each event of a frame begins: its field's number and kind.
_EVENTS = ServerFrame.EVENTS_FIELD_NUMBER << 3 | 2

CHANNEL_OPTIONS = (
    # The server has the limits; a client that cuts its own answers helps nobody.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A session is a connection: two sessions of one process do not share one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)

RequestT = TypeVar("RequestT", bound=Message)
ResultT = TypeVar("ResultT", bound=Message)


def channel_credentials(root_certificates: bytes | None) -> grpc.ChannelCredentials:
    """Return TLS credentials that trust `root_certificates` (PEM), or the usual ones."""
    return grpc.ssl_channel_credentials(root_certificates=root_certificates)


async def open_grpc(
    target: Target, settings: WireSettings, *, wants_resume: bool = False
) -> GrpcWire:
    """Connect and open the stream.

    A wrong key shows at the first event only: gRPC has no handshake of its own.

    Args:
        target: Where the server is.
        settings: What all wires are told.
        wants_resume: Ask for a session that can be resumed.

    Raises:
        ConnectionFailed: There is no server, or not within `connect_timeout_s`.
    """
    if target.secure:
        credentials = channel_credentials(settings.root_certificates)
        channel = grpc.aio.secure_channel(target.authority, credentials, options=CHANNEL_OPTIONS)
    else:
        channel = grpc.aio.insecure_channel(target.authority, options=CHANNEL_OPTIONS)
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            await _ready(channel, target.authority)
        return GrpcWire(channel, settings, wants_resume=wants_resume)
    except TimeoutError:
        await channel.close()
        raise ConnectionFailed(
            f"no connection to {target.authority} within {settings.connect_timeout_s:g} s"
        ) from None
    except BaseException:
        await channel.close()
        raise


async def _ready(channel: grpc.aio.Channel, authority: str) -> None:
    # Like `channel_ready`, which waits for ever where nobody listens.
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise ConnectionFailed(f"no connection to {authority}")
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


class GrpcWire:
    """One channel with one `SessionService.Connect` stream on it."""

    name: WireName = "grpc"
    persistent = True

    def __init__(
        self, channel: grpc.aio.Channel, settings: WireSettings, *, wants_resume: bool = False
    ) -> None:
        self._channel = channel
        metadata = tuple(settings.all_headers().items())
        # Serialized here: grpcio would do so behind two more calls per message.
        connect: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(CONNECT)
        opening = (*metadata, RESUME_HEADER) if wants_resume else metadata
        self._call = connect(metadata=opening)
        self._health = channel.unary_unary(
            HEALTH, request_serializer=bytes, response_deserializer=bytes
        )
        self._authorized = metadata
        self.unary = GrpcUnaryCalls(channel, metadata, settings.unary_timeout_s)

    @property
    def unary_bytes(self) -> tuple[int, int]:
        """Payload bytes of `unary` so far, up and down."""
        return self.unary.bytes_up, self.unary.bytes_down

    async def send(self, event: ClientEvent) -> int:
        """Write one message."""
        data = event.SerializeToString()
        try:
            await self._call.write(data)
        except grpc.aio.AioRpcError as error:
            raise _ended(error) from None
        except asyncio.InvalidStateError:
            # Half-closed or over: the reader knows why.
            raise ConnectionLost("the stream is over") from None
        except asyncio.CancelledError:
            if not _is_cut():
                raise
            raise ConnectionLost("the stream was cut") from None
        return len(data)

    async def receive(self) -> Sequence[Arrival]:
        """Read one frame."""
        try:
            frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _ended(error) from None
        except asyncio.CancelledError:
            if not _is_cut():
                raise
            raise ConnectionLost("the stream was cut") from None
        if not isinstance(frame, bytes):  # `grpc.aio.EOF`
            code = await self._call.code()
            raise stream_error(code, await self._call.details(), ())
        try:
            events = ServerFrame.FromString(frame).events
        except DecodeError:
            raise ProtocolViolation("a frame is malformed") from None
        if len(events) == 1:
            return (Event(events[0], len(frame)),)
        return list(map(Event, events, shares(frame, events)))

    async def ping(self) -> None:
        """Ask for the server's health, on the stream's own connection; any answer will do."""
        try:
            await self._health(b"", metadata=self._authorized)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                raise _ended(error) from None

    async def close(self) -> None:
        """Half-close and wait for the server's status; somebody must keep receiving."""
        await self._call.done_writing()
        await self._call.code()

    async def abort(self) -> None:
        """Cancel the call and close the channel."""
        self._call.cancel()
        await self._channel.close()


def shares(frame: bytes, events: Sequence[ServerEvent]) -> list[int]:
    """Return how many bytes of a frame each of its events takes.

    They stand in front of each event: `ByteSize` would encode it all again.
    """
    shares = []
    start = 0
    while start < len(frame) and frame[start] == _EVENTS:  # Else a field of a later version.
        at = start + 1
        size = frame[at] & 0x7F
        shift = 0
        while frame[at] & 0x80:
            at += 1
            shift += 7
            size |= (frame[at] & 0x7F) << shift
        start = at + 1 + size
        shares.append(size)
    if len(shares) != len(events):
        shares = [event.ByteSize() for event in events]
    if shares:
        shares[0] += len(frame) - sum(shares)  # The frame's own bytes.
    return shares


class GrpcUnaryCalls:
    """The unary calls, on the session's channel."""

    def __init__(
        self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...], timeout_s: float
    ) -> None:
        self._responses = ResponsesServiceStub(channel)
        self._models = ModelsServiceStub(channel)
        self._metadata = metadata
        self._timeout_s = timeout_s
        self.bytes_up = 0
        self.bytes_down = 0

    async def get(self, response_id: str, include: Sequence[str]) -> Response:
        """Return a stored response."""
        request = GetRequest(response_id=response_id, include=include)
        return await self._call(self._responses.Get, request)

    async def delete(self, response_id: str) -> DeleteResult:
        """Forget a stored response."""
        request = DeleteRequest(response_id=response_id)
        return await self._call(self._responses.Delete, request)

    async def cancel(self, response_id: str) -> Response:
        """End a running response."""
        request = CancelRequest(response_id=response_id)
        return await self._call(self._responses.Cancel, request)

    async def input_items(self, request: ListInputItemsRequest) -> ListInputItemsResult:
        """List what a stored response was given."""
        return await self._call(self._responses.ListInputItems, request)

    async def count_tokens(self, create: ResponseCreate) -> CountInputTokensResult:
        """Count the tokens of an input."""
        return await self._call(self._responses.CountInputTokens, create)

    async def models(self) -> ListModelsResult:
        """List the models."""
        return await self._call(self._models.ListModels, ListModelsRequest())

    async def _call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResultT],
        request: RequestT,
    ) -> ResultT:
        self.bytes_up += request.ByteSize()
        try:
            result = await method(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            trailers = tuple(error.trailing_metadata())
            raise unary_error(error.code(), error.details(), trailers) from None
        except asyncio.CancelledError:
            if not _is_cut():
                raise
            raise ConnectionLost("the call was cut") from None
        except grpc.aio.UsageError:
            raise ConnectionLost("the connection is over") from None
        self.bytes_down += result.ByteSize()
        return result


def _ended(error: grpc.aio.AioRpcError) -> TurnwireError:
    return stream_error(error.code(), error.details(), tuple(error.trailing_metadata()))


def _is_cut() -> bool:
    """Return whether a cancellation is of the call and not of the task that waits for it.

    grpcio raises the same exception for both, as when its channel is closed.
    """
    task = asyncio.current_task()
    return task is not None and not task.cancelling()
