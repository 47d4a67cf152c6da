"""Pages of items, as the public lists have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwire.v1 import error_pb2, item_pb2
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.listed import listed_item

__all__ = ["Page", "PageRequest", "item_id", "page_of"]

_MAX_LIMIT = 100
_DEFAULT_LIMIT = 20


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which part of a list is wanted."""

    after: str = ""
    """Id of the item to list after, "" for the beginning."""
    limit: int | None = None
    """Most items, 1 to 100; 20 when None."""
    order: str = ""
    """`asc` or `desc`, the default."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list."""

    items: list[item_pb2.Item]
    has_more: bool

    @property
    def first_id(self) -> str | None:
        """Id of the first item."""
        return item_id(self.items[0]) if self.items else None

    @property
    def last_id(self) -> str | None:
        """Id of the last item."""
        return item_id(self.items[-1]) if self.items else None


def item_id(item: item_pb2.Item) -> str:
    """Return the id of an item."""
    return str(getattr(item, item.WhichOneof("item") or "").id)


def page_of(encoded: Sequence[bytes], asked: PageRequest) -> Page | Rejection:
    """Return a page of serialized items, which are given oldest first."""
    limit = _DEFAULT_LIMIT if asked.limit is None else asked.limit
    if not 1 <= limit <= _MAX_LIMIT:
        return _invalid("limit", f"limit must be from 1 to {_MAX_LIMIT}.")
    order = asked.order or "desc"
    if order not in ("asc", "desc"):
        return _invalid("order", "order must be 'asc' or 'desc'.")
    items = [listed_item(item_pb2.Item.FromString(one)) for one in encoded]
    if order == "desc":
        items.reverse()
    start = 0
    if asked.after:
        ids = [item_id(item) for item in items]
        if asked.after not in ids:
            return _invalid("after", f"No item has the id {quoted(asked.after)}.")
        start = ids.index(asked.after) + 1
    return Page(items[start : start + limit], start + limit < len(items))


def _invalid(path: str, message: str) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_INVALID_VALUE, message, param=path)
