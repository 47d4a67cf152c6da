"""`/v1/responses` and `/v1/models` over HTTP: JSON answers, or one turn as server-sent events."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TypeVar

from aiohttp import web
from google.protobuf.message import Message

from turnwire import _codec
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.error_pb2 import (
    ERROR_REASON_INVALID_TYPE,
    ERROR_REASON_SERVER_ERROR,
    ERROR_REASON_UNSUPPORTED_PARAMETER,
    ErrorBody,
)
from turnwire.v1.responses_service_pb2 import ListInputItemsRequest
from turnwire_server.codec.faults import Fault
from turnwire_server.codec.requests import decode_compact, decode_create
from turnwire_server.codec.sse import SSE_DONE, sse_comment, sse_event
from turnwire_server.runtime.reports import log_bug
from turnwire_server.runtime.services import Services
from turnwire_server.runtime.unary import UnaryApi
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Outgoing
from turnwire_server.transports.encoding import (
    JsonEncoder,
    is_terminal,
    public_type,
    rejection_of,
)
from turnwire_server.transports.http_body import BODIES
from turnwire_server.transports.http_errors import REQUEST_ID, RefusedError, error_answer
from turnwire_server.transports.turns import (
    TerminalSink,
    error_of,
    overload,
    response_of,
    run_turn,
)

__all__ = ["TENANT", "ResponsesApi", "accepted", "answer", "page_limit"]

logger = logging.getLogger("turnwire.transports")

TENANT: ContextVar[str] = ContextVar("turnwire.tenant")
"""Who asks, in the task that answers."""

ValueT = TypeVar("ValueT")

_SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
_NO_OUTCOME = Rejection(ERROR_REASON_SERVER_ERROR, "The turn ended without an outcome.")


class _SseSink:
    """Writes the events of one turn as server-sent events.

    The answer begins with the first write, so that a refusal can still be a plain status.
    """

    __slots__ = ("_encoder", "_has_events", "_request", "is_whole", "refusal", "response")

    def __init__(self, request: web.Request) -> None:
        self._encoder = JsonEncoder()
        self._request = request
        self._has_events = False
        self.response: web.StreamResponse | None = None
        self.refusal: ErrorBody | None = None
        self.is_whole = False

    def encode(self, event: Outgoing) -> bytes:
        """Return the event's lines, after a terminal event with `[DONE]`."""
        if not self._has_events and self.response is None:
            self.refusal = error_of(event)
            if self.refusal is not None:
                return b""
        self._has_events = True
        lines = sse_event(public_type(event), self._encoder.encode(event))
        if not is_terminal(event):
            return lines
        self.is_whole = True
        return lines + SSE_DONE

    async def write(self, batch: Sequence[bytes]) -> None:
        """Write the batch in one write.

        Raises:
            ConnectionError: The client hung up.
        """
        if self.refusal is not None:
            return
        if self.response is None:
            self.response = web.StreamResponse(headers=_SSE_HEADERS)
            await self.response.prepare(self._request)
        await self.response.write(b"".join(batch))

    def heartbeat(self) -> bytes | None:
        """Return a comment."""
        return sse_comment("keepalive")


def accepted(value: ValueT | Fault | Rejection) -> ValueT:
    """Return `value` unless it says why not.

    Raises:
        RefusedError: It does.
    """
    if isinstance(value, Fault):
        raise RefusedError(rejection_of(value))
    if isinstance(value, Rejection):
        raise RefusedError(value)
    return value


def answer(message: Message | Rejection) -> web.Response:
    """Return a message as the answer.

    Raises:
        RefusedError: It is a rejection.
    """
    body = _codec.dumps(accepted(message))
    return web.Response(body=body, content_type="application/json")


def page_limit(query: Mapping[str, str]) -> int | None:
    """Return the `limit` of a query, None when it has none.

    Raises:
        RefusedError: It is no number.
    """
    limit = query.get("limit")
    if limit is None:
        return None
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 9):
        message = "`limit` is a whole number."
        raise RefusedError(Rejection(ERROR_REASON_INVALID_TYPE, message, "limit"))
    return int(limit)


class ResponsesApi:
    """Handlers; each expects the tenant in the request."""

    def __init__(self, services: Services, unary: UnaryApi) -> None:
        self._services = services
        self._unary = unary

    def routes(self) -> list[web.RouteDef]:
        """Return the routes except `/v1/responses` itself."""
        one = "/v1/responses/{response_id}"
        return [
            web.post("/v1/responses/input_tokens", self.count_input_tokens),
            web.post("/v1/responses/compact", self.compact),
            web.get(one, self.get),
            web.delete(one, self.delete),
            web.post(f"{one}/cancel", self.cancel),
            web.get(f"{one}/input_items", self.list_input_items),
            web.get("/v1/models", self.list_models),
            web.get("/v1/models/{model:.+}", self.get_model),
        ]

    async def _body(self, request: web.Request) -> bytes:
        return await request.app[BODIES].read(request)

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Run a turn; the client's hanging up (aiohttp cancels the handler) cancels it."""
        if (refusal := overload(self._services)) is not None:
            raise RefusedError(refusal)
        body = await self._body(request)
        create = accepted(decode_create(body))
        run = self._stream if create.stream else self._complete
        return await run(request, create, len(body))

    async def _complete(
        self, request: web.Request, create: ResponseCreate, size: int
    ) -> web.StreamResponse:
        sink = TerminalSink()
        await run_turn(self._services, sink, create, size=size, wire="http", tenant=TENANT.get())
        if sink.terminal is None:
            return error_answer(_NO_OUTCOME)
        if (error := error_of(sink.terminal)) is not None:
            return error_answer(error, sink.terminal.error.status)
        return answer(response_of(sink.terminal))

    async def _stream(
        self, request: web.Request, create: ResponseCreate, size: int
    ) -> web.StreamResponse:
        sink = _SseSink(request)
        try:
            await run_turn(
                self._services, sink, create, size=size, wire="http", tenant=TENANT.get()
            )
        except Exception as error:  # The middleware's, for a bug after which no status can follow.
            if sink.response is None:
                raise
            log_bug(logger, f"stream failed request_id={REQUEST_ID.get()}", error)
            raise ConnectionResetError("a stream that began can only be cut") from None
        if sink.refusal is not None:
            return error_answer(sink.refusal)
        if sink.response is None:
            return error_answer(_NO_OUTCOME)
        if not sink.is_whole:
            raise ConnectionResetError("a stream without its end must not look like one with it")
        return sink.response

    async def get(self, request: web.Request) -> web.Response:
        """Return a stored response."""
        if request.query.get("stream", "false").lower() == "true":
            message = "A stored response is not streamed again."
            raise RefusedError(Rejection(ERROR_REASON_UNSUPPORTED_PARAMETER, message, "stream"))
        return await self._by_id(request, self._unary.get)

    async def delete(self, request: web.Request) -> web.Response:
        """Forget a stored response."""
        return await self._by_id(request, self._unary.delete)

    async def cancel(self, request: web.Request) -> web.Response:
        """End a running response."""
        return await self._by_id(request, self._unary.cancel)

    async def _by_id(
        self, request: web.Request, call: Callable[..., Awaitable[Message | Rejection]]
    ) -> web.Response:
        return answer(await call(request.match_info["response_id"], tenant=TENANT.get()))

    async def list_input_items(self, request: web.Request) -> web.Response:
        """List the items that a stored response was given."""
        query = request.query
        asked = ListInputItemsRequest(
            response_id=request.match_info["response_id"],
            after=query.get("after"),
            order=query.get("order"),
            include=[*query.getall("include", []), *query.getall("include[]", [])],
        )
        if (limit := page_limit(query)) is not None:
            asked.limit = limit
        return answer(await self._unary.list_input_items(asked, tenant=TENANT.get()))

    async def count_input_tokens(self, request: web.Request) -> web.Response:
        """Count the tokens of an input."""
        create = accepted(decode_create(await self._body(request)))
        return answer(await self._unary.count_input_tokens(create, tenant=TENANT.get()))

    async def compact(self, request: web.Request) -> web.Response:
        """Make a conversation shorter; the client's hanging up cancels it."""
        if (refusal := overload(self._services)) is not None:
            raise RefusedError(refusal)
        asked = accepted(decode_compact(await self._body(request)))
        return answer(await self._unary.compact(asked, tenant=TENANT.get()))

    async def list_models(self, request: web.Request) -> web.Response:
        """List the models."""
        return answer(self._unary.list_models())

    async def get_model(self, request: web.Request) -> web.Response:
        """Return a model."""
        return answer(self._unary.get_model(request.match_info["model"]))
