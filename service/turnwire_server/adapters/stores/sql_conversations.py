"""Conversations in a SQL database, with the recent ones in memory in front of it.

What is in memory is used only when the database says that it is the newest version: that is one
small query per turn, and what another process added is seen by the next one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Connection, Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from turnwire.v1 import item_pb2
from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.tables import conversation_items, conversations, segments
from turnwire_server.adapters.stores.item_index import ENTRY_BYTES, id_of
from turnwire_server.adapters.stores.packing import item_key
from turnwire_server.adapters.stores.segments import Draft, SegmentBook, SegmentRow
from turnwire_server.adapters.stores.sql_cleanup import release
from turnwire_server.adapters.stores.sql_failures import store_failures
from turnwire_server.adapters.stores.sql_rows import (
    decoded,
    is_possible_id,
    read_chain,
    segment_row,
)
from turnwire_server.ports.conversations import ConversationConflict, StoredConversation
from turnwire_server.ports.store import StoreFailure

__all__ = ["SqlConversationStore"]

_RECORD_BYTES: Final = 1024
_PART: Final = 4
"""The conversations in memory take so small a part of what the responses may take."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A conversation in memory."""

    record: StoredConversation
    segment_id: str
    positions: Sequence[int]
    """Of its items."""
    item_bytes: int
    """Of its items."""

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        # Each item is in the list and in the context, and may be once more among those that no
        # screen has seen; the token ids are about as much again.
        return _RECORD_BYTES + 3 * (self.item_bytes + ENTRY_BYTES * len(self.positions))


class _Read(NamedTuple):
    """What was read of a conversation; its row alone where that is all that is new."""

    row: Row[Any]
    chain: Sequence[SegmentRow] = ()
    items: Sequence[tuple[int, bytes]] = ()


class SqlConversationStore:
    """`ports.ConversationStore` on a database that others may use at the same time."""

    def __init__(self, database: Database, book: SegmentBook) -> None:
        """Keep conversations in `database`, which its owner starts and closes.

        Args:
            database: The database.
            book: Where conversations are kept; shared by the stores of one database.
        """
        self._database = database
        self._book = book
        self._max_bytes = database.settings.cache_bytes // _PART
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._bytes = 0

    async def put(self, record: StoredConversation) -> None:
        """Keep `record`; see `ports.ConversationStore`."""
        try:
            with store_failures("a conversation cannot be written"):
                try:
                    written, draft = await self._put(record)
                except IntegrityError:
                    # A response was deleted whose items it shares: they are written again.
                    written, draft = await self._put(record, whole=True)
        except (ConversationConflict, StoreFailure):
            self._forget(record.id)
            raise
        if draft is not None:
            self._book.keep(draft)
        self._remember(written)

    async def get(self, conversation_id: str, *, tenant: str) -> StoredConversation | None:
        """Return the record, or None."""
        if not is_possible_id(conversation_id):
            return None
        known = self._known.get(conversation_id)

        def read(connection: Connection) -> _Read | None:
            row = connection.execute(
                select(conversations).where(
                    conversations.c.id == conversation_id, conversations.c.tenant == tenant
                )
            ).one_or_none()
            if row is None or (known is not None and known.record.version == row.version):
                return None if row is None else _Read(row)
            chain = read_chain(connection, row.segment_id, tenant)
            return _Read(row, chain, _items(connection, conversation_id))

        with store_failures("a conversation cannot be read"):
            found = await self._database.run_read(read)
            if found is None:
                return None
            row, chain, items = found
            if known is not None and known.record.version == row.version:
                if conversation_id in self._known:
                    self._known.move_to_end(conversation_id)
                return known.record
            if not chain:  # changed or deleted between the statements
                return None
            loaded = await decoded(chain)
        record = StoredConversation(
            id=row.id,
            tenant=row.tenant,
            created_at=row.created_at,
            metadata=MappingProxyType(orjson.loads(row.metadata)),
            items=tuple(item for _, item in items),
            context=loaded.conversation,
            prompt=loaded.prompt,
            version=row.version,
        )
        self._book.adopt(loaded)
        self._remember(_known(record, row.segment_id, [position for position, _ in items]))
        return record

    async def find_item(self, item_id: str, *, tenant: str) -> item_pb2.Item | None:
        """Return the item of the newest conversation that has it, or None."""
        if not item_id:
            return None
        statement = (
            select(conversation_items.c["item"])
            .join_from(conversation_items, conversations)
            .where(
                conversation_items.c.tenant == tenant,
                conversation_items.c.item_key == item_key(item_id),
            )
            .order_by(conversations.c.created_at.desc(), conversation_items.c.position.desc())
            .limit(1)
        )
        with store_failures("an item cannot be found"):
            encoded = await self._database.run_read(lambda connection: connection.scalar(statement))
        return None if encoded is None else item_pb2.Item.FromString(encoded)

    async def delete(self, conversation_id: str, *, tenant: str) -> bool:
        """Forget the record; its content goes too."""
        if not is_possible_id(conversation_id):
            return False

        def forget(connection: Connection) -> bool:
            segment_id = connection.execute(
                select(conversations.c.segment_id)
                .where(conversations.c.id == conversation_id, conversations.c.tenant == tenant)
                .with_for_update()
            ).scalar_one_or_none()
            if segment_id is None:
                return False
            _delete_items(connection, conversation_id)
            connection.execute(delete(conversations).where(conversations.c.id == conversation_id))
            release(connection, [segment_id])
            return True

        with store_failures("a conversation cannot be deleted"):
            was_there = await self._database.run_write(forget)
            if was_there:
                self._forget(conversation_id)
                await self._database.scrub()
        return was_there

    async def close(self) -> None:
        """Forget what is in memory; the database stays open."""
        self._known.clear()
        self._bytes = 0

    # Writing.

    async def _put(
        self, record: StoredConversation, *, whole: bool = False
    ) -> tuple[_Known, Draft | None]:
        known = self._known.get(record.id)
        if known is not None and known.record.version != record.version:
            known = None
        is_same = (
            known is not None
            and known.record.context is record.context
            and known.record.prompt is record.prompt
            and not whole
        )
        draft = None
        if not is_same:  # else its metadata alone is new
            draft = self._book.draft(record.context, record.prompt, record.tenant, whole=whole)

        def write(connection: Connection) -> _Known:
            old = known
            if record.version:
                old = _locked(connection, record, known)
            elif whole or _is_there(connection, record.id):
                raise ConversationConflict
            if draft is not None:
                connection.execute(insert(segments), segment_row(draft))
            return _write(connection, record, old, draft)

        return await self._database.run_write(write), draft

    # The conversations in memory.

    def _remember(self, known: _Known) -> None:
        self._forget(known.record.id)
        self._known[known.record.id] = known
        self._bytes += known.size
        while self._bytes > self._max_bytes and self._known:
            self._forget(next(iter(self._known)))

    def _forget(self, conversation_id: str) -> None:
        known = self._known.pop(conversation_id, None)
        if known is not None:
            self._bytes -= known.size


def _is_there(connection: Connection, conversation_id: str) -> bool:
    found = connection.execute(
        select(conversations.c.id).where(conversations.c.id == conversation_id)
    )
    return found.one_or_none() is not None


def _locked(connection: Connection, record: StoredConversation, known: _Known | None) -> _Known:
    """Return the version of the conversation that the record was made of; nobody changes it.

    Raises:
        ConversationConflict: There is another version, or none.
    """
    found = connection.execute(
        select(conversations.c.version, conversations.c.segment_id)
        .where(conversations.c.id == record.id, conversations.c.tenant == record.tenant)
        .with_for_update()
    )
    row = found.one_or_none()
    if row is None or row.version != record.version:
        raise ConversationConflict
    if known is not None:
        return known
    items = _items(connection, record.id)
    old = replace(record, items=tuple(item for _, item in items))
    return _known(old, row.segment_id, [position for position, _ in items])


def _write(
    connection: Connection,
    record: StoredConversation,
    known: _Known | None,
    draft: Draft | None,
) -> _Known:
    """Write all but the segment, which is there.

    Args:
        connection: Where to.
        record: The conversation.
        known: What it was, None for a new one.
        draft: Its new segment, None when it keeps the one that it has.
    """
    segment_id = draft.row.id if draft is not None else known.segment_id if known else ""
    values: dict[str, Any] = {
        "version": record.version + 1,
        "metadata": orjson.dumps(dict(record.metadata)),
        "segment_id": segment_id,
    }
    if known is None:
        values |= {
            "id": record.id,
            "tenant": record.tenant,
            "created_at": record.created_at,
        }
        connection.execute(insert(conversations), values)
    else:
        connection.execute(
            update(conversations).where(conversations.c.id == record.id).values(values)
        )
        if draft is not None:
            release(connection, [known.segment_id])
    positions, item_bytes = _write_items(connection, record, known)
    record = replace(record, version=record.version + 1)
    return _Known(record, segment_id, positions, item_bytes)


def _known(record: StoredConversation, segment_id: str, positions: Sequence[int]) -> _Known:
    return _Known(record, segment_id, positions, sum(map(len, record.items)))


def _items(connection: Connection, conversation_id: str) -> list[tuple[int, bytes]]:
    found = connection.execute(
        select(conversation_items.c.position, conversation_items.c["item"])
        .where(conversation_items.c.conversation_id == conversation_id)
        .order_by(conversation_items.c.position)
    )
    return [(row[0], row[1]) for row in found]


def _delete_items(
    connection: Connection, conversation_id: str, positions: Sequence[int] | None = None
) -> None:
    statement = delete(conversation_items).where(
        conversation_items.c.conversation_id == conversation_id
    )
    if positions is not None:
        statement = statement.where(
            conversation_items.c.position.between(positions[0], positions[-1])
        )
    connection.execute(statement)


def _write_items(
    connection: Connection, record: StoredConversation, known: _Known | None
) -> tuple[Sequence[int], int]:
    """Write the items that are new and delete those that are gone.

    Returns:
        The positions of all, and their bytes.
    """
    old: tuple[bytes, ...] = () if known is None else known.record.items
    positions = [] if known is None else list(known.positions)
    # Mostly the same with more behind it, which is seen at a glance.
    is_longer = record.items[: len(old)] == old
    front = len(old) if is_longer else _common_front(old, record.items)
    back = _common_front(old[front:][::-1], record.items[front:][::-1])
    if front + back < len(record.items):
        back = 0  # what is new goes to the end: behind it nothing can stay
    gone = positions[front : len(positions) - back]
    if gone:
        _delete_items(connection, record.id, gone)
    kept = positions[:front] + positions[len(positions) - back :]
    new = record.items[front : len(record.items) - back]
    following = (positions[-1] + 1) if positions else 0
    rows = [
        {
            "conversation_id": record.id,
            "position": following + number,
            "tenant": record.tenant,
            "item_key": item_key(id_of(item_pb2.Item.FromString(item))),
            "item": item,
        }
        for number, item in enumerate(new)
    ]
    if rows:
        connection.execute(insert(conversation_items), rows)
    item_bytes = sum(map(len, new))
    if known is not None:  # nothing that was there already is looked at again
        removed = old[front : len(old) - back]
        item_bytes += known.item_bytes - sum(map(len, removed))
    return kept + [following + number for number in range(len(new))], item_bytes


def _common_front(ours: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    """Return how many items at the front are the same."""
    count = 0
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            break
        count += 1
    return count
