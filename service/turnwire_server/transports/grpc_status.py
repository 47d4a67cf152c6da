"""Rejections as gRPC statuses: `google.rpc.Status` with `ErrorInfo`, and guarded handlers."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, NoReturn, Protocol, TypeVar

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

__all__ = [
    "DOMAIN",
    "Context",
    "Leaving",
    "Receiver",
    "abort",
    "broken_json",
    "call_when_left",
    "decode_or_abort",
    "guarded",
    "message_reader",
]

logger = logging.getLogger("turnwire.transports")

DOMAIN = "turnwire.dev"
"""`ErrorInfo.domain` of every status."""

MAX_DETAIL_BYTES = 1024
"""Bound on each text in the trailers: some clients refuse trailers over 8 KiB."""

Leaving = Literal["cancelled", "lost"]
"""How a client left a call: it said so, or its connection is gone."""

Receiver = Callable[[bytes], bool]
"""Takes a message of a call; returns whether it wants the next one now."""

MessageT = TypeVar("MessageT", bound=message.Message)
RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class Context(Protocol):
    """A call as handlers see it: the part of `grpc.aio.ServicerContext` that they use.

    Both back ends have it: grpcio's own class, and `grpclib.call.Call`.
    """

    def invocation_metadata(self) -> Any:
        """Return pairs of names and values."""
        ...

    async def read(self) -> Any:
        """Return the next message as bytes, `grpc.aio.EOF` at the end."""
        ...

    async def write(self, data: Any, /) -> None:
        """Write a message; wait for the flow control. `grpc.aio.BaseError`: the call is over."""
        ...

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        """End the call. `grpc.aio.AbortError`: always; it must leave the handler."""
        ...


def call_when_left(context: Context, callback: Callable[[Leaving], None]) -> bool:
    """Have `callback` called as soon as the client is seen to be gone.

    It is called in the very iteration of the loop in which a reset or the end of the connection
    arrives, before the handler is cancelled.

    Returns:
        Whether the back end can tell. grpcio cannot: there the handler is cancelled, for whatever
        reason, and a read ends.
    """
    register: Callable[[Callable[[Leaving], None]], None] | None = getattr(
        context, "call_when_left", None
    )
    if register is None:
        return False
    register(callback)
    return True


def message_reader(context: Context) -> Callable[[Receiver], Awaitable[bool]]:
    """Return what hands the messages of a call to a receiver, in order.

    It ends with True when the receiver wants no more for now, and can be called again; with False
    at the end of what the client sends. It raises what `read` raises, and what the receiver does.
    Where the back end can do it, a message is handed over while the task that called it waits, in
    the very call that received it; grpcio wakes the task for each.
    """
    own: Callable[[Receiver], Awaitable[bool]] | None = getattr(context, "read_into", None)
    return own or partial(_read_into, context)


async def _read_into(context: Context, receiver: Receiver) -> bool:
    while (data := await context.read()) is not grpc.aio.EOF:
        wants_more = receiver(data)
        del data  # Who waits for the next one holds nothing of the last.
        if not wants_more:
            return True
    return False


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
