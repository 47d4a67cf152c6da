"""Decompression that costs no more than what goes in and what comes out, and can be given up."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import Final, Literal

import zstandard

__all__ = ["MAX_PARTS", "DataError", "Encoding", "inflate"]

Encoding = Literal["gzip", "deflate", "zstd"]

MAX_PARTS: Final = 4096
"""Gzip members or zstd frames of one body. Each costs, however empty it is."""
_STEP_BYTES: Final = 1_048_576
"""Most that is decompressed at a time: what a bomb can make us hold beyond the limit."""
_SLICE_BYTES: Final = 65_536
"""Most that zlib is given at a time: what it copies when a member ends within it."""
_MAX_ZSTD_WINDOW_BYTES: Final = 134_217_728
"""Largest zstd window, the most a well-behaved encoder asks for by default (level 22)."""
_MAX_ZSTD_BLOCKS: Final = 262_144
"""Blocks of one body; 64 MiB of full blocks are 512."""
_SKIPPABLE: Final = 0x184D2A50
"""Magic number of a skippable zstd frame, without its lowest four bits."""
_RLE_BLOCK, _RESERVED_BLOCK = 1, 3


class DataError(ValueError):
    """The data cannot be used. `str()` is a sentence for the client without any of the data."""


class _GivenUpError(Exception):
    """Nobody waits for the result."""


def inflate(
    encoding: Encoding, body: bytes, limit: int, is_cancelled: Callable[[], bool]
) -> bytes | None:
    """Return the decompressed body, None when it is over the limit.

    Args:
        encoding: What `body` is; raw deflate is taken for deflate too.
        body: The whole compressed body.
        limit: Most bytes to return.
        is_cancelled: Whether nobody waits for the result any more; asked between two steps.

    Raises:
        DataError: Truncated, or of too many parts.
        zlib.error: Not gzip or deflate.
        zstandard.ZstdError: Not zstd.
    """
    output = _Output(limit, is_cancelled)
    try:
        if encoding == "zstd":
            _unzstd(body, output)
        else:
            _unzlib(encoding, memoryview(body), output)
    except _GivenUpError:
        return None
    return output.joined()


class _Output:
    """What was decompressed so far."""

    def __init__(self, limit: int, is_cancelled: Callable[[], bool]) -> None:
        self._chunks: list[bytes] = []
        self._left = limit
        self._is_cancelled = is_cancelled

    def add(self, chunk: bytes) -> None:
        """Keep a chunk, unless it is too much or for nobody."""
        self._left -= len(chunk)
        if self._left < 0:
            raise _GivenUpError
        self._chunks.append(chunk)
        self.check()

    def check(self) -> None:
        """Stop when nobody waits any more."""
        if self._is_cancelled():
            raise _GivenUpError

    def joined(self) -> bytes:
        """Return everything."""
        return b"".join(self._chunks)


def _truncated(encoding: Encoding) -> DataError:
    return DataError(f"The body is truncated: it stops before its {encoding} data ends.")


def _too_many(what: str) -> DataError:
    return DataError(f"The body has too many {what}.")


def _unzlib(encoding: Encoding, body: memoryview, output: _Output) -> None:
    """Inflate gzip, or deflate with or without the zlib header that it should have."""
    wbits = 16 + zlib.MAX_WBITS
    if encoding == "deflate":
        has_header = bool(body) and body[0] & 0x0F == zlib.DEFLATED
        wbits = zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
    position = parts = 0
    while position < len(body):
        parts += 1
        if parts > MAX_PARTS:
            raise _too_many(f"{encoding} members")
        position = _member(encoding, body, position, zlib.decompressobj(wbits), output)


def _member(
    encoding: Encoding, body: memoryview, position: int, inflater: zlib._Decompress, output: _Output
) -> int:
    """Inflate one member; return where it ends.

    Everything that zlib did not use it copies, so it is given slices.
    """
    while not inflater.eof:
        piece = body[position : position + _SLICE_BYTES]
        chunk = inflater.decompress(piece, _STEP_BYTES)
        if not piece and not chunk:
            raise _truncated(encoding)
        position += len(piece) - len(inflater.unconsumed_tail) - len(inflater.unused_data)
        output.add(chunk)
    return position


def _unzstd(body: bytes, output: _Output) -> None:
    _check_frames(body, output)
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW_BYTES)
    with decompressor.stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
        while chunk := reader.read(_STEP_BYTES):
            output.add(chunk)


def _check_frames(body: bytes, output: _Output) -> None:
    """Check that the body ends where its last frame does (RFC 8878, 3.1).

    The library's reader does not tell whether the data ended or broke off.
    """
    position = parts = blocks = 0
    while position < len(body):
        parts += 1
        if parts > MAX_PARTS:
            raise _too_many("zstd frames")
        output.check()
        head = body[position : position + 8]
        if int.from_bytes(head[:4], "little") & ~0xF == _SKIPPABLE:
            position += 8 + int.from_bytes(head[4:8], "little")
            if len(head) < 8:
                raise _truncated("zstd")
            continue
        # The longest header has 18 bytes.
        head = body[position : position + 18]
        try:
            parameters = zstandard.get_frame_parameters(head)
        except zstandard.ZstdError:
            if len(head) < 18 and head[:4] == zstandard.FRAME_HEADER[: len(head[:4])]:
                raise _truncated("zstd") from None
            raise
        position += zstandard.frame_header_size(head)
        is_last = False
        while not is_last:
            blocks += 1
            if blocks > _MAX_ZSTD_BLOCKS:
                raise _too_many("zstd blocks")
            if position + 3 > len(body):
                raise _truncated("zstd")
            header = int.from_bytes(body[position : position + 3], "little")
            is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            if kind == _RESERVED_BLOCK:
                raise zstandard.ZstdError("reserved block type")
            position += 3 + (1 if kind == _RLE_BLOCK else size)
        position += 4 if parameters.has_checksum else 0
    if position > len(body):
        raise _truncated("zstd")
