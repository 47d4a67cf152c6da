"""Rejections as gRPC statuses: `google.rpc.Status` with `ErrorInfo`, and guarded handlers."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf import duration_pb2, message
from google.rpc import error_details_pb2, status_pb2

from turnwire._codec import DecodeError, verify
from turnwire.v1.error_pb2 import (
    ERROR_REASON_INVALID_VALUE,
    ERROR_REASON_SERVER_ERROR,
    ErrorBody,
    ErrorReason,
)
from turnwire_server.codec.status import grpc_status
from turnwire_server.runtime.reports import log_bug
from turnwire_server.session.errors import Rejection

__all__ = ["DOMAIN", "Context", "abort", "broken_json", "decode_or_abort", "guarded"]

logger = logging.getLogger("turnwire.transports")

DOMAIN = "turnwire.dev"
"""`ErrorInfo.domain` of every status."""

MAX_DETAIL_BYTES = 1024
"""Bound on each text in the trailers: some clients refuse trailers over 8 KiB."""

Context = grpc.aio.ServicerContext[Any, Any]
MessageT = TypeVar("MessageT", bound=message.Message)
RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def _cut(text: str) -> str:
    return text.encode()[:MAX_DETAIL_BYTES].decode(errors="ignore")


def _trailers(error: ErrorBody, code: grpc.StatusCode) -> tuple[tuple[str, bytes], ...]:
    info = error_details_pb2.ErrorInfo(
        reason=ErrorReason.Name(error.reason).removeprefix("ERROR_REASON_"),
        domain=DOMAIN,
        metadata={name: _cut(value) for name, value in error.headers.items()},
    )
    if error.HasField("param"):
        info.metadata["param"] = _cut(error.param)
    status = status_pb2.Status(code=code.value[0], message=_cut(error.message))
    status.details.add().Pack(info)
    if error.headers.get("retry-after", "").isdecimal():
        delay = duration_pb2.Duration(seconds=int(error.headers["retry-after"]))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return (("grpc-status-details-bin", status.SerializeToString()),)


async def abort(
    context: Context, error: Rejection | ErrorBody, code: grpc.StatusCode | None = None
) -> NoReturn:
    """End the call with the status of `error`.

    Args:
        context: The call.
        error: Why.
        code: The status code, None for the one that the table gives to the reason.

    Raises:
        grpc.aio.AbortError: always; it must leave the handler.
    """
    body = error.body() if isinstance(error, Rejection) else error
    code = code or _CODES[grpc_status(body.reason)]
    await context.abort(code, _cut(body.message), _trailers(body, code))
    raise AssertionError("abort returned")


async def decode_or_abort(context: Context, message_type: type[MessageT], data: bytes) -> MessageT:
    """Return the decoded request; end the call with INVALID_ARGUMENT when it is none."""
    try:
        decoded = message_type.FromString(data)
    except message.DecodeError:
        await abort(context, undecodable(message_type), grpc.StatusCode.INVALID_ARGUMENT)
    if (broken := broken_json(decoded)) is not None:
        await abort(context, broken)
    return decoded


def broken_json(decoded: message.Message) -> Rejection | None:
    """Return why a field of JSON text in `decoded` is none; to other peers it would go as JSON."""
    try:
        verify(decoded)
    except DecodeError as error:
        return Rejection(
            ERROR_REASON_INVALID_VALUE, f"'{error.path}' {error.problem}.", param=error.path
        )
    return None


def undecodable(message_type: type[message.Message]) -> Rejection:
    """Return the rejection of bytes that are no `message_type`."""
    return Rejection(
        ERROR_REASON_INVALID_VALUE,
        f"The bytes are no {message_type.DESCRIPTOR.full_name}.",
    )


def guarded(
    handler: Callable[[RequestT, Context], Awaitable[AnswerT]],
) -> Callable[[RequestT, Context], Awaitable[AnswerT]]:
    """Make a handler's bug INTERNAL with a request id; grpcio would send the exception's text."""

    async def handle(request: RequestT, context: Context) -> AnswerT:
        try:
            return await handler(request, context)
        except grpc.aio.BaseError:
            # An abort, or a call that is over already: not a bug.
            raise
        except Exception as bug:  # The outermost frame: everything that is a bug ends here.
            request_id = f"req_{uuid.uuid4().hex}"
            log_bug(logger, f"call failed request_id={request_id}", bug)
            await abort(
                context,
                Rejection(
                    ERROR_REASON_SERVER_ERROR,
                    f"The server made an error. Its log has the request id {request_id}.",
                ),
            )

    return handle
