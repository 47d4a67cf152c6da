"""Memory of tools already checked: clients send the same tools with every turn."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256

__all__ = ["ToolsMemo"]


class ToolsMemo:
    """What tools became, by the digest of their JSON; the least recently used is forgotten.

    A digest that no client can aim at is needed here: the memory is shared by all of them.
    """

    def __init__(self, *, max_entries: int = 256, max_bytes: int = 16_777_216) -> None:
        """Make an empty memory.

        Args:
            max_entries: Most sets of tools kept.
            max_bytes: Most bytes of decoded tools kept.
        """
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._decoded: OrderedDict[bytes, bytes] = OrderedDict()
        self._seen_again: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._decoded)

    @staticmethod
    def key(tools: bytes) -> bytes:
        """Return the key of tools, given their JSON text."""
        return sha256(tools).digest()

    def get(self, key: bytes) -> bytes | None:
        """Return what the tools became, a serialized `ResponseCreate`, or None."""
        decoded = self._decoded.get(key)
        if decoded is not None:
            self._decoded.move_to_end(key)
        return decoded

    def is_second(self, key: bytes) -> bool:
        """Return whether known tools have come for the second time; True once for each."""
        if key in self._seen_again:
            return False
        self._seen_again.add(key)
        return True

    def put(self, key: bytes, decoded: bytes) -> None:
        """Remember what tools became. They were not known before."""
        if len(decoded) > self._max_bytes:
            return
        self._decoded[key] = decoded
        self._bytes += len(decoded)
        while len(self._decoded) > self._max_entries or self._bytes > self._max_bytes:
            key, forgotten = self._decoded.popitem(last=False)
            self._seen_again.discard(key)
            self._bytes -= len(forgotten)
