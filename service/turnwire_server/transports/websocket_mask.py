"""Holds clients to masking (RFC 6455, 5.1), which aiohttp's reader does not ask of them."""

from __future__ import annotations

from typing import Protocol

__all__ = ["FrameParser", "MaskGuard"]

_MASKED = 0x80
_LENGTH_BYTES = {126: 2, 127: 8}
"""Bytes of the length that follow the header, by the header's own length."""
_MASK_BYTES = 4
_REFUSED_FRAME = b"\xf0\x80"
"""A frame with reserved bits: no reader takes it, so that a refusal goes the reader's own way."""


class FrameParser(Protocol):
    """What aiohttp feeds with the bytes of an upgraded connection."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes; return whether nothing more is wanted, and what was not used."""

    def feed_eof(self) -> None:
        """Note that no bytes follow."""


class MaskGuard:
    """Passes frames on until one is not masked; that one becomes a protocol error."""

    __slots__ = ("_header", "_left", "_length", "_missing", "_parser", "_refused")

    def __init__(self, parser: FrameParser) -> None:
        self._parser = parser
        self._header = b""
        self._left = 0
        """Bytes of the current frame that are not looked at: its mask and its payload."""
        self._missing = 0
        """Bytes of the current frame's length that are still to come."""
        self._length = 0
        self._refused = False

    def feed_data(self, data: bytes | bytearray | memoryview) -> tuple[bool, bytes]:
        """Pass on what is masked."""
        if self._refused:
            return True, b""
        # A header is held back until it is whole, else there would be no frame to replace.
        data, self._header = self._header + bytes(data), b""
        position, end = 0, len(data)
        while position < end:
            if self._left:
                step = min(self._left, end - position)
                self._left -= step
                position += step
            elif self._missing:
                self._length = self._length << 8 | data[position]
                self._missing -= 1
                position += 1
                if not self._missing:
                    self._left = self._length + _MASK_BYTES
            elif end - position < 2:
                data, self._header = data[:position], data[position:]
                break
            else:
                second = data[position + 1]
                if not second & _MASKED:
                    self._refused = True
                    return self._parser.feed_data(data[:position] + _REFUSED_FRAME)
                position += 2
                size = second & ~_MASKED
                self._length, self._missing = 0, _LENGTH_BYTES.get(size, 0)
                if not self._missing:
                    self._left = size + _MASK_BYTES
        return self._parser.feed_data(data)

    def feed_eof(self) -> None:
        """Pass it on."""
        self._parser.feed_eof()
