"""Request bodies: read up to a limit, decompressed up to the same limit."""

from __future__ import annotations

import asyncio
import io
import zlib

import zstandard
from aiohttp import web

from turnwire.v1.error_pb2 import (
    ERROR_REASON_INVALID_VALUE,
    ERROR_REASON_MESSAGE_TOO_LARGE,
    ERROR_REASON_UNSUPPORTED_VALUE,
)
from turnwire_server.session.errors import Rejection
from turnwire_server.transports.http_errors import RefusedError

__all__ = ["read_body"]

STEP_BYTES = 1_048_576
"""Most that is decompressed at a time: what a bomb can make us hold beyond the limit."""
MAX_ZSTD_WINDOW_BYTES = 134_217_728
"""Largest zstd window, the most a well-behaved encoder asks for by default (level 22)."""


async def read_body(request: web.Request, limit: int) -> bytes:
    """Return the body, decompressed.

    Args:
        request: The request; its runner must not decompress (`make_web_runner` sees to it).
        limit: Most bytes, before and after decompression.

    Raises:
        RefusedError: Too large, not what `content-encoding` says, or an unknown encoding.
    """
    body = await _read(request, limit)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate", "zstd"):
        message = "The body may be compressed with gzip, deflate or zstd."
        raise RefusedError(Rejection(ERROR_REASON_UNSUPPORTED_VALUE, message, "content-encoding"))
    try:
        # A thread: 64 MiB take longer than the loop may stand still.
        return await asyncio.to_thread(_decompress, encoding, body, limit)
    except (zlib.error, zstandard.ZstdError) as error:
        message = f"The body is not {encoding}."
        raise RefusedError(
            Rejection(ERROR_REASON_INVALID_VALUE, message, "content-encoding")
        ) from error


def _too_large(limit: int) -> RefusedError:
    message = f"The body is over the limit of {limit} bytes, counted after decompression."
    return RefusedError(Rejection(ERROR_REASON_MESSAGE_TOO_LARGE, message))


async def _read(request: web.Request, limit: int) -> bytes:
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def _decompress(encoding: str, body: bytes, limit: int) -> bytes:
    return _zstd(body, limit) if encoding == "zstd" else _zlib(encoding, body, limit)


def _zlib(encoding: str, body: bytes, limit: int) -> bytes:
    """Inflate gzip, or deflate with or without the zlib header that it should have."""
    if encoding == "deflate":
        wbits = zlib.MAX_WBITS if body[:1] and body[0] & 0x0F == zlib.DEFLATED else -zlib.MAX_WBITS
    else:
        wbits = 16 + zlib.MAX_WBITS
    chunks: list[bytes] = []
    size = 0
    while body:
        inflater = zlib.decompressobj(wbits)
        while not inflater.eof:
            chunk = inflater.decompress(body, STEP_BYTES)
            if not chunk and not inflater.unconsumed_tail and not inflater.eof:
                raise zlib.error("truncated")
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
            body = inflater.unconsumed_tail
        body = inflater.unused_data
    return b"".join(chunks)


def _zstd(body: bytes, limit: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
    chunks: list[bytes] = []
    size = 0
    with decompressor.stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
        while chunk := reader.read(STEP_BYTES):
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
    return b"".join(chunks)
