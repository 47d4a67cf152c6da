"""A servicer context that records, for asyncio servicers without a server."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import grpc
from google.rpc import error_details_pb2, status_pb2

__all__ = ["RecordingContext", "error_info"]


def error_info(trailers: Any) -> error_details_pb2.ErrorInfo:
    """Return the `ErrorInfo` in a call's trailing metadata."""
    status = status_pb2.Status()
    for key, value in trailers or ():
        if key == "grpc-status-details-bin":
            status.ParseFromString(value)
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info):
            return info
    raise AssertionError("the status has no ErrorInfo")


class RecordingContext:
    """The part of `grpc.aio.ServicerContext` that our servicers use.

    What the client sends is put in by `client_sends` and `client_half_closes`; a read without
    either waits, as it does on the wire.
    """

    def __init__(self, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self.written: list[bytes] = []
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.trailers: Any = ()
        self.fail_writes = False
        self._metadata = metadata
        self._incoming: asyncio.Queue[Any] = asyncio.Queue()

    def client_sends(self, data: bytes) -> None:
        self._incoming.put_nowait(data)

    def client_half_closes(self) -> None:
        self._incoming.put_nowait(grpc.aio.EOF)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    async def read(self) -> Any:
        return await self._incoming.get()

    async def write(self, message: bytes) -> None:
        if self.fail_writes:
            raise grpc.aio.InternalError("the call is over")
        self.written.append(message)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        self.code = code
        self.details = details
        self.trailers = trailing_metadata
        raise grpc.aio.AbortError("Locally aborted.")
