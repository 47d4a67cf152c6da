"""From a gRPC status to the error that this library raises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import grpc
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from turnwire import errors
from turnwire._rejections import http_status, is_retryable, rejection, seconds

__all__ = ["stream_error", "unary_error"]

_DETAILS_KEY = "grpc-status-details-bin"
_ERROR_INFO_URL = "type.googleapis.com/google.rpc.ErrorInfo"

_STATUS_OF_CODE: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
}
# What was sent is at fault, or the server is none of ours: the same would happen again.
_FINAL = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


def unary_error(
    code: grpc.StatusCode, details: str | None, trailers: Iterable[tuple[str, str | bytes]]
) -> errors.TurnwireError:
    """Return the error for a unary call that ended with `code`."""
    reason, hints = _error_info(trailers)
    text = details or f"The call ended with {code.name}."
    if not reason:
        if code is grpc.StatusCode.UNAVAILABLE:
            return errors.ConnectionFailed(text)
        if code is grpc.StatusCode.CANCELLED:
            return errors.ConnectionLost("the call was cut")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.Timeout(text)
    status = http_status(reason) if reason else None
    return rejection(
        reason,
        text,
        status=status or _STATUS_OF_CODE.get(code, 500),
        param=hints.pop("param", None) or None,
        headers=hints,
    )


def stream_error(
    code: grpc.StatusCode, details: str | None, trailers: Iterable[tuple[str, str | bytes]]
) -> errors.TurnwireError:
    """Return the error for a stream that ended with `code`: what its running turns raise."""
    if code is grpc.StatusCode.OK:
        return errors.ConnectionLost("the server ended the stream")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return unary_error(code, details, trailers)
    reason, hints = _error_info(trailers)
    text = details or "no reason given"
    return errors.ConnectionLost(
        f"the stream ended with {code.name}: {text}",
        code=reason or None,
        retryable=code not in _FINAL or is_retryable(reason),
        retry_after_s=seconds(hints.get("retry-after")),
    )


def _error_info(trailers: Iterable[tuple[str, str | bytes]]) -> tuple[str, dict[str, str]]:
    """Return the reason's public code and the hints of the first `ErrorInfo`; empty if none."""
    for key, value in trailers:
        if key != _DETAILS_KEY or not isinstance(value, bytes):
            continue
        status, info = _STATUS(), _ERROR_INFO()
        try:
            status.ParseFromString(value)
            for detail in status.details:  # type: ignore[attr-defined]  # Made below.
                if detail.type_url == _ERROR_INFO_URL:
                    info.ParseFromString(detail.value)
                    return info.reason.lower(), dict(info.metadata)  # type: ignore[attr-defined]
        except DecodeError:
            break  # Not ours: the status itself still says enough.
    return "", {}


def _standard_details() -> tuple[type[Message], type[Message]]:
    # `google.rpc` is a package of its own and a client needs just these two messages. In a pool
    # apart, because the default one refuses a second definition of a name.
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="turnwire/details.proto", package="google.rpc", syntax="proto3"
    )
    file.dependency.append("google/protobuf/any.proto")
    status = file.message_type.add(name="Status")
    status.field.add(name="code", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    status.field.add(name="message", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    status.field.add(
        name="details",
        number=3,
        type=field.TYPE_MESSAGE,
        label=field.LABEL_REPEATED,
        type_name=".google.protobuf.Any",
    )
    info = file.message_type.add(name="ErrorInfo")
    info.field.add(name="reason", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    info.field.add(name="domain", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    info.field.add(
        name="metadata",
        number=3,
        type=field.TYPE_MESSAGE,
        label=field.LABEL_REPEATED,
        type_name=".google.rpc.ErrorInfo.MetadataEntry",
    )
    entry = info.nested_type.add(name="MetadataEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    find = pool.FindMessageTypeByName
    return (
        message_factory.GetMessageClass(find("google.rpc.Status")),
        message_factory.GetMessageClass(find("google.rpc.ErrorInfo")),
    )


_STATUS, _ERROR_INFO = _standard_details()
