"""`/v1/responses` and `/v1/models` over HTTP: JSON answers, or one turn as server-sent events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TypeVar

from aiohttp import web
from google.protobuf.message import Message

from turnwire import _codec
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.error_pb2 import ERROR_REASON_INVALID_TYPE
from turnwire.v1.response_pb2 import Response
from turnwire.v1.responses_service_pb2 import ListInputItemsRequest
from turnwire_server.codec.faults import Fault
from turnwire_server.codec.requests import decode_compact, decode_create
from turnwire_server.runtime.idempotency import KEY_REUSED, check_key
from turnwire_server.runtime.services import Services
from turnwire_server.runtime.unary import UnaryApi
from turnwire_server.session.errors import Rejection
from turnwire_server.transports.encoding import rejection_of
from turnwire_server.transports.http_body import BODIES
from turnwire_server.transports.http_errors import RefusedError, error_answer
from turnwire_server.transports.http_streams import (
    NO_OUTCOME,
    follow_turn,
    replay_response,
    stream_turn,
)
from turnwire_server.transports.turns import (
    TerminalSink,
    begin_detached,
    error_of,
    outcome_of,
    overload,
    response_of,
    run_turn,
)

__all__ = ["TENANT", "ResponsesApi", "accepted", "answer", "page_limit"]

TENANT: ContextVar[str] = ContextVar("turnwire.tenant")
"""Who asks, in the task that answers."""

ValueT = TypeVar("ValueT")

_IS_AGAIN = {"idempotent-replayed": "true"}
"""Headers of an answer whose request came before."""
_KEY_REUSED_STATUS = 422
"""What draft-ietf-httpapi-idempotency-key-header says; unlike 409, no client tries it again."""


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


def answer(message: Message | Rejection, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a message as the answer.

    Raises:
        RefusedError: It is a rejection.
    """
    body = _codec.dumps(accepted(message))
    return web.Response(body=body, content_type="application/json", headers=headers)


def page_limit(query: Mapping[str, str]) -> int | None:
    """Return the `limit` of a query, None when it has none.

    Raises:
        RefusedError: It is no number.
    """
    return whole_number(query, "limit")


def whole_number(query: Mapping[str, str], name: str) -> int | None:
    """Return a member of a query, None when it is not there.

    Raises:
        RefusedError: It is no number.
    """
    value = query.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 9):
        message = f"`{name}` is a whole number."
        raise RefusedError(Rejection(ERROR_REASON_INVALID_TYPE, message, name))
    return int(value)


def _idempotency_key(request: web.Request) -> str | None:
    """Return the idempotency key of a request, None when it has none.

    Raises:
        RefusedError: It is none, or there are several.
    """
    keys = request.headers.getall("idempotency-key", [])
    if not keys:
        return None
    if (refusal := check_key(", ".join(keys))) is not None:
        raise RefusedError(refusal)
    return keys[0]


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
        """Run a turn.

        The client's hanging up (aiohttp cancels the handler) cancels it, unless it runs in the
        background or its request has an idempotency key.
        """
        if (refusal := overload(self._services)) is not None:
            raise RefusedError(refusal)
        key = _idempotency_key(request)
        body = await self._body(request)
        create = accepted(decode_create(body))
        if key is not None or create.background:
            return await self._create_detached(request, create, len(body), key)
        if create.stream:
            return await stream_turn(
                request, self._services, create, size=len(body), tenant=TENANT.get()
            )
        return await self._complete(create, len(body))

    async def _complete(self, create: ResponseCreate, size: int) -> web.StreamResponse:
        sink = TerminalSink()
        await run_turn(self._services, sink, create, size=size, wire="http", tenant=TENANT.get())
        if sink.terminal is None:
            return error_answer(NO_OUTCOME)
        if (error := error_of(sink.terminal)) is not None:
            return error_answer(error, sink.terminal.error.status)
        return answer(response_of(sink.terminal))

    async def _create_detached(
        self, request: web.Request, create: ResponseCreate, size: int, key: str | None
    ) -> web.StreamResponse:
        is_background, wants_stream = create.background, create.stream
        found = await begin_detached(
            self._services, create, size=size, wire="http", tenant=TENANT.get(), key=key
        )
        if isinstance(found, Rejection):
            return error_answer(found, _KEY_REUSED_STATUS if found is KEY_REUSED else None)
        headers = _IS_AGAIN if found.is_again else None
        if wants_stream:
            if found.turn is not None:
                return await follow_turn(request, self._services, found.turn, headers=headers)
            assert found.response is not None  # one of the two is there
            return await replay_response(request, found.response, headers=headers)
        outcome = await outcome_of(found, is_background=is_background)
        if isinstance(outcome, Response):
            return answer(outcome, headers)
        return error_answer(outcome.error, outcome.status)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Return a stored response; with `stream=true` its events, behind `starting_after`."""
        if request.query.get("stream", "false").lower() == "true":
            return await self._stream_again(request)
        return await self._by_id(request, self._unary.get)

    async def _stream_again(self, request: web.Request) -> web.StreamResponse:
        after = whole_number(request.query, "starting_after")
        found = await self._unary.find_stream(
            request.match_info["response_id"], after=after, tenant=TENANT.get()
        )
        if isinstance(found, Rejection):
            raise RefusedError(found)
        if isinstance(found, Response):
            return await replay_response(request, found)
        after = -1 if after is None else after
        return await follow_turn(request, self._services, found, after=after)

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
