"""The gRPC client; what arrives is judged in its public JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from turnwire import _codec
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.responses_service_pb2_grpc import ResponsesServiceStub
from turnwire.v1.session_pb2_grpc import SessionServiceStub
from turnwire_server.conformance.checks import Json, Skip, Transport
from turnwire_server.conformance.clients.persistent import Lost, PersistentConnection
from turnwire_server.conformance.findings import Findings
from turnwire_server.conformance.stream import StreamJudge

__all__ = ["GrpcClient", "GrpcConnection"]

_Metadata = tuple[tuple[str, str], ...]


def _json_of(message: Message) -> Json:
    value: Json = json.loads(_codec.dumps(message))
    return value


class GrpcConnection(PersistentConnection):
    """One `SessionService.Connect` stream."""

    transport: Transport = "grpc"

    def __init__(self, call: Any, findings: Findings, judge: StreamJudge, timeout_s: float) -> None:
        super().__init__(findings, judge, timeout_s)
        self._call = call
        self._is_half_closed = False

    async def _write(self, event: Json) -> None:
        try:
            message = _codec.parse(ClientEvent, event)
        except _codec.DecodeError:
            raise Skip("a gRPC message cannot say it") from None
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise self._lost("the stream is over") from None

    async def _take(self) -> None:
        try:
            frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._lost(f"status {error.code().name}") from None
        if frame is grpc.aio.EOF:
            code = await self._call.code()
            if self._is_half_closed and code is grpc.StatusCode.OK:
                self._is_over = True
                raise Lost("the stream ended")
            raise self._lost(f"status {code.name}")
        for event in frame.events:
            self._put(_json_of(event))

    async def _barrier(self) -> None:
        # A half-close finishes what is queued; the end of the stream says that nothing is left.
        self._is_half_closed = True
        await self._call.done_writing()
        try:
            while True:
                await self._take()
        except Lost:
            if self._findings.has_broken("connection.open"):
                raise

    async def _leave(self) -> None:
        self._call.cancel()


class GrpcClient:
    """A channel: sessions, and the calls beside them."""

    def __init__(self, target: str, api_key: str | None) -> None:
        self._target = target
        self._channel = grpc.aio.insecure_channel(
            target, options=(("grpc.max_receive_message_length", -1),)
        )
        self._sessions: Any = SessionServiceStub(self._channel)
        self._responses: Any = ResponsesServiceStub(self._channel)
        self._metadata = _metadata(api_key)

    async def ready(self, timeout_s: float) -> None:
        """Wait until the channel is connected.

        Raises:
            TimeoutError: It is not, in time.
        """
        async with asyncio.timeout(timeout_s):
            await self._channel.channel_ready()

    def open(self, findings: Findings, judge: StreamJudge, timeout_s: float) -> GrpcConnection:
        """Open a session."""
        call = self._sessions.Connect(metadata=self._metadata)
        return GrpcConnection(call, findings, judge, timeout_s)

    async def status_with(self, api_key: str, timeout_s: float) -> str:
        """Return the status that a stream with this key ends with when it is half-closed."""
        call = self._sessions.Connect(metadata=_metadata(api_key), timeout=timeout_s)
        try:
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        code: grpc.StatusCode = await call.code()
        return code.name

    async def unary(self, method: str, request: Message, timeout_s: float) -> tuple[str, Json]:
        """Call a method of `ResponsesService`.

        Returns:
            The name of the status, and the answer's public JSON, empty when it failed.
        """
        call = getattr(self._responses, method)
        try:
            answer = await call(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            return error.code().name, {}
        return "OK", _json_of(answer)

    async def close(self) -> None:
        """Close the channel and what is open on it."""
        await self._channel.close()


def _metadata(api_key: str | None) -> _Metadata:
    return () if api_key is None else (("authorization", f"Bearer {api_key}"),)
