"""Which records have an item, by the item's id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turnwire.v1 import item_pb2

__all__ = ["ENTRY_BYTES", "ItemIndex", "id_of", "newest_with_id"]

ENTRY_BYTES = 200
"""About what an entry takes: the key, the list and what points to them."""


class ItemIndex:
    """Item id -> ids of the records that have it, for each tenant. As large as its records."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str], list[str]] = {}

    def add(self, owner: str, tenant: str, item_ids: Iterable[str]) -> None:
        """Note that a record has items; it is their newest owner now."""
        for item_id in item_ids:
            if item_id:
                self._owners.setdefault((tenant, item_id), []).append(owner)

    def remove(self, owner: str, tenant: str, item_ids: Iterable[str]) -> None:
        """Forget items of a record that were added."""
        for item_id in item_ids:
            owners = self._owners.get((tenant, item_id))
            if owners is None or owner not in owners:
                continue
            owners.remove(owner)
            if not owners:
                del self._owners[tenant, item_id]

    def owners(self, item_id: str, tenant: str) -> Sequence[str]:
        """Return the ids of the records that have an item, newest first."""
        return self._owners.get((tenant, item_id), [])[::-1]

    def clear(self) -> None:
        """Forget everything."""
        self._owners.clear()


def id_of(item: item_pb2.Item) -> str:
    """Return the id of an item."""
    return str(getattr(item, item.WhichOneof("item") or "").id)


def newest_with_id(encoded: Sequence[bytes], item_id: str) -> item_pb2.Item | None:
    """Return the last of serialized items that has an id."""
    needle = item_id.encode()
    for one in reversed(encoded):
        if needle in one:  # much faster than to parse what cannot be it
            item = item_pb2.Item.FromString(one)
            if id_of(item) == item_id:
                return item
    return None
