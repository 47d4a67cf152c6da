"""Conversations in this process's memory, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from turnwire.v1 import item_pb2
from turnwire_server.adapters.stores.item_index import (
    ENTRY_BYTES,
    ItemIndex,
    id_of,
    newest_with_id,
)
from turnwire_server.ports.conversations import ConversationConflict, StoredConversation

__all__ = ["MemoryConversationStore"]

_RECORD_BYTES = 1024


def _size(record: StoredConversation) -> int:
    # Each item is in the list and in the context, and may be once more among those that no
    # screen has seen; the token ids and the ids of the items are about as much again.
    items = sum(map(len, record.items)) + ENTRY_BYTES * len(record.items)
    return _RECORD_BYTES + 3 * items


class MemoryConversationStore:
    """`ports.ConversationStore` that lives and dies with the process. Never blocks."""

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        """Make an empty store.

        Args:
            max_bytes: Bytes of the conversations; beyond it those used least recently go.
        """
        self._max_bytes = max_bytes
        self._records: OrderedDict[str, StoredConversation] = OrderedDict()
        self._items = ItemIndex()
        self._item_ids: dict[str, tuple[str, ...]] = {}
        """Conversation id -> ids of its items."""
        self._bytes = 0

    async def put(self, record: StoredConversation) -> None:
        """Keep `record`; others go when there is no room."""
        known = self._records.get(record.id)
        if record.version != (0 if known is None else known.version):
            raise ConversationConflict
        record = replace(record, version=record.version + 1)
        item_ids = self._item_ids.get(record.id, ())
        # Mostly the same with more behind it: only what is new is read.
        if known is None or record.items[: len(known.items)] != known.items:
            known, item_ids = None, ()
        new = record.items[len(known.items) if known is not None else 0 :]
        self._drop(record.id)
        self._records[record.id] = record
        item_ids += tuple(id_of(item_pb2.Item.FromString(encoded)) for encoded in new)
        self._item_ids[record.id] = item_ids
        self._items.add(record.id, record.tenant, item_ids)
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

    async def find_item(self, item_id: str, *, tenant: str) -> item_pb2.Item | None:
        """Return the item of the conversation that had it last, or None."""
        for conversation_id in self._items.owners(item_id, tenant):
            return newest_with_id(self._records[conversation_id].items, item_id)
        return None

    async def delete(self, conversation_id: str, *, tenant: str) -> bool:
        """Forget the record."""
        if await self.get(conversation_id, tenant=tenant) is None:
            return False
        self._drop(conversation_id)
        return True

    async def close(self) -> None:
        """Forget everything."""
        self._records.clear()
        self._items.clear()
        self._item_ids.clear()
        self._bytes = 0

    def _drop(self, conversation_id: str) -> None:
        record = self._records.pop(conversation_id, None)
        if record is not None:
            self._bytes -= _size(record)
            self._items.remove(record.id, record.tenant, self._item_ids.pop(record.id))
