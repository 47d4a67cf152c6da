"""Lists of bytes and token ids as one value of a binary column."""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable
from typing import Final

__all__ = ["ids_of", "item_key", "pack", "packed_ids", "unpack"]

_LENGTH: Final = struct.Struct("<I")


def pack(parts: Iterable[bytes]) -> bytes:
    """Return the parts one after the other, each behind its length (4 bytes, little-endian)."""
    pieces: list[bytes] = []
    for part in parts:
        pieces += (_LENGTH.pack(len(part)), part)
    return b"".join(pieces)


def unpack(packed: bytes) -> tuple[bytes, ...]:
    """Return what was packed.

    Raises:
        ValueError: It was not packed by `pack`.
    """
    parts: list[bytes] = []
    position = 0
    while position < len(packed):
        start = position + _LENGTH.size
        if start > len(packed):
            raise ValueError("a length is cut off")
        (length,) = _LENGTH.unpack_from(packed, position)
        position = start + length
        if position > len(packed):
            raise ValueError("a part is cut off")
        parts.append(packed[start:position])
    return tuple(parts)


def packed_ids(ids: array[int]) -> bytes:
    """Return token ids, 4 bytes each, little-endian."""
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids.tobytes()


def ids_of(packed: bytes) -> array[int]:
    """Return the token ids that were packed."""
    ids = array("I")
    ids.frombytes(packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def item_key(item_id: str) -> bytes:
    """Return what an item is found by: ids are of any length, and may hold any character."""
    return hashlib.blake2b(item_id.encode(), digest_size=16).digest()
