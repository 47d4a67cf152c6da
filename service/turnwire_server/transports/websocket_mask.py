"""Holds clients to masking (RFC 6455, 5.1), which aiohttp's reader does not ask of them.

And takes the frame of a usual event past that reader: through its queue an event wakes a task, and
goes through half a dozen calls that find nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

try:
    from aiohttp._websocket.helpers import websocket_mask as _unmask
except ImportError:  # An aiohttp that keeps it elsewhere: all frames go through its reader.
    _unmask = None  # type: ignore[assignment]

__all__ = ["FrameParser", "MaskGuard", "TextReceiver"]

TextReceiver = Callable[[str, int], bool]
"""Takes a text and its bytes; returns whether it wants more now."""

_FINAL = _MASKED = 0x80
_CONTROL = 0x08
_LENGTH_BYTES = {126: 2, 127: 8}
"""Bytes of the length that follow the header, by the header's own length."""
_MASK_BYTES = 4
_REFUSED_FRAME = b"\xf0\x80"
"""A frame with reserved bits: no reader takes it, so that a refusal goes the reader's own way."""
_FINAL_TEXT = b"\x81"
_PONG = b"\x8a\x80\0\0\0\0"
"""A frame that says nothing: it wakes who waits for the reader."""


class FrameParser(Protocol):
    """What aiohttp feeds with the bytes of an upgraded connection."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes; return whether nothing more is wanted, and what was not used."""

    def feed_eof(self) -> None:
        """Note that no bytes follow."""


class MaskGuard:
    """Passes frames on until one is not masked; that one becomes a protocol error."""

    __slots__ = (
        "_can_take",
        "_header",
        "_is_amid",
        "_left",
        "_length",
        "_missing",
        "_parser",
        "_refused",
        "max_text_bytes",
        "receiver",
    )

    def __init__(self, parser: FrameParser, *, can_take: bool = True) -> None:
        """Stand before a parser.

        Args:
            parser: What aiohttp would feed.
            can_take: Whether texts may go past it: not with an aiohttp that takes a client for
                gone when nothing was read from its own queue.
        """
        self._parser = parser
        self._can_take = can_take and _unmask is not None
        self.receiver: TextReceiver | None = None
        """Takes texts in the very call that received them. Whoever has read all that came before,
        and waits for more, sets it; with anything but a text that is a packet of its own it is
        unset again, because that comes through the reader. When it wants no more, or cannot say
        so, a pong comes through the reader."""
        self.max_text_bytes = 0
        """Longer texts are the reader's."""
        self._is_amid = False
        """Whether a message has begun that goes on in further frames."""
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
        if self.receiver is not None:
            taken = self._take(self.receiver, data)
            if taken:
                return False, b""
            self.receiver = None
            if taken is not None:
                return self._parser.feed_data(_PONG)
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
                first, second = data[position], data[position + 1]
                if not first & _CONTROL:
                    self._is_amid = not first & _FINAL
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

    def _take(self, receiver: TextReceiver, data: bytes | bytearray | memoryview) -> bool | None:
        """Hand over a packet that is one text; return what the receiver does, None for others."""
        if self._left or self._missing or self._header or self._is_amid:
            return None
        if not self._can_take or type(data) is not bytes or data[:1] != _FINAL_TEXT:
            return None
        if len(data) < 2 + _MASK_BYTES or not _MASKED <= data[1] <= _MASKED | 126:
            return None
        size, start = data[1] & ~_MASKED, 2
        if size == 126:
            size, start = int.from_bytes(data[2:4]), 4
        end = start + _MASK_BYTES
        if size > self.max_text_bytes or len(data) != end + size:
            return None
        payload = bytearray(data[end:])
        _unmask(data[start:end], payload)
        try:
            text = payload.decode()
        except UnicodeDecodeError:  # The reader finds it too, and says so.
            return None
        return receiver(text, size)
