"""Calls beside the turns that only this transport makes.

On gRPC they are calls of the session's channel. Beside a WebSocket the server is there over HTTP
too, so that requests can pass through as they are.
"""

from __future__ import annotations

import asyncio
import io
from collections import deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, cast

import aiohttp
import grpc
from yarl import URL

from turnwire import _codec
from turnwire._event import Event
from turnwire._grpc_errors import unary_error
from turnwire._http_calls import client_error
from turnwire._session import Session
from turnwire.openai import _answers
from turnwire.openai._values import Answer, Exchange, PhaseTimeoutError
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.response_pb2 import Response
from turnwire.v1.responses_service_pb2 import CompactRequest, CompactResult
from turnwire.v1.server_event_pb2 import ServerFrame

if TYPE_CHECKING:
    from turnwire._http_calls import HttpCalls
    from turnwire._wire_grpc import GrpcUnaryCalls

__all__ = ["CallStream", "compact", "create", "has_http", "pass_on", "stream_create"]

_PASSED: Final = frozenset({"content-type", "idempotency-key"})
"""Headers of a request that are passed on; its identity is the session's."""
_SHOWN: Final = frozenset({"content-type", "retry-after", "x-request-id", "cache-control"})


def has_http(session: Session) -> bool:
    """Return whether requests can be passed on."""
    return session._wire.name != "grpc"


async def compact(session: Session, request: CompactRequest) -> CompactResult:
    """Shorten a conversation. Raises `TurnwireError`."""
    if has_http(session):
        calls = cast("HttpCalls", session._wire.unary)
        body = _codec.dumps(request)
        return await calls._call(CompactResult, "POST", "/responses/compact", body=body)
    unary = cast("GrpcUnaryCalls", session._wire.unary)
    return await unary._call(unary._responses.Compact, request)


async def create(session: Session, asked: ResponseCreate) -> Response:
    """Run a create outside the session, over gRPC. Raises `TurnwireError`."""
    unary = cast("GrpcUnaryCalls", session._wire.unary)
    return await unary._call(unary._responses.Create, asked)


class CallStream:
    """A stream of a create outside the session, over gRPC: its events as lines."""

    def __init__(
        self,
        call: grpc.aio.UnaryStreamCall[ResponseCreate, ServerFrame],
        read_s: float | None,
    ) -> None:
        self._call = call
        self._read_s = read_s
        self.exits = AsyncExitStack()
        """Closed with it."""
        self._waiting: deque[bytes] = deque()
        self._is_over = False

    async def begin(self) -> None:
        """Wait for the first events. Raises `TurnwireError` when there are none."""
        self._waiting.append(await self.next_chunk())

    async def next_chunk(self) -> bytes:
        """Wait for the next events and return their lines; empty at the end."""
        if self._waiting:
            return self._waiting.popleft()
        if self._is_over:
            return b""
        try:
            async with asyncio.timeout(self._read_s):
                frame = await self._call.read()
        except TimeoutError:
            self._call.cancel()
            raise PhaseTimeoutError("read", "nothing came in time") from None
        except grpc.aio.AioRpcError as error:
            trailers = tuple(error.trailing_metadata())
            raise unary_error(error.code(), error.details(), trailers) from None
        if not isinstance(frame, ServerFrame):
            self._is_over = True
            return _answers.SSE_DONE
        events = (Event(event) for event in frame.events)
        return b"".join(map(_answers.sse, events)) or b": \n\n"  # an empty frame is a sign of life

    async def aclose(self) -> None:
        """Let go of it; what runs in the background goes on."""
        self._call.cancel()
        await self.exits.aclose()


async def stream_create(
    session: Session, asked: ResponseCreate, read_s: float | None, exits: AsyncExitStack
) -> CallStream:
    """Run a create outside the session, over gRPC, as a stream.

    Args:
        session: On whose connection.
        asked: The create.
        read_s: Longest silence.
        exits: Closed when the stream is.

    Raises:
        TurnwireError: It was refused.
    """
    unary = cast("GrpcUnaryCalls", session._wire.unary)
    call = unary._responses.StreamCreate(asked, metadata=unary._metadata)
    stream = CallStream(call, read_s)
    await stream.begin()
    stream.exits = exits.pop_all()
    return stream


class _Passing:
    """A stream that passes on what comes."""

    def __init__(
        self, answer: aiohttp.ClientResponse, authority: str, exits: AsyncExitStack
    ) -> None:
        self._answer = answer
        self._authority = authority
        self._exits = exits

    async def next_chunk(self) -> bytes:
        """Wait for more; empty at the end."""
        try:
            return await self._answer.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise client_error(error, self._authority) from None

    async def aclose(self) -> None:
        """Let go of it."""
        self._answer.close()
        await self._exits.aclose()


async def pass_on(session: Session, exchange: Exchange, path: str, exits: AsyncExitStack) -> Answer:
    """Make a request over HTTP as it is and return what comes.

    Args:
        session: Beside which; it is on a WebSocket.
        exchange: The request.
        path: Its path below the base URL.
        exits: Closed when the answer has come, however long that takes.

    Raises:
        TurnwireError: There was no answer.
    """
    calls = cast("HttpCalls", session._wire.unary)
    headers = {name: value for name, value in exchange.headers.items() if name in _PASSED}
    url = URL(calls._base + path, encoded=True).extend_query(list(exchange.query))
    bound = aiohttp.ClientTimeout(total=None, sock_read=exchange.timeouts.read)
    body = io.BytesIO(exchange.body) if exchange.body else None
    try:
        answer = await calls._client.request(
            exchange.method, url, data=body, headers=headers, timeout=bound
        )
        shown = {name: answer.headers[name] for name in _SHOWN if name in answer.headers}
        if answer.content_type == "text/event-stream":
            return Answer(answer.status, _Passing(answer, calls._authority, exits.pop_all()), shown)
        return Answer(answer.status, await answer.read(), shown)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise client_error(error, calls._authority) from None
