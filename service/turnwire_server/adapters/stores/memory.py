"""A response store in this process's memory, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from turnwire.v1 import item_pb2, response_pb2
from turnwire_server.adapters.stores.item_index import ENTRY_BYTES, ItemIndex, newest_with_id
from turnwire_server.adapters.stores.orphans import failed_response
from turnwire_server.ports.store import IdempotencyKeyTaken, StoredResponse

__all__ = ["MemoryResponseStore", "MemoryStoreSettings"]


@dataclass(frozen=True, slots=True)
class MemoryStoreSettings:
    """Bounds of the store."""

    max_bytes: int = 1 << 30
    """Bytes of responses and of their own items; beyond it the oldest are forgotten."""


def _size(record: StoredResponse) -> int:
    # A conversation shares all but its newest nodes with its parent's: count what is new, twice
    # for the input (once in the list, once in the conversation), and the ids as they are shared.
    own = sum(map(len, record.input_items))
    named = sum(map(len, record.item_ids)) + ENTRY_BYTES * len(record.item_ids)
    return len(record.response) * 2 + own * 2 + named + 512


class MemoryResponseStore:
    """`ports.ResponseStore` that lives and dies with the process. Never blocks."""

    def __init__(self, settings: MemoryStoreSettings, *, wall: Callable[[], int]) -> None:
        """Make an empty store.

        Args:
            settings: Its bounds.
            wall: Returns Unix seconds, for expiry.
        """
        self._settings = settings
        self._wall = wall
        self._records: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items = ItemIndex()
        self._by_key: dict[tuple[str, str], str] = {}
        """Tenant and idempotency key -> response id."""
        self._bytes = 0
        self._dropped = {"expired": 0, "evicted": 0}

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many records were forgotten, by reason; see `ports.CountsDropped`."""
        return self._dropped

    async def put(self, record: StoredResponse) -> None:
        """Keep `record`; the oldest go when there is no room."""
        key = record.idempotency_key
        if key is not None:
            holder = await self.find_by_key(record.tenant, key)
            if holder is not None and holder.response_id != record.response_id:
                raise IdempotencyKeyTaken
        self._drop(record.response_id)
        self._records[record.response_id] = record
        if key is not None:
            self._by_key[record.tenant, key] = record.response_id
        self._items.add(record.response_id, record.tenant, record.item_ids)
        self._bytes += _size(record)
        while self._bytes > self._settings.max_bytes and len(self._records) > 1:
            self._drop(next(iter(self._records)))
            self._dropped["evicted"] += 1

    async def get(self, response_id: str, *, tenant: str) -> StoredResponse | None:
        """Return the record, or None."""
        record = self._records.get(response_id)
        if record is None or record.tenant != tenant:
            return None
        if record.expires_at <= self._wall():
            self._drop(response_id)
            self._dropped["expired"] += 1
            return None
        return record

    async def find_by_key(self, tenant: str, idempotency_key: str) -> StoredResponse | None:
        """Return the response that has the key, or None."""
        response_id = self._by_key.get((tenant, idempotency_key))
        return None if response_id is None else await self.get(response_id, tenant=tenant)

    async def find_item(self, item_id: str, *, tenant: str) -> item_pb2.Item | None:
        """Return the item of the newest response that has it, or None."""
        for response_id in self._items.owners(item_id, tenant):
            record = await self.get(response_id, tenant=tenant)
            if record is not None:
                output = response_pb2.Response.FromString(record.response).output
                own = [*record.input_items, *(item.SerializeToString() for item in output)]
                return newest_with_id(own, item_id)
        return None

    async def delete(self, response_id: str, *, tenant: str) -> bool:
        """Forget the record."""
        if await self.get(response_id, tenant=tenant) is None:
            return False
        self._drop(response_id)
        return True

    async def fail_orphans(self, owners: Collection[str]) -> int:
        """Fail what the instances ran."""
        lost = [record for record in self._records.values() if record.owner in owners]
        lost = [record for record in lost if record.owner and not record.is_over]
        for record in lost:
            response = failed_response(record.response)
            await self.put(replace(record, response=response, status="failed", owner=""))
        return len(lost)

    async def close(self) -> None:
        """Forget everything."""
        self._records.clear()
        self._items.clear()
        self._by_key.clear()
        self._bytes = 0

    def _drop(self, response_id: str) -> None:
        record = self._records.pop(response_id, None)
        if record is not None:
            self._bytes -= _size(record)
            self._items.remove(response_id, record.tenant, record.item_ids)
            if record.idempotency_key is not None:
                del self._by_key[record.tenant, record.idempotency_key]
