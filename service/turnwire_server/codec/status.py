"""The one table from error reasons to gRPC statuses, and the options that have the rest.

The numbers are those of gRPC's status codes: this floor knows no gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from turnwire.v1 import annotations_pb2, error_pb2
from turnwire.v1.error_pb2 import ErrorReason

__all__ = ["GRPC_STATUS", "error_type", "grpc_status", "http_status", "reason_of_code"]

_CANCELLED = 1
_INVALID_ARGUMENT = 3
_NOT_FOUND = 5
_PERMISSION_DENIED = 7
_RESOURCE_EXHAUSTED = 8
_FAILED_PRECONDITION = 9
_ABORTED = 10
_OUT_OF_RANGE = 11
_UNIMPLEMENTED = 12
_INTERNAL = 13
_UNAVAILABLE = 14
_UNAUTHENTICATED = 16

GRPC_STATUS: Mapping[ErrorReason.ValueType, int] = MappingProxyType(
    {
        error_pb2.ERROR_REASON_UNSPECIFIED: _INTERNAL,
        error_pb2.ERROR_REASON_INVALID_JSON: _INVALID_ARGUMENT,
        error_pb2.ERROR_REASON_UNKNOWN_EVENT_TYPE: _INVALID_ARGUMENT,
        error_pb2.ERROR_REASON_MISSING_REQUIRED_PARAMETER: _INVALID_ARGUMENT,
        error_pb2.ERROR_REASON_INVALID_TYPE: _INVALID_ARGUMENT,
        error_pb2.ERROR_REASON_INVALID_VALUE: _INVALID_ARGUMENT,
        error_pb2.ERROR_REASON_UNKNOWN_PARAMETER: _INVALID_ARGUMENT,
        error_pb2.ERROR_REASON_UNSUPPORTED_PARAMETER: _INVALID_ARGUMENT,
        error_pb2.ERROR_REASON_UNSUPPORTED_VALUE: _INVALID_ARGUMENT,
        error_pb2.ERROR_REASON_INVALID_STREAM_ID: _INVALID_ARGUMENT,
        error_pb2.ERROR_REASON_WEBSOCKET_STREAM_LIMIT_REACHED: _RESOURCE_EXHAUSTED,
        error_pb2.ERROR_REASON_WEBSOCKET_CONNECTION_LIMIT_REACHED: _UNAVAILABLE,
        error_pb2.ERROR_REASON_PREVIOUS_RESPONSE_NOT_FOUND: _NOT_FOUND,
        error_pb2.ERROR_REASON_RESPONSE_NOT_FOUND: _NOT_FOUND,
        error_pb2.ERROR_REASON_ITEM_NOT_FOUND: _NOT_FOUND,
        error_pb2.ERROR_REASON_MODEL_NOT_FOUND: _NOT_FOUND,
        error_pb2.ERROR_REASON_CONTEXT_LENGTH_EXCEEDED: _OUT_OF_RANGE,
        error_pb2.ERROR_REASON_RATE_LIMIT_EXCEEDED: _RESOURCE_EXHAUSTED,
        error_pb2.ERROR_REASON_INSUFFICIENT_QUOTA: _RESOURCE_EXHAUSTED,
        error_pb2.ERROR_REASON_SERVER_IS_OVERLOADED: _UNAVAILABLE,
        error_pb2.ERROR_REASON_SERVER_ERROR: _INTERNAL,
        error_pb2.ERROR_REASON_INVALID_API_KEY: _UNAUTHENTICATED,
        error_pb2.ERROR_REASON_PERMISSION_DENIED: _PERMISSION_DENIED,
        error_pb2.ERROR_REASON_REQUEST_CANCELLED: _CANCELLED,
        error_pb2.ERROR_REASON_MESSAGE_TOO_LARGE: _RESOURCE_EXHAUSTED,
        error_pb2.ERROR_REASON_TRANSPORT_DISABLED: _UNIMPLEMENTED,
        error_pb2.ERROR_REASON_METHOD_NOT_ALLOWED: _UNIMPLEMENTED,
        error_pb2.ERROR_REASON_NOT_FOUND: _NOT_FOUND,
        error_pb2.ERROR_REASON_SLOW_CONSUMER: _RESOURCE_EXHAUSTED,
        error_pb2.ERROR_REASON_INVALID_PROMPT: _INVALID_ARGUMENT,
        error_pb2.ERROR_REASON_SESSION_NOT_FOUND: _NOT_FOUND,
        error_pb2.ERROR_REASON_RESUME_GAP: _OUT_OF_RANGE,
        error_pb2.ERROR_REASON_SESSION_TAKEN_OVER: _ABORTED,
        error_pb2.ERROR_REASON_STEERING_NOT_SUPPORTED: _UNIMPLEMENTED,
        error_pb2.ERROR_REASON_INVALID_INPUT: _INVALID_ARGUMENT,
        error_pb2.ERROR_REASON_TOO_MANY_PENDING_STEERS: _RESOURCE_EXHAUSTED,
        error_pb2.ERROR_REASON_RESPONSE_ALREADY_COMPLETED: _FAILED_PRECONDITION,
        error_pb2.ERROR_REASON_RESPONSE_NOT_ACTIVE: _FAILED_PRECONDITION,
        error_pb2.ERROR_REASON_SUCCESSOR_CREATION_FAILED: _FAILED_PRECONDITION,
        error_pb2.ERROR_REASON_CONVERSATION_NOT_FOUND: _NOT_FOUND,
        error_pb2.ERROR_REASON_CONVERSATION_LOCKED: _ABORTED,
    }
)
"""The status code for each reason that this version knows."""

_VALUES = error_pb2.ErrorReason.DESCRIPTOR.values_by_number
_PREFIX = "ERROR_REASON_"


def grpc_status(reason: ErrorReason.ValueType) -> int:
    """Return the number of the gRPC status code; INTERNAL for a reason of a newer version."""
    return GRPC_STATUS.get(reason, _INTERNAL)


def http_status(reason: ErrorReason.ValueType) -> int:
    """Return the HTTP status, for example 400."""
    return int(_VALUES[reason].GetOptions().Extensions[annotations_pb2.http_status])


def error_type(reason: ErrorReason.ValueType) -> str:
    """Return the public `type`, for example `invalid_request_error`."""
    return str(_VALUES[reason].GetOptions().Extensions[annotations_pb2.error_type])


def reason_of_code(code: str) -> ErrorReason.ValueType:
    """Return the reason with this public `code`; unspecified when there is none.

    Args:
        code: For example a `Fault`'s.
    """
    value = error_pb2.ErrorReason.DESCRIPTOR.values_by_name.get(_PREFIX + code.upper())
    return error_pb2.ErrorReason.ValueType(value.number if value else 0)
