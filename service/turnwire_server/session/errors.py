"""Refusals as values: the session answers a peer's fault with an event, it never raises one.

`Rejection` is the only error that crosses floors. Its HTTP status and public type are options
of the `ErrorReason` enum in the contract, so every transport and every language reads one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turnwire.v1 import annotations_pb2, error_pb2, server_event_pb2

if TYPE_CHECKING:
    from turnwire.v1.error_pb2 import ErrorReason

__all__ = [
    "MAX_MESSAGE_CHARS",
    "MAX_PARAM_CHARS",
    "Rejection",
    "error_code",
    "error_type",
    "http_status",
    "quoted",
]

MAX_MESSAGE_CHARS = 512
"""Bound on `message`, whatever the request contained."""
MAX_PARAM_CHARS = 256
"""Bound on `param`."""

_VALUES = error_pb2.ErrorReason.DESCRIPTOR.values_by_number
_PREFIX = "ERROR_REASON_"


def error_code(reason: ErrorReason.ValueType) -> str:
    """Return the public `code`, for example `previous_response_not_found`."""
    return str(_VALUES[reason].name.removeprefix(_PREFIX).lower())


def error_type(reason: ErrorReason.ValueType) -> str:
    """Return the public `type`, for example `invalid_request_error`."""
    return str(_VALUES[reason].GetOptions().Extensions[annotations_pb2.error_type])


def http_status(reason: ErrorReason.ValueType) -> int:
    """Return the HTTP status, for example 400."""
    return int(_VALUES[reason].GetOptions().Extensions[annotations_pb2.http_status])


def quoted(value: str, limit: int = 80) -> str:
    """Return a client's `value` in quotes, cut to `limit` characters, for a message."""
    return f"'{value}'" if len(value) <= limit else f"'{value[:limit]}…'"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a client event was refused; nothing changed by it."""

    reason: ErrorReason.ValueType
    message: str
    """English prose for a person. Cut to `MAX_MESSAGE_CHARS` on the wire."""
    param: str | None = None
    """Path of the member at fault, for example `input[2].content[0].text`; cut to
    `MAX_PARAM_CHARS` on the wire."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Hints such as `retry-after`."""

    @property
    def status(self) -> int:
        """HTTP status."""
        return http_status(self.reason)

    @property
    def code(self) -> str:
        """Public code."""
        return error_code(self.reason)

    def body(self) -> error_pb2.ErrorBody:
        """Return the error's body, a new message."""
        return error_pb2.ErrorBody(
            type=error_type(self.reason),
            code=self.code,
            message=self.message[:MAX_MESSAGE_CHARS],
            param=None if self.param is None else self.param[:MAX_PARAM_CHARS],
            reason=self.reason,
            headers=dict(self.headers),
        )

    def event(
        self, stream_id: str | None = None, event_id: str | None = None
    ) -> server_event_pb2.ServerEvent:
        """Return the `error` event, a new message. It carries no sequence number."""
        return server_event_pb2.ServerEvent(
            stream_id=stream_id,
            event_id=event_id,
            error=server_event_pb2.SessionError(status=self.status, error=self.body()),
        )
