"""The entries of a `ServerFrame`: protobuf's framing of events, which joined are the frame."""

from __future__ import annotations

__all__ = ["entry_head", "frame_entry", "varint"]

_EVENTS_TAG = b"\x0a"
"""`ServerFrame.events`: field 1, length-delimited."""

_TWO_BYTES = 1 << 14
"""The least number that two bytes of a varint do not hold."""


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SHORT_HEADS = tuple(_EVENTS_TAG + varint(size) for size in range(1024))


def entry_head(size: int) -> bytes:
    """Return what stands before a serialized `ServerEvent` of `size` bytes in a frame."""
    if size < len(_SHORT_HEADS):
        return _SHORT_HEADS[size]
    if size < _TWO_BYTES:  # as most events that show a whole response
        return _EVENTS_TAG + bytes((size & 0x7F | 0x80, size >> 7))
    return _EVENTS_TAG + varint(size)


def frame_entry(event: bytes) -> bytes:
    """Return a serialized `ServerEvent` as one entry of a serialized `ServerFrame`.

    Entries joined in order are the frame.
    """
    return entry_head(len(event)) + event
