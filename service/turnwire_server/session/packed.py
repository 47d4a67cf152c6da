"""Items of a conversation that are compressed while nobody reads them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, overload

__all__ = ["PackableItems", "packable"]

_LEAST_PACKED: Final = 4096
"""Bytes from which on items are worth being compressed."""
_MOST_PACKED: Final = 1 << 18
"""Bytes up to which that takes no more than some milliseconds; more than that are mostly images."""
_LEVEL: Final = 1


class PackableItems(Sequence[bytes]):
    """Serialized items, which never change; compressed from `pack` on until they are read."""

    __slots__ = ("_count", "_items", "_packed", "_sizes")

    def __init__(self, items: tuple[bytes, ...]) -> None:
        """Hold `items`."""
        self._items = items
        self._count = len(items)
        self._sizes: tuple[int, ...] = ()
        self._packed = b""

    def pack(self) -> None:
        """Compress the items. Idempotent."""
        if not self._packed:
            self._sizes = tuple(map(len, self._items))
            self._packed = zlib.compress(b"".join(self._items), _LEVEL)
            self._items = ()

    def _read(self) -> tuple[bytes, ...]:
        if self._packed:
            data, start, items = zlib.decompress(self._packed), 0, []
            for size in self._sizes:
                items.append(data[start : start + size])
                start += size
            self._items = tuple(items)
            self._packed, self._sizes = b"", ()
        return self._items

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[bytes, ...]: ...
    def __getitem__(self, index: int | slice) -> bytes | tuple[bytes, ...]:
        return self._read()[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._read())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackableItems):
            return self._read() == other._read()
        return self._read() == other

    __hash__ = None  # type: ignore[assignment]  # as long as they are; compared by content


def packable(items: Iterable[bytes]) -> Sequence[bytes]:
    """Return `items` so that they can be compressed, if their length is worth it."""
    own = tuple(items)
    return PackableItems(own) if _LEAST_PACKED <= sum(map(len, own)) <= _MOST_PACKED else own
