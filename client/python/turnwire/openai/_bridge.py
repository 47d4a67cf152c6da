"""From HTTP exchanges to turns and calls on sessions."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import unquote

from google.protobuf.message import Message

from turnwire import _codec
from turnwire._session import Session
from turnwire._wire import UnaryCalls
from turnwire.errors import NotFound, PreviousResponseNotFound, ResponseRejected, TurnwireError
from turnwire.openai import _answers
from turnwire.openai._calls import compact, create, has_http, pass_on, stream_create
from turnwire.openai._plan import Plan, object_of, plan_of
from turnwire.openai._pool import Opener, PoolSettings, SessionPool
from turnwire.openai._running import Running, within
from turnwire.openai._slots import Identity, Known, Lease
from turnwire.openai._values import Answer, Exchange, TransportStats
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.response_pb2 import Response
from turnwire.v1.responses_service_pb2 import CompactRequest, ListInputItemsRequest

__all__ = ["Bridge"]

_PATH = re.compile(r"^.*?/(?P<kind>responses|models|conversations)(?:/(?P<rest>.+?))?/?$")
_IDENTIFYING = frozenset({"authorization", "openai-organization", "openai-project"})


class Bridge:
    """Answers exchanges by means of a pool of sessions. Lives on one event loop."""

    def __init__(self, settings: PoolSettings, opener: Opener) -> None:
        self._pool = SessionPool(settings, opener)
        self._stats = TransportStats()

    @property
    def stats(self) -> TransportStats:
        """What happened so far."""
        up, down = self._pool.payload_bytes
        return replace(
            self._stats,
            sessions_opened=self._pool.sessions_opened,
            sessions=self._pool.sessions,
            bytes_up=up,
            bytes_down=down,
        )

    async def handle(self, exchange: Exchange) -> Answer | None:
        """Answer an exchange.

        Returns:
            None for a path that no session has anything for.

        Raises:
            TurnwireError: There is no answer: no connection, or it broke, or a bound passed.
        """
        found = _PATH.match(exchange.path)
        if found is None:
            return None
        steps = [unquote(step) for step in (found["rest"] or "").split("/") if step]
        match found["kind"], exchange.method, steps:
            case "responses", "POST", []:
                return await self._create(exchange)
            case "responses", "POST", ["input_tokens"]:
                return await self._count(exchange)
            case "responses", "POST", ["compact"]:
                return await self._compact(exchange)
            case "responses", "POST", [response_id, "cancel"]:
                return await self._call(exchange, lambda calls: calls.cancel(response_id))
            case "responses", "GET", [response_id] if not _is_streamed(exchange):
                include = _includes(exchange)
                return await self._call(exchange, lambda calls: calls.get(response_id, include))
            case "responses", "DELETE", [response_id]:
                return await self._delete(exchange, response_id)
            case "responses", "GET", [response_id, "input_items"]:
                return await self._input_items(exchange, response_id)
            case "models", "GET", []:
                return await self._call(exchange, lambda calls: calls.models())
            case "models", "GET", model:
                return await self._model(exchange, "/".join(model))
        rest = f"/{found['rest']}" if found["rest"] else ""
        return await self._elsewhere(exchange, f"/{found['kind']}{rest}")

    async def aclose(self) -> None:
        """Close all sessions; what runs on them is cut."""
        await self._pool.aclose()

    # Turns.

    async def _create(self, exchange: Exchange) -> Answer:
        plan = plan_of(exchange.body)
        if isinstance(plan, Answer):
            return plan
        if plan.is_background:
            return await self._background(exchange, plan)
        event_id = f"req_{secrets.token_hex(16)}"
        named = {"x-request-id": event_id}
        try:
            lease = await self._lease(exchange, plan)
            result = await self._run(exchange, plan, lease, event_id)
        except TurnwireError as error:
            if (refused := _answers.rejected(error, named)) is not None:
                return refused
            raise
        if isinstance(result, Running):
            return Answer(200, result, {**_answers.SSE_HEADERS, **named})
        return result if isinstance(result, Answer) else _answers.answer(result, named)

    async def _lease(self, exchange: Exchange, plan: Plan) -> Lease:
        """Take a session: the one that holds most of the conversation, or any."""
        identity, timeouts = _identity(exchange.headers), exchange.timeouts
        found: Lease | Known | None = None
        if plan.parent is not None:
            found = self._pool.find_response(identity, plan.parent)
            if found is not None and found.head is not None and plan.is_followed:
                plan.follow(found.head.digest)
        elif plan.is_followed:
            found = self._pool.find(identity, plan.digests)
        if isinstance(found, Lease):
            return found
        lease = await self._pool.acquire(identity, connect_s=timeouts.connect, pool_s=timeouts.pool)
        return lease if found is None else self._pool.continuing(lease, found)

    async def _run(
        self, exchange: Exchange, plan: Plan, lease: Lease, event_id: str
    ) -> Running | Response | Answer:
        """Begin the turn, and end it unless it is streamed."""
        head = lease.head
        try:
            create = plan.create(lease.items, None if head is None else head.response_id)
        except _codec.DecodeError as error:
            self._pool.release(lease.slot, lease.head)
            return _answers.invalid(error)
        running = None
        try:
            running = self._start(create, event_id, plan, lease, exchange)
            try:
                await running.begin()
            except ResponseRejected as error:
                if not lease.items or not _is_about_the_rest(error):
                    raise
                self._stats = replace(self._stats, fallbacks=self._stats.fallbacks + 1)
                if head is not None and isinstance(error, PreviousResponseNotFound):
                    self._pool.forget(head.response_id)
                lease = Lease(lease.slot)
                refused = running
                running = self._start(plan.create(), f"{event_id}_2", plan, lease, exchange)
                refused.hand_over()
                await running.begin()
            return running if plan.is_streamed else (await running.result()).message
        except BaseException:
            if running is None:
                self._pool.release(lease.slot, None)
            else:
                running.abandon()
            raise

    def _start(
        self, create: ResponseCreate, event_id: str, plan: Plan, lease: Lease, exchange: Exchange
    ) -> Running:
        slot = lease.slot
        event = ClientEvent(response_create=create)
        turn = slot.held.session._connection.start(event, slot.lane, event_id, is_exact=True)
        stats = self._stats
        self._stats = replace(
            stats,
            turns=stats.turns + 1,
            continued=stats.continued + bool(lease.items),
            forks=stats.forks + (sum(each.is_busy for each in slot.held.slots) > 1),
            items_given=stats.items_given + len(plan.items),
            items_sent=stats.items_sent + len(plan.items) - lease.items,
        )
        return Running(turn, plan, lease, self._pool, exchange.timeouts.read)

    async def _background(self, exchange: Exchange, plan: Plan) -> Answer:
        """Let a turn run that no session is to hold up, or end with."""
        try:
            asked = plan.create()
        except _codec.DecodeError as error:
            return _answers.invalid(error)
        read_s = exchange.timeouts.read
        try:
            async with AsyncExitStack() as exits:
                session = await exits.enter_async_context(self._borrowed(exchange))
                if has_http(session):
                    return await pass_on(session, exchange, "/responses", exits)
                if not plan.is_streamed:
                    return _answers.answer(await within(read_s, create(session, asked)))
                stream = await stream_create(session, asked, read_s, exits)
        except TurnwireError as error:
            if (refused := _answers.rejected(error)) is not None:
                return refused
            raise
        return Answer(200, stream, _answers.SSE_HEADERS)

    # Calls beside the turns.

    async def _count(self, exchange: Exchange) -> Answer:
        plan = plan_of(exchange.body)
        if isinstance(plan, Answer):
            return plan
        try:
            create = plan.create()
        except _codec.DecodeError as error:
            return _answers.invalid(error)
        return await self._call(exchange, lambda calls: calls.count_tokens(create))

    async def _compact(self, exchange: Exchange) -> Answer:
        body = object_of(exchange.body)
        if isinstance(body, Answer):
            return body
        try:
            request = _codec.parse(CompactRequest, body)
        except _codec.DecodeError as error:
            return _answers.invalid(error)
        return await self._on_session(exchange, lambda session: compact(session, request))

    async def _elsewhere(self, exchange: Exchange, path: str) -> Answer | None:
        """Pass on what there is no call for; None where there is nothing to pass it to."""
        async with AsyncExitStack() as exits:
            session = await exits.enter_async_context(self._borrowed(exchange))
            if not has_http(session):
                return None
            return await pass_on(session, exchange, path, exits)

    async def _delete(self, exchange: Exchange, response_id: str) -> Answer:
        answer = await self._call(exchange, lambda calls: calls.delete(response_id))
        if answer.status == HTTPStatus.OK:
            self._pool.forget(response_id)
        return answer

    async def _input_items(self, exchange: Exchange, response_id: str) -> Answer:
        query = dict(exchange.query)
        asked = ListInputItemsRequest(
            response_id=response_id,
            after=query.get("after"),
            order=query.get("order"),
            include=_includes(exchange),
        )
        limit = query.get("limit")
        if limit is not None:
            if not (limit.isascii() and limit.isdecimal() and len(limit) <= 9):
                message = "`limit` is a whole number."
                return _answers.refusal("invalid_type", message, param="limit")
            asked.limit = int(limit)
        return await self._call(exchange, lambda calls: calls.input_items(asked))

    async def _model(self, exchange: Exchange, name: str) -> Answer:
        async def find(calls: UnaryCalls) -> Message:
            for model in (await calls.models()).data:
                if model.id == name:
                    return model
            message = f"The model {name[:80]!r} does not exist."
            raise NotFound(code="model_not_found", status=404, message=message, param="model")

        return await self._call(exchange, find)

    async def _call(
        self, exchange: Exchange, call: Callable[[UnaryCalls], Awaitable[Message]]
    ) -> Answer:
        return await self._on_session(exchange, lambda session: call(session._wire.unary))

    async def _on_session(
        self, exchange: Exchange, call: Callable[[Session], Awaitable[Message]]
    ) -> Answer:
        try:
            async with self._borrowed(exchange) as session:
                result = await within(exchange.timeouts.read, call(session))
        except TurnwireError as error:
            if (refused := _answers.rejected(error)) is not None:
                return refused
            raise
        return _answers.answer(result)

    def _borrowed(self, exchange: Exchange) -> AbstractAsyncContextManager[Session]:
        return self._pool.borrow(_identity(exchange.headers), connect_s=exchange.timeouts.connect)


def _identity(headers: Mapping[str, str]) -> Identity:
    return tuple(sorted((name, headers[name]) for name in _IDENTIFYING if name in headers))


def _is_streamed(exchange: Exchange) -> bool:
    return any(name == "stream" and value != "false" for name, value in exchange.query)


def _includes(exchange: Exchange) -> list[str]:
    return [value for name, value in exchange.query if name in ("include", "include[]")]


def _is_about_the_rest(error: ResponseRejected) -> bool:
    """Whether the whole input may be accepted, or refused in words about the whole input."""
    return isinstance(error, PreviousResponseNotFound) or (error.param or "").startswith("input")
