"""Conversations in this process's memory, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict

from turnwire_server.ports.conversations import StoredConversation

__all__ = ["MemoryConversationStore"]

_RECORD_BYTES = 1024


def _size(record: StoredConversation) -> int:
    # Each item is in the list and in the context; the token ids are about as much again.
    return _RECORD_BYTES + 3 * sum(map(len, record.items))


class MemoryConversationStore:
    """`ports.ConversationStore` that lives and dies with the process. Never blocks."""

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        """Make an empty store.

        Args:
            max_bytes: Bytes of the conversations; beyond it those used least recently go.
        """
        self._max_bytes = max_bytes
        self._records: OrderedDict[str, StoredConversation] = OrderedDict()
        self._bytes = 0

    async def put(self, record: StoredConversation) -> None:
        """Keep `record`; others go when there is no room."""
        self._drop(record.id)
        self._records[record.id] = record
        self._bytes += _size(record)
        while self._bytes > self._max_bytes and len(self._records) > 1:
            self._drop(next(iter(self._records)))

    async def get(self, conversation_id: str, *, tenant: str) -> StoredConversation | None:
        """Return the record, or None."""
        record = self._records.get(conversation_id)
        if record is None or record.tenant != tenant:
            return None
        self._records.move_to_end(conversation_id)
        return record

    async def delete(self, conversation_id: str, *, tenant: str) -> bool:
        """Forget the record."""
        if await self.get(conversation_id, tenant=tenant) is None:
            return False
        self._drop(conversation_id)
        return True

    async def close(self) -> None:
        """Forget everything."""
        self._records.clear()
        self._bytes = 0

    def _drop(self, conversation_id: str) -> None:
        record = self._records.pop(conversation_id, None)
        if record is not None:
            self._bytes -= _size(record)
