"""Answers as the HTTP server would give them."""

from __future__ import annotations

import orjson
from google.protobuf.message import Message

from turnwire import _codec
from turnwire._codec.errors import Kind
from turnwire._event import Event
from turnwire._rejections import error_type, http_status
from turnwire.errors import ConnectionLost, ResponseRejected, TurnwireError
from turnwire.openai._values import Answer
from turnwire.v1.error_pb2 import ErrorBody
from turnwire.v1.server_event_pb2 import ServerEvent, SessionError

__all__ = [
    "SSE_DONE",
    "SSE_HEADERS",
    "answer",
    "error_chunk",
    "invalid",
    "refusal",
    "rejected",
    "sse",
]

SSE_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
SSE_DONE = b"data: [DONE]\n\n"

_CODES: dict[Kind, str] = {
    "json": "invalid_json",
    "missing": "missing_required_parameter",
    "type": "invalid_type",
    "value": "invalid_value",
}


def answer(message: Message, headers: dict[str, str] | None = None) -> Answer:
    """Return a message as a JSON answer with status 200."""
    return _json(200, _codec.dumps(message), headers or {})


def refusal(code: str, message: str, *, param: str | None = None) -> Answer:
    """Return the answer for an error of this side, in the server's form.

    Args:
        code: A code of the contract.
        message: Prose.
        param: Path of the member at fault.
    """
    body = ErrorBody(type=error_type(code) or "", code=code, message=message[:512], param=param)
    return _error(http_status(code) or 400, body)


def invalid(error: _codec.DecodeError, within: str = "") -> Answer:
    """Return the answer for a body that is no create."""
    path = ".".join(part for part in (within, error.path) if part) or None
    where = f"Invalid '{path}': it {error.problem}." if path else f"The body {error.problem}."
    return refusal(_CODES[error.kind], where, param=path)


def rejected(error: TurnwireError, headers: dict[str, str] | None = None) -> Answer | None:
    """Return the answer for what ended an exchange before its stream began.

    Args:
        error: What ended it.
        headers: More headers.

    Returns:
        None when the HTTP server would have given no answer either.
    """
    if isinstance(error, ResponseRejected):
        return _error(error.status, _body(error), {**error.headers, **(headers or {})})
    if isinstance(error, ConnectionLost) and error.code and http_status(error.code):
        return refusal(error.code, "The server ended the session.")
    return None


def sse(event: Event) -> bytes:
    """Return an event's lines."""
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), _codec.dumps(event.whole))


def error_chunk(error: ResponseRejected) -> bytes:
    """Return the lines for a refusal after the stream has begun."""
    event = ServerEvent(error=SessionError(status=error.status, error=_body(error)))
    return b"event: error\ndata: %b\n\n" % _codec.dumps(event) + SSE_DONE


def _body(error: ResponseRejected) -> ErrorBody:
    return ErrorBody(
        type=error.type,
        code=error.code,
        message=error.message,
        param=error.param,
        headers=dict(error.headers),
    )


def _error(status: int, body: ErrorBody, headers: dict[str, str] | None = None) -> Answer:
    return _json(status, orjson.dumps({"error": _codec.to_value(body)}), headers or {})


def _json(status: int, body: bytes, headers: dict[str, str]) -> Answer:
    return Answer(status, body, {"content-type": "application/json", **headers})
