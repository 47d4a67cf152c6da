"""Errors as HTTP answers: one JSON body for every failure, one request id for every answer."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextvars import ContextVar
from http import HTTPStatus

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from turnwire import _codec
from turnwire.v1.error_pb2 import (
    ERROR_REASON_INVALID_VALUE,
    ERROR_REASON_METHOD_NOT_ALLOWED,
    ERROR_REASON_NOT_FOUND,
    ERROR_REASON_SERVER_ERROR,
    ErrorBody,
)
from turnwire_server.runtime.reports import log_bug
from turnwire_server.session.errors import Rejection, http_status

__all__ = [
    "BODY_IS_BROKEN",
    "REQUEST_ID",
    "RefusedError",
    "answer_errors",
    "bug_answer",
    "error_answer",
    "exception_answer",
    "name",
    "name_answer",
]

logger = logging.getLogger("turnwire.transports")

REQUEST_ID: ContextVar[str] = ContextVar("turnwire.request_id", default="")
"""Id of the request that the task answers: the answer's `x-request-id`, and in log lines."""

BODY_IS_BROKEN = Rejection(
    ERROR_REASON_INVALID_VALUE, "The body is not framed as the request's headers say."
)


class RefusedError(Exception):
    """Carries a rejection from where a request is taken apart to its answer."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.code)
        self.rejection = rejection


def error_answer(error: Rejection | ErrorBody, status: int | None = None) -> web.Response:
    """Return the answer for an error.

    Args:
        error: What went wrong.
        status: The HTTP status, None for the one of the error's reason.
    """
    body = error.body() if isinstance(error, Rejection) else error
    return web.Response(
        status=status or http_status(body.reason),
        body=orjson.dumps({"error": _codec.to_value(body)}),
        content_type="application/json",
        headers=dict(body.headers),
    )


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Name the request and turn everything that is raised into an answer."""
    REQUEST_ID.set(f"req_{uuid.uuid4().hex}")
    try:
        return await handler(request)
    except RefusedError as refused:
        return error_answer(refused.rejection)
    except web.HTTPException as error:
        return exception_answer(request, error)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception as error:  # The outermost frame: everything that is a bug ends here.
        return bug_answer(error)


def bug_answer(error: BaseException) -> web.Response:
    """Log a bug and return the answer for it."""
    request_id = _request_id()
    log_bug(logger, f"request failed request_id={request_id}", error)
    message = f"The server made an error. Its log has the request id {request_id}."
    return error_answer(Rejection(ERROR_REASON_SERVER_ERROR, message))


def exception_answer(request: web.BaseRequest, error: web.HTTPException) -> web.Response:
    """Return the answer for what aiohttp raises; its own would quote the client."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allow = ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))
        if request.method == "OPTIONS":
            return web.Response(status=204, headers={"allow": allow})
        answer = error_answer(
            Rejection(ERROR_REASON_METHOD_NOT_ALLOWED, f"The path takes {allow}.")
        )
        answer.headers["allow"] = allow
        return answer
    if error.status == HTTPStatus.NOT_FOUND:
        return error_answer(Rejection(ERROR_REASON_NOT_FOUND, "Nothing is at this path."))
    if error.status >= HTTPStatus.BAD_REQUEST:
        # What aiohttp itself refuses: a bad handshake, an expectation it does not know.
        return error_answer(
            Rejection(ERROR_REASON_INVALID_VALUE, f"The request is bad: {error.reason}."),
            error.status,
        )
    return web.Response(status=error.status, headers=error.headers)


async def name_answer(request: web.Request, response: web.StreamResponse) -> None:
    """Name every answer, streamed and upgraded ones too."""
    name(response)


def name(response: web.StreamResponse) -> None:
    """Put the request id on an answer, and not what the server is made of."""
    response.headers["x-request-id"] = _request_id()
    response.headers["server"] = "turnwire"


def _request_id() -> str:
    """Return the id of the request that the task answers; it may have failed before it had one."""
    if not REQUEST_ID.get():
        REQUEST_ID.set(f"req_{uuid.uuid4().hex}")
    return REQUEST_ID.get()
