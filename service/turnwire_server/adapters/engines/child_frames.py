"""Messages between an engine and its child process: length, then `marshal` data.

Both ends run the same interpreter, which is what `marshal` asks for; it is the fastest codec
of the standard library for lists of integers.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterator
from typing import Any, Final

__all__ = ["FrameReader", "pack_frame"]

_LENGTH: Final = struct.Struct("<I")


def pack_frame(*message: object) -> bytes:
    """Return the bytes of `message`: its kind, a str, and plain values."""
    data = marshal.dumps(message)  # type: ignore[arg-type]  # plain values only
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        """Take `data` and yield the messages that are complete. Consume all of them."""
        buffer = self._buffer
        buffer += data
        position = 0
        try:
            while len(buffer) - position >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer, position)
                end = position + _LENGTH.size + length
                if len(buffer) < end:
                    break
                message = marshal.loads(memoryview(buffer)[position + _LENGTH.size : end])
                position = end
                yield message
        finally:
            del buffer[:position]
