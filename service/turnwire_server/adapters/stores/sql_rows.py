"""Rows of stored responses: what is written for one, and one that is read again."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Integer, RowMapping, literal, select

from turnwire_server.adapters.database.tables import responses, segments
from turnwire_server.adapters.stores.packing import item_key, pack, unpack
from turnwire_server.adapters.stores.segments import Draft, Loaded, SegmentRow, load
from turnwire_server.ports.store import StoredResponse

__all__ = [
    "decoded",
    "input_items_of",
    "is_possible_id",
    "item_rows",
    "read_chain",
    "response_row",
    "segment_row",
    "stored_response",
]

_LONGEST_ID: Final = 256
_LISTED: Final = b"\0"
_OF_SEGMENT: Final = b"\1"
_SPAN: Final = struct.Struct("<II")
_BLOCKING_BYTES: Final = 256 * 1024
"""What is larger is decoded in a thread, so that other turns go on."""


def is_possible_id(text: str) -> bool:
    """Return whether a row can have this id: what clients ask for can be anything."""
    return len(text) <= _LONGEST_ID and text.isascii() and text.isprintable()


# Writing.


def segment_row(draft: Draft) -> dict[str, Any]:
    """Return the row of a segment."""
    row = draft.row
    return {
        "id": row.id,
        "tenant": row.tenant,
        "parent_id": row.parent_id,
        "items": row.items,
        "facts": row.facts,
        "ids": row.ids,
        "kept_ids": row.kept_ids,
    }


def response_row(record: StoredResponse, draft: Draft) -> dict[str, Any]:
    """Return the row of a response whose conversation ends with the segment of `draft`."""
    return {
        "id": record.response_id,
        "tenant": record.tenant,
        "segment_id": draft.row.id,
        "status": record.status,
        "owner": record.owner,
        "background": record.background,
        "idempotency_key": record.idempotency_key,
        "request_digest": record.request_digest,
        "response": record.response,
        "input_items": _input_items(record.input_items, draft.items),
        "item_ids": orjson.dumps(record.item_ids),
        "created_at": record.created_at,
        "expires_at": record.expires_at,
    }


def item_rows(record: StoredResponse) -> list[dict[str, Any]]:
    """Return the rows by which the items of a response are found."""
    return [
        {"tenant": record.tenant, "item_key": item_key(name), "response_id": record.response_id}
        for name in record.item_ids
        if name
    ]


def _input_items(given: Sequence[bytes], items: tuple[bytes, ...]) -> bytes:
    """Return the input of a response; mostly it stands in its segment, then only where."""
    given, count = tuple(given), len(given)
    for start in range(len(items) - count + 1):
        if items[start : start + count] == given:
            return _OF_SEGMENT + _SPAN.pack(start, count)
    return _LISTED + pack(given)


# Reading.


def input_items_of(packed: bytes, items: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the input of a response whose segment has `items`."""
    if packed[:1] == _OF_SEGMENT:
        start, count = _SPAN.unpack(packed[1:])
        return tuple(items[start : start + count])
    return unpack(packed[1:])


def read_chain(connection: Connection, segment_id: str, tenant: str) -> Sequence[SegmentRow]:
    """Return a segment behind all those that it continues, the oldest first; none if it is gone."""
    newest = select(segments, literal(0, Integer).label("distance")).where(
        segments.c.id == segment_id, segments.c.tenant == tenant
    )
    chain = newest.cte("chain", recursive=True)
    chain = chain.union_all(
        select(segments, chain.c.distance + 1).join(chain, segments.c.id == chain.c.parent_id)
    )
    result = connection.execute(select(chain).order_by(chain.c.distance.desc()))
    rows = [_segment_of(row) for row in result.mappings()]
    return rows if rows and rows[0].parent_id is None else ()


async def decoded(rows: Sequence[SegmentRow]) -> Loaded:
    """Return the conversation of a chain; see `segments.load`."""
    if sum(len(row.items) + len(row.ids or b"") for row in rows) > _BLOCKING_BYTES:
        return await asyncio.to_thread(load, rows)
    return load(rows)


def _segment_of(row: RowMapping) -> SegmentRow:
    return SegmentRow(
        id=row["id"],
        tenant=row["tenant"],
        parent_id=row["parent_id"],
        items=row["items"],
        facts=row["facts"],
        ids=row["ids"],
        kept_ids=row["kept_ids"],
    )


def stored_response(row: RowMapping, loaded: Loaded) -> StoredResponse:
    """Return the record of a row and its conversation."""
    return StoredResponse(
        response_id=row[responses.c.id],
        tenant=row[responses.c.tenant],
        response=row[responses.c.response],
        input_items=input_items_of(row[responses.c.input_items], loaded.own_items),
        conversation=loaded.conversation,
        prompt=loaded.prompt,
        created_at=row[responses.c.created_at],
        expires_at=row[responses.c.expires_at],
        item_ids=tuple(orjson.loads(row[responses.c.item_ids])),
        status=row[responses.c.status],
        owner=row[responses.c.owner],
        background=row[responses.c.background],
        idempotency_key=row[responses.c.idempotency_key],
        request_digest=row[responses.c.request_digest],
    )
