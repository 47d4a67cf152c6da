"""aiohttp's protocol without its own answers and log lines, both of which quote the client.

What reaches this far never reached a handler: bytes that are not HTTP, headers beyond the limit,
a body that breaks its framing, an expectation nobody knows. It is answered like everything else,
and a client's fault is no error of the server's log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast
from weakref import ref

from aiohttp import http_exceptions, web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader

from turnwire.v1.error_pb2 import ERROR_REASON_INVALID_VALUE, ERROR_REASON_MESSAGE_TOO_LARGE
from turnwire_server.runtime.reports import log_bug
from turnwire_server.session.errors import Rejection
from turnwire_server.transports.http_errors import (
    BODY_IS_BROKEN,
    bug_answer,
    error_answer,
    exception_answer,
    name,
)
from turnwire_server.transports.websocket_mask import FrameParser, MaskGuard

__all__ = ["WebRunner"]

logger = logging.getLogger("turnwire.transports")

_HEADERS_TOO_LARGE = 431
_CLIENT_FAULTS = (http_exceptions.HttpProcessingError, web.RequestPayloadError)


def _answer_to_fault(error: BaseException | None, limit: int) -> web.Response:
    """Return the answer for a request that is no HTTP, without a byte of it."""
    match error:
        case http_exceptions.LineTooLong():
            message = f"The request line or a header is over the limit of {limit} bytes."
            rejection = Rejection(ERROR_REASON_MESSAGE_TOO_LARGE, message)
            return error_answer(rejection, _HEADERS_TOO_LARGE)
        case http_exceptions.PayloadEncodingError() | web.RequestPayloadError():
            return error_answer(BODY_IS_BROKEN)
        case http_exceptions.InvalidHeader():
            message = "A header of the request is not valid."
        case http_exceptions.BadStatusLine() | http_exceptions.InvalidURLError():
            message = "The request line is not valid HTTP."
        case _:
            message = "The request is not valid HTTP."
    return error_answer(Rejection(ERROR_REASON_INVALID_VALUE, message))


class _Protocol(web.RequestHandler):
    """One connection."""

    __slots__ = ("_body", "_frames")

    def __init__(self, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._body: StreamReader | None = None
        """Body of the newest request."""
        self._frames: MaskGuard | None = None

    def data_received(self, data: bytes) -> None:
        """Take bytes; the body that they break is over.

        aiohttp's parser forgets that body, and its handler would wait for the rest of it until
        the client hangs up.
        """
        super().data_received(data)
        if not self._messages:
            return
        message, body = self._messages[-1]
        if isinstance(message, RawRequestMessage):
            self._body = body
        elif self._body is not None and not self._body.is_eof():
            self._body.set_exception(web.RequestPayloadError())

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note that the client is gone; its last body holds this."""
        super().connection_lost(exc)
        self._body = None

    def set_parser(self, parser: FrameParser, *options: Any, **named: Any) -> None:
        """Take the parser of an upgraded connection."""
        told = named.get("data_received_cb")
        if told is not None:
            # aiohttp's would be a cycle, which keeps a connection that is over until the next
            # full collection.
            named["data_received_cb"] = _call_while_there(told)
        self._frames = MaskGuard(parser, can_take=told is not None)
        super().set_parser(cast(Any, self._frames), *options, **named)

    def take_frames(self) -> MaskGuard:
        """Return what the frames of an upgraded connection pass; once, as it is a cycle."""
        frames, self._frames = self._frames, None
        assert frames is not None, "it was upgraded"
        return frames

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer for what no handler saw; the connection ends with it."""
        if status < 500 or isinstance(exc, _CLIENT_FAULTS):
            logger.debug("bad request error=%s", type(exc).__qualname__)
            answer = _answer_to_fault(exc, self.max_field_size)
        else:
            answer = bug_answer(exc or TimeoutError())
        if request.writer.output_size > 0:
            raise ConnectionError("an answer that began can only be cut")
        answer.force_close()
        name(answer)
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; one that aiohttp raised before the middlewares is made anew."""
        if isinstance(resp, web.HTTPException):
            resp = exception_answer(request, resp)
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log a bug of the connection; what a client did is none."""
        error = kw.get("exc_info")
        if isinstance(error, BaseException) and not isinstance(error, _CLIENT_FAULTS):
            log_bug(logger, "connection failed", error)

    def log_debug(self, *args: Any, **kw: Any) -> None:
        """Log nothing: it is only for work on aiohttp itself."""


def _call_while_there(method: Any) -> Callable[[], None]:
    """Return what calls a method for as long as something else holds its object."""
    owner, function = ref(method.__self__), method.__func__

    def call() -> None:
        there = owner()
        if there is not None:
            function(there)

    return call


class _Server(web.Server):
    """Makes the protocol of each connection."""

    def __init__(self, made: web.Server, options: dict[str, Any]) -> None:
        super().__init__(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=True,  # Without it a handler outlives its client.
        )
        self._options = options

    def __call__(self) -> _Protocol:
        """Return the protocol for a new connection."""
        return _Protocol(self, loop=asyncio.get_running_loop(), **self._options)


class WebRunner(web.AppRunner):
    """Runs an application on our protocol."""

    __slots__ = ("_options",)

    def __init__(self, app: web.Application, *, shutdown_timeout_s: float, **options: Any) -> None:
        """Make a runner; `setup` starts it.

        Args:
            app: The application.
            shutdown_timeout_s: How long running requests may take after the runner was told to
                stop, in seconds.
            options: Of aiohttp's request handler.
        """
        super().__init__(app, handle_signals=False, shutdown_timeout=shutdown_timeout_s)
        self._options = options

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._options)
