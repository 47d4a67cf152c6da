"""Server-sent events: one turn, or what is told of one that no connection owns."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from aiohttp import web

from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.error_pb2 import ERROR_REASON_SERVER_ERROR, ErrorBody
from turnwire.v1.response_pb2 import Response
from turnwire_server.codec.sse import SSE_DONE, sse_comment, sse_event
from turnwire_server.runtime.background import DetachedTurn
from turnwire_server.runtime.reports import log_bug
from turnwire_server.runtime.services import Services
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Outgoing
from turnwire_server.session.replay import replay
from turnwire_server.transports.encoding import JsonEncoder, is_terminal, public_type
from turnwire_server.transports.http_errors import REQUEST_ID, error_answer
from turnwire_server.transports.turns import error_of, run_turn

__all__ = ["NO_OUTCOME", "follow_turn", "replay_response", "stream_turn"]

logger = logging.getLogger("turnwire.transports")

NO_OUTCOME = Rejection(ERROR_REASON_SERVER_ERROR, "The turn ended without an outcome.")

_SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


class _SseSink:
    """Writes the events of one turn as server-sent events.

    The answer begins with the first write, so that a refusal can still be a plain status.
    """

    __slots__ = (
        "_encoder",
        "_has_events",
        "_headers",
        "_request",
        "is_whole",
        "refusal",
        "response",
    )

    def __init__(self, request: web.Request, headers: dict[str, str] | None = None) -> None:
        self._encoder = JsonEncoder()
        self._request = request
        self._headers = headers or {}
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
        response = self.response or await self.begin()
        await response.write(b"".join(batch))

    async def begin(self) -> web.StreamResponse:
        """Begin the answer: no refusal can come any more."""
        self.response = web.StreamResponse(headers={**_SSE_HEADERS, **self._headers})
        await self.response.prepare(self._request)
        return self.response

    def heartbeat(self) -> bytes | None:
        """Return a comment."""
        return sse_comment("keepalive")


async def stream_turn(
    request: web.Request, services: Services, create: ResponseCreate, *, size: int, tenant: str
) -> web.StreamResponse:
    """Run a turn and stream it; the client's hanging up cancels it."""
    sink = _SseSink(request)
    try:
        await run_turn(services, sink, create, size=size, wire="http", tenant=tenant)
    except Exception as error:
        _cut(sink, error)
    return _answer_of(sink)


async def follow_turn(
    request: web.Request,
    services: Services,
    turn: DetachedTurn,
    *,
    after: int = -1,
    headers: dict[str, str] | None = None,
) -> web.StreamResponse:
    """Stream the events of a turn behind number `after`; hanging up leaves the turn alone."""
    with turn.expecting():  # also between its beginning and what follows: the client is there
        opening = await turn.opening()
        if opening.HasField("error"):
            return error_answer(opening.error.error, opening.error.status)
        sink = _SseSink(request, headers)
        try:
            response = await sink.begin()  # at once: the next event may be far away
            await turn.follow(sink, after=after, heartbeat_s=services.settings.sse_heartbeat_s)
            if turn.terminal is not None and not sink.is_whole:
                await response.write(SSE_DONE)  # the client has the terminal event already
                sink.is_whole = True
        except Exception as error:
            _cut(sink, error)
        return _answer_of(sink)


async def replay_response(
    request: web.Request, response: Response, *, headers: dict[str, str] | None = None
) -> web.StreamResponse:
    """Stream a response that is over, made anew from what was kept of it."""
    sink = _SseSink(request, headers)
    await sink.write([sink.encode(event) for event in replay(response)])
    return _answer_of(sink)


def _cut(sink: _SseSink, error: Exception) -> None:
    """Raise what ends a stream for a bug: the middleware's answer, as long as one can follow."""
    if sink.response is None:
        raise error
    log_bug(logger, f"stream failed request_id={REQUEST_ID.get()}", error)
    raise ConnectionResetError("a stream that began can only be cut") from None


def _answer_of(sink: _SseSink) -> web.StreamResponse:
    if sink.refusal is not None:
        return error_answer(sink.refusal)
    if sink.response is None:
        return error_answer(NO_OUTCOME)
    if not sink.is_whole:
        raise ConnectionResetError("a stream without its end must not look like one with it")
    return sink.response
