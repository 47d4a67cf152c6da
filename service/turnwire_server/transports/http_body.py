"""Request bodies: read up to a limit, decompressed up to the same limit."""

from __future__ import annotations

import asyncio
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import zstandard
from aiohttp import web

from turnwire.v1.error_pb2 import (
    ERROR_REASON_INVALID_VALUE,
    ERROR_REASON_MESSAGE_TOO_LARGE,
    ERROR_REASON_UNSUPPORTED_VALUE,
    ErrorReason,
)
from turnwire_server.session.errors import Rejection
from turnwire_server.transports.http_errors import BODY_IS_BROKEN, RefusedError
from turnwire_server.transports.inflate import DataError, Encoding, inflate

__all__ = ["BODIES", "BodyReader"]

_ENCODINGS: Final[dict[str, Encoding]] = {
    "gzip": "gzip",
    "x-gzip": "gzip",
    "deflate": "deflate",
    "zstd": "zstd",
}
_WORKERS: Final = 2
"""Bodies that are decompressed at once; more wait."""


class BodyReader:
    """Reads the bodies of one application."""

    def __init__(self, limit: int) -> None:
        """Make a reader; `close` ends its threads.

        Args:
            limit: Most bytes of a body, before and after decompression.
        """
        self._limit = limit
        # Threads: 64 MiB take longer than the loop may stand still.
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="turnwire-inflate")

    async def close(self, app: web.Application | None = None) -> None:
        """End the threads. Bodies that still wait are given up."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def read(self, request: web.Request) -> bytes:
        """Return the body, decompressed.

        Args:
            request: The request; its runner must not decompress (`make_web_runner` sees to it).

        Raises:
            RefusedError: Too large, broken, not what `content-encoding` says, or an unknown
                encoding.
        """
        body = await self._raw(request)
        name = request.headers.get("content-encoding", "identity").strip().lower()
        if name in ("", "identity"):
            return body
        encoding = _ENCODINGS.get(name)
        if encoding is None:
            message = "The body may be compressed with gzip, deflate or zstd."
            raise _refused_encoding(ERROR_REASON_UNSUPPORTED_VALUE, message)
        is_cancelled = threading.Event()
        loop = asyncio.get_running_loop()
        try:
            inflated = await loop.run_in_executor(
                self._workers, inflate, encoding, body, self._limit, is_cancelled.is_set
            )
        except DataError as error:
            raise _refused_encoding(ERROR_REASON_INVALID_VALUE, str(error)) from None
        except (zlib.error, zstandard.ZstdError):
            message = f"The body is not {encoding}."
            raise _refused_encoding(ERROR_REASON_INVALID_VALUE, message) from None
        finally:
            # A thread cannot be cancelled; it looks here between two steps.
            is_cancelled.set()
        if inflated is None:
            raise self._too_large()
        return inflated

    async def _raw(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > self._limit:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > self._limit:
                    raise self._too_large()
                chunks.append(chunk)
        except web.RequestPayloadError:
            raise RefusedError(BODY_IS_BROKEN) from None
        return b"".join(chunks)

    def _too_large(self) -> RefusedError:
        message = f"The body is over the limit of {self._limit} bytes, counted after decompression."
        return RefusedError(Rejection(ERROR_REASON_MESSAGE_TOO_LARGE, message))


def _refused_encoding(reason: ErrorReason.ValueType, message: str) -> RefusedError:
    return RefusedError(Rejection(reason, message, "content-encoding"))


BODIES = web.AppKey("BODIES", BodyReader)
"""Where an application keeps its reader."""
