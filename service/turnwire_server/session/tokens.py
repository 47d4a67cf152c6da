"""Token ids as immutable views over one growing buffer.

A conversation's ids only ever grow at the end, and every turn keeps a view of a
longer prefix of the same buffer. Extending the newest view appends in place, so a
turn costs what is new; extending an older view (a fork) copies once. While nobody needs them, the
ids of a buffer can be compressed.
"""

from __future__ import annotations

import weakref
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, overload

__all__ = ["IdBuffer", "TokenIds"]

_LEAST_PACKED: Final = 1024
"""Ids from which on a buffer is worth being compressed."""
_MOST_PACKED: Final = 1 << 18
"""Ids up to which that takes no more than some milliseconds."""
_LEVEL: Final = 1


class IdBuffer:
    """A growing buffer of ids, compressed while it rests."""

    __slots__ = ("__weakref__", "_ids", "_packed")

    def __init__(self, ids: array[int]) -> None:
        """Take `ids`, which belong to the buffer from now on."""
        self._ids = ids
        self._packed = b""

    @property
    def ids(self) -> array[int]:
        """The ids, decompressed if they were not."""
        if self._packed:
            self._ids.frombytes(zlib.decompress(self._packed))
            self._packed = b""
        return self._ids

    def pack(self) -> None:
        """Compress the ids, if that is worth it, until they are needed."""
        if _LEAST_PACKED <= len(self._ids) <= _MOST_PACKED:  # none are there while it is compressed
            self._packed = zlib.compress(self._ids.tobytes(), _LEVEL)
            self._ids = array("I")


class TokenIds(Sequence[int]):
    """An immutable sequence of token ids, 4 bytes each, that shares structure."""

    __slots__ = ("_buffer", "_length")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        """Copy `ids` (each 0 <= id < 2**32) into a buffer of its own."""
        own = array("I", ids)
        self._buffer = IdBuffer(own)
        self._length = len(own)

    def extended(self, ids: Iterable[int]) -> TokenIds:
        """Return these ids followed by `ids`; this view stays as it is."""
        buffer = self._buffer
        known = buffer.ids
        if len(known) != self._length:  # a longer view exists: this is a fork
            known = known[: self._length]
            buffer = IdBuffer(known)
        known.extend(ids)
        view = TokenIds.__new__(TokenIds)
        view._buffer, view._length = buffer, len(known)
        return view

    def pack(self) -> None:
        """Compress the buffer until any view of it is used again."""
        self._buffer.pack()

    def shares_buffer_with(self, other: TokenIds) -> bool:
        """Return whether the shorter of the two is a prefix of the longer by construction."""
        return self._buffer is other._buffer

    def buffer_reference(self) -> weakref.ref[IdBuffer]:
        """Return a reference to the buffer: the same object for every view of it.

        A cache that holds it can tell later, by identity, that a view grew from one it has
        seen, and keeps no ids alive.
        """
        return weakref.ref(self._buffer)

    def as_array(self, start: int = 0, stop: int | None = None) -> array[int]:
        """Return a flat copy of `ids[start:stop]`."""
        if start >= 0 and stop is None:  # as most ask for it
            return self._buffer.ids[start : self._length]
        return self[start:stop]

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> array[int]: ...
    def __getitem__(self, index: int | slice) -> int | array[int]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            # A stop of -1 means "down to the first"; in a slice it would mean the last.
            return self._buffer.ids[start : stop if stop >= 0 else None : step]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._buffer.ids[index if index >= 0 else index + self._length]

    def __iter__(self) -> Iterator[int]:
        return iter(self.as_array())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenIds):
            return NotImplemented
        if self._length != other._length:
            return False
        return self._buffer is other._buffer or self.as_array() == other.as_array()

    __hash__ = None  # type: ignore[assignment]  # compared by content; too long to hash

    def __repr__(self) -> str:
        return f"TokenIds(<{self._length} ids>)"
