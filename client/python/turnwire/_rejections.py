"""One table from what a server says to the error that this library raises."""

from __future__ import annotations

import json
from collections.abc import Mapping

from turnwire import errors
from turnwire.v1 import annotations_pb2, error_pb2

__all__ = [
    "error_body",
    "error_type",
    "http_status",
    "is_retryable",
    "rejection",
    "rejection_from_body",
    "rejection_from_http",
    "seconds",
]

_BY_CODE: Mapping[str, type[errors.ResponseRejected]] = {
    "insufficient_quota": errors.RateLimited,
    "invalid_api_key": errors.AuthenticationFailed,
    "item_not_found": errors.NotFound,
    "model_not_found": errors.NotFound,
    "permission_denied": errors.AuthenticationFailed,
    "previous_response_not_found": errors.PreviousResponseNotFound,
    "rate_limit_exceeded": errors.RateLimited,
    "request_cancelled": errors.RequestCancelled,
    "response_not_found": errors.NotFound,
    "server_error": errors.ServerFailed,
    "server_is_overloaded": errors.ServerOverloaded,
}
_BY_STATUS: Mapping[int, type[errors.ResponseRejected]] = {
    401: errors.AuthenticationFailed,
    403: errors.AuthenticationFailed,
    404: errors.NotFound,
    429: errors.RateLimited,
    503: errors.ServerOverloaded,
}
# `websocket_connection_limit_reached` succeeds on a new connection; the rest, on any, later.
_RETRYABLE = frozenset(
    {
        "rate_limit_exceeded",
        "server_error",
        "server_is_overloaded",
        "websocket_connection_limit_reached",
    }
)
_PREFIX = "ERROR_REASON_"


def http_status(code: str) -> int | None:
    """Return the HTTP status that the contract gives `code`, or None for an unknown code."""
    value = error_pb2.ErrorReason.DESCRIPTOR.values_by_name.get(_PREFIX + code.upper())
    if value is None:
        return None
    return int(value.GetOptions().Extensions[annotations_pb2.http_status]) or None


def error_type(code: str) -> str | None:
    """Return the public error type that the contract gives `code`, or None for an unknown code."""
    value = error_pb2.ErrorReason.DESCRIPTOR.values_by_name.get(_PREFIX + code.upper())
    if value is None:
        return None
    return str(value.GetOptions().Extensions[annotations_pb2.error_type]) or None


def is_retryable(code: str) -> bool:
    """Return whether what was refused with `code` may be accepted later or elsewhere."""
    return code in _RETRYABLE


def rejection(
    code: str,
    message: str,
    *,
    status: int,
    type: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> errors.ResponseRejected:
    """Return the error for a refusal.

    Args:
        code: Stable code; empty when the server gave none.
        message: Prose.
        status: HTTP status.
        type: Public error type; the one of `code` when the server gave none.
        param: Path of the member at fault.
        headers: Hints such as `retry-after`, lower-case names.
    """
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = errors.ServerFailed if status >= 500 else errors.InvalidRequest
    unnamed = not code and status in (429, 500, 502, 503, 504)
    return kind(
        code=code or f"http_{status}",
        status=status,
        message=message or "The server refused the request.",
        type=type or error_type(code),
        param=param,
        headers=headers,
        retryable=is_retryable(code) or unnamed,
        retry_after_s=seconds((headers or {}).get("retry-after")),
    )


def rejection_from_body(status: int, body: error_pb2.ErrorBody) -> errors.ResponseRejected:
    """Return the error for an `error` event."""
    return rejection(
        body.code,
        body.message,
        status=status or http_status(body.code) or 400,
        type=body.type,
        param=body.param if body.HasField("param") else None,
        headers={name.lower(): value for name, value in body.headers.items()},
    )


def error_body(status: int, data: bytes, headers: Mapping[str, str]) -> error_pb2.ErrorBody:
    """Return the error in an HTTP answer; `data` may be anything, as proxies answer too.

    Args:
        status: HTTP status, 400 or more.
        data: The answer's body.
        headers: The answer's headers; only `retry-after` is read.
    """
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    error = value.get("error") if isinstance(value, dict) else None
    members = error if isinstance(error, dict) else {}
    body = error_pb2.ErrorBody(
        type=_text(members.get("type")) or "",
        code=_text(members.get("code")) or "",
        message=_text(members.get("message")) or f"HTTP status {status}",
        param=_text(members.get("param")),
    )
    for name, hint in headers.items():
        if name.lower() == "retry-after":
            body.headers["retry-after"] = hint
    return body


def rejection_from_http(
    status: int, data: bytes, headers: Mapping[str, str]
) -> errors.ResponseRejected:
    """Return the error for an HTTP answer of status 400 or more."""
    return rejection_from_body(status, error_body(status, data, headers))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def seconds(value: str | None) -> float | None:
    """Return the value of a `retry-after` hint in seconds; None when it is none of these."""
    # The other form of the header, a date, would need a clock that agrees with the server's.
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None
