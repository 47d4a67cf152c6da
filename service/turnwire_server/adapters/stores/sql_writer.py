"""Writing responses: one task for all of a process, which commits what waits in one transaction.

So a hundred sessions that end a turn at the same moment cost one commit, and none waits for the
ninety-nine others. What is new is inserted as it is; only when the database objects, because a row
is there already or a parent is not any more, is each of them written again by itself and with care.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from sqlalchemy import Connection, and_, bindparam, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.tables import response_items, responses, segments
from turnwire_server.adapters.stores.segments import Draft, SegmentBook
from turnwire_server.adapters.stores.sql_cleanup import delete_responses, release
from turnwire_server.adapters.stores.sql_failures import store_failures
from turnwire_server.adapters.stores.sql_rows import item_rows, response_row, segment_row
from turnwire_server.ports.store import IdempotencyKeyTaken, StoredResponse, StoreFailure

__all__ = ["ResponseWriter"]

_log = logging.getLogger("turnwire.store")

_MOST: Final = 256
"""Responses of one transaction."""
_ATTEMPTS: Final = 3

# Built once: to build a statement takes longer than to run it.
_KNOWN: Final = (
    select(responses.c.segment_id, responses.c.idempotency_key)
    .where(responses.c.id == bindparam("own_id"), responses.c.tenant == bindparam("own_tenant"))
    .with_for_update()
)
_PARENT: Final = (
    select(segments.c.id)
    .where(segments.c.id == bindparam("parent"))
    .with_for_update(read=True, key_share=True)
)
_DROP_ITEMS: Final = response_items.delete().where(
    response_items.c.response_id == bindparam("own_id")
)
_REPLACE: Final = update(responses).where(responses.c.id == bindparam("own_id"))


@dataclass(frozen=True, slots=True)
class _Waiting:
    record: StoredResponse
    now: int
    written: asyncio.Future[Draft]

    @property
    def is_plain(self) -> bool:
        """Whether it is most likely the first of its id, and of its key if it has one.

        Those in the background or with a key are written from their beginning, and once more.
        """
        record = self.record
        is_early = record.background or record.idempotency_key is not None
        return record.is_over != is_early


class ResponseWriter:
    """Writes responses, in the order in which they come."""

    def __init__(self, database: Database, book: SegmentBook) -> None:
        """Write to `database`, and note in `book` where conversations are."""
        self._database = database
        self._book = book
        self._waiting: list[_Waiting] = []
        self._has_work = asyncio.Event()
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    async def write(self, record: StoredResponse, *, now: int) -> Draft:
        """Write a response; when this returns it is committed.

        Cancelling leaves open whether it is written.

        Args:
            record: The response.
            now: Unix seconds: what expired before may be overwritten.

        Raises:
            IdempotencyKeyTaken: Another response has its key.
            StoreFailure: It could not be written.
        """
        if self._is_closed:
            raise StoreFailure("a response came after the end of the store")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(record, now, loop.create_future())
        self._waiting.append(waiting)
        self._has_work.set()
        if self._task is None:
            self._task = loop.create_task(self._run())
        return await waiting.written

    async def close(self) -> None:
        """Write what waits, and stop. Idempotent."""
        self._is_closed = True
        self._has_work.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while self._waiting or not self._is_closed:
            await self._has_work.wait()
            batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            if not self._waiting and not self._is_closed:
                self._has_work.clear()
            try:
                await self._write(batch)
            except Exception as bug:  # whatever it is: those who wait must hear of it
                failure = StoreFailure(f"writing failed: {type(bug).__name__}")
                for waiting in batch:
                    if not waiting.written.done():
                        waiting.written.set_exception(failure)

    async def _write(self, batch: Sequence[_Waiting]) -> None:
        batch = [waiting for waiting in batch if not waiting.written.done()]  # not cancelled
        plain = [waiting for waiting in batch if waiting.is_plain]
        careful = [waiting for waiting in batch if not waiting.is_plain]
        if plain:
            try:
                await self._write_together(plain)
            except DBAPIError as error:
                _log.info("writing one by one responses=%d error=%s", len(plain), _kind(error))
                careful = batch
        for waiting in careful:
            if waiting.written.done():
                continue
            try:
                with store_failures("a response cannot be written"):
                    self._done(waiting, await self._write_one(waiting))
            except (StoreFailure, IdempotencyKeyTaken) as failure:
                if not waiting.written.done():
                    waiting.written.set_exception(failure)

    def _done(self, waiting: _Waiting, draft: Draft) -> None:
        self._book.keep(draft)
        if not waiting.written.done():
            waiting.written.set_result(draft)

    async def _write_together(self, batch: Sequence[_Waiting]) -> None:
        """Insert what is all new.

        Raises:
            DBAPIError: Nothing was written.
        """
        records = [waiting.record for waiting in batch]
        drafts = [self._draft(record) for record in records]
        rows = list(map(response_row, records, drafts))
        # In one order on every server: those that take the same keys wait, and do not deadlock.
        rows.sort(key=lambda row: (row["tenant"], row["idempotency_key"] or ""))
        items = [row for record in records for row in item_rows(record)]

        def insert_all(connection: Connection) -> None:
            connection.execute(insert(segments), list(map(segment_row, drafts)))
            connection.execute(insert(responses), rows)
            if items:
                connection.execute(insert(response_items), items)

        await self._database.run_write(insert_all)
        for waiting, draft in zip(batch, drafts, strict=True):
            self._done(waiting, draft)

    def _draft(self, record: StoredResponse, *, whole: bool = False) -> Draft:
        return self._book.draft(record.conversation, record.prompt, record.tenant, whole=whole)

    # With care.

    async def _write_one(self, waiting: _Waiting) -> Draft:
        record = waiting.record
        draft = self._draft(record)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._database.run_write(
                    partial(_put, record=record, draft=draft, now=waiting.now)
                )
            except _ParentGoneError:
                draft = self._draft(record, whole=True)
            except DBAPIError as error:
                # Another process was faster, or the connection is gone.
                is_passing = isinstance(error, IntegrityError) or error.connection_invalidated
                if attempt == _ATTEMPTS or not is_passing:
                    raise
        raise StoreFailure("a response cannot be written: its parent goes again and again")


class _ParentGoneError(Exception):
    """The segment that a draft continues was deleted, and nobody needed it then."""


def _put(connection: Connection, record: StoredResponse, draft: Draft, now: int) -> Draft:
    """Write one response in the place of one with the same id; return the draft.

    Raises:
        IdempotencyKeyTaken: Another response has its key.
        _ParentGoneError: What it continues is not there.
    """
    own = {"own_id": record.response_id, "own_tenant": record.tenant}
    known = connection.execute(_KNOWN, own).one_or_none()
    if known is None or known.idempotency_key != record.idempotency_key:
        _free_key(connection, record, now)
    if draft.row.parent_id is not None:
        parent = connection.execute(_PARENT, {"parent": draft.row.parent_id})
        if parent.scalar_one_or_none() is None:
            raise _ParentGoneError
    row = response_row(record, draft)
    connection.execute(insert(segments), segment_row(draft))
    if known is None:
        connection.execute(insert(responses), row)
    else:
        del row["id"]
        connection.execute(_DROP_ITEMS, {"own_id": record.response_id})
        connection.execute(_REPLACE, {"own_id": record.response_id, **row})
        release(connection, [known.segment_id])
    if items := item_rows(record):
        connection.execute(insert(response_items), items)
    return draft


def _free_key(connection: Connection, record: StoredResponse, now: int) -> None:
    """See to it that no other response has the record's idempotency key."""
    if record.idempotency_key is None:
        return
    found = connection.execute(
        select(responses.c.id, responses.c.segment_id, responses.c.expires_at)
        .where(
            and_(
                responses.c.tenant == record.tenant,
                responses.c.idempotency_key == record.idempotency_key,
                responses.c.id != record.response_id,
            )
        )
        .with_for_update()
    )
    holder = found.one_or_none()
    if holder is None:
        return
    if holder.expires_at > now:
        raise IdempotencyKeyTaken
    delete_responses(connection, [holder.id])
    release(connection, [holder.segment_id])


def _kind(error: DBAPIError) -> str:
    return type(error.orig or error).__name__
