"""Responses in a SQL database, with the recent ones in memory in front of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from sqlalchemy import Connection, RowMapping, bindparam, exists, select, update

from turnwire.v1 import item_pb2, response_pb2
from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.tables import response_items, responses, segments
from turnwire_server.adapters.stores.item_index import newest_with_id
from turnwire_server.adapters.stores.orphans import failed_response
from turnwire_server.adapters.stores.packing import item_key, unpack
from turnwire_server.adapters.stores.recent import Recent, RecentResponses
from turnwire_server.adapters.stores.segments import SegmentBook, SegmentRow
from turnwire_server.adapters.stores.sql_cleanup import delete_responses, prune, release
from turnwire_server.adapters.stores.sql_failures import store_failures
from turnwire_server.adapters.stores.sql_rows import (
    decoded,
    input_items_of,
    is_possible_id,
    read_chain,
    stored_response,
)
from turnwire_server.adapters.stores.sql_writer import ResponseWriter
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.store import StoredResponse

__all__ = ["SqlResponseStore"]

_RUNNING = ("queued", "in_progress")
_BY_KEY = select(responses.c.id).where(  # built once: to build it takes longer
    responses.c.tenant == bindparam("of_tenant"), responses.c.idempotency_key == bindparam("key")
)


class SqlResponseStore:
    """`ports.ResponseStore` on a database that others may use at the same time.

    A response in memory is believed for `verify_s` seconds, then the database is asked whether it
    is there still: so long may a response be continued that another process has deleted.
    """

    def __init__(self, database: Database, clock: Clock, book: SegmentBook) -> None:
        """Keep responses in `database`, which its owner starts and closes.

        Args:
            database: The database.
            clock: Time, for expiry and for how old what is known has become.
            book: Where conversations are kept; shared by the stores of one database.
        """
        self._database = database
        self._clock = clock
        self._book = book
        self._writer = ResponseWriter(database, book)
        self._recent = RecentResponses(database.settings.cache_bytes)
        self._deletions = 0
        self._dropped = {"expired": 0, "evicted": 0}

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many responses were removed because they expired; see `ports.CountsDropped`."""
        return self._dropped

    async def put(self, record: StoredResponse) -> None:
        """Keep `record`; see `ports.ResponseStore`."""
        before = self._deletions
        self._recent.drop(record.response_id)
        draft = await self._writer.write(record, now=self._clock.wall())
        # What is not over is changed by its owner, which may be another process.
        if record.is_over and before == self._deletions:
            self._recent.put(record, draft.segment, verified_at=self._clock.monotonic())

    async def get(self, response_id: str, *, tenant: str) -> StoredResponse | None:
        """Return the record, or None."""
        if not is_possible_id(response_id):
            return None
        entry = self._recent.find(response_id)
        if entry is None or entry.record.tenant != tenant:
            # Also for another tenant's: it takes as long as for an unknown one.
            return await self._read(response_id, tenant)
        if entry.record.expires_at <= self._clock.wall():
            return None
        if not self._is_fresh(entry) and not await self._verify(entry):
            return None
        return entry.record

    async def find_by_key(self, tenant: str, idempotency_key: str) -> StoredResponse | None:
        """Return the response that has the key, or None."""
        if not is_possible_id(idempotency_key):
            return None
        given = {"of_tenant": tenant, "key": idempotency_key}
        with store_failures("a response cannot be found"):
            response_id = await self._database.run_read(
                lambda connection: connection.scalar(_BY_KEY, given)
            )
        return None if response_id is None else await self.get(response_id, tenant=tenant)

    async def find_item(self, item_id: str, *, tenant: str) -> item_pb2.Item | None:
        """Return the item of the newest response that has it, or None."""
        if not item_id:
            return None
        statement = (
            select(responses.c.response, responses.c.input_items, segments.c["items"])
            .join_from(response_items, responses)
            .join(segments, responses.c.segment_id == segments.c.id)
            .where(
                response_items.c.tenant == tenant,
                response_items.c.item_key == item_key(item_id),
                responses.c.expires_at > self._clock.wall(),
            )
            .order_by(response_items.c.number.desc())
            .limit(1)
        )
        with store_failures("an item cannot be found"):
            row = await self._database.run_read(
                lambda connection: connection.execute(statement).one_or_none()
            )
            if row is None:
                return None
            response, input_items, items = row
            output = response_pb2.Response.FromString(response).output
            given = input_items_of(input_items, unpack(items))
            return newest_with_id([*given, *(one.SerializeToString() for one in output)], item_id)

    async def delete(self, response_id: str, *, tenant: str) -> bool:
        """Forget the record; its content goes too, unless a response that continues it needs it."""
        if not is_possible_id(response_id):
            return False

        def delete(connection: Connection) -> int | None:
            row = connection.execute(
                select(responses.c.segment_id, responses.c.expires_at)
                .where(responses.c.id == response_id, responses.c.tenant == tenant)
                .with_for_update()
            ).one_or_none()
            if row is None:
                return None
            delete_responses(connection, [response_id])
            release(connection, [row.segment_id])
            return int(row.expires_at)

        with store_failures("a response cannot be deleted"):
            expires_at = await self._database.run_write(delete)
            if expires_at is None:
                return False
            self._deletions += 1
            self._recent.drop(response_id)
            await self._database.scrub()
        return expires_at > self._clock.wall()

    async def fail_orphans(self, owners: Collection[str]) -> int:
        """Fail what dead instances ran; see `ports.ResponseStore`."""

        def fail(connection: Connection, owner: str) -> int:
            rows = connection.execute(
                select(responses.c.id, responses.c.response)
                .where(responses.c.owner == owner, responses.c.status.in_(_RUNNING))
                .with_for_update()
            ).all()
            for row in rows:
                values = {
                    "status": "failed",
                    "owner": "",
                    "response": failed_response(row.response),
                }
                connection.execute(update(responses).where(responses.c.id == row.id).values(values))
            return len(rows)

        with store_failures("lost responses cannot be marked"):
            counts = [
                await self._database.run_write(partial(fail, owner=owner))
                for owner in owners
                if owner
            ]
        return sum(counts)

    async def prune(self) -> tuple[int, int]:
        """Remove what has expired, and segments that nobody refers to.

        Returns:
            How many responses, and how many of the segments beside theirs.
        """
        with store_failures("what has expired cannot be removed"):
            expired, orphans = await prune(self._database, self._clock.wall())
            if expired or orphans:
                self._dropped["expired"] += expired
                await self._database.scrub()
        return expired, orphans

    async def close(self) -> None:
        """Finish the writes and forget what is in memory; the database stays open."""
        await self._writer.close()
        self._recent.clear()

    # The responses in memory.

    def _is_fresh(self, entry: Recent) -> bool:
        age = self._clock.monotonic() - entry.verified_at
        return age < self._database.settings.verify_s

    async def _verify(self, entry: Recent) -> bool:
        """Ask the database whether a response is there still; the one place where that is done."""
        now, record = self._clock.monotonic(), entry.record
        statement = select(
            exists().where(
                responses.c.id == record.response_id, responses.c.tenant == record.tenant
            )
        )
        with store_failures("a response cannot be read"):
            is_there = await self._database.run_read(
                lambda connection: bool(connection.scalar(statement))
            )
        if is_there:
            entry.verified_at = now
        else:
            self._recent.drop(record.response_id)
        return is_there

    async def _read(self, response_id: str, tenant: str) -> StoredResponse | None:
        """Read a response from the database."""
        before = self._deletions
        now = self._clock.monotonic()
        statement = select(responses).where(
            responses.c.id == response_id,
            responses.c.tenant == tenant,
            responses.c.expires_at > self._clock.wall(),
        )

        def read(connection: Connection) -> tuple[RowMapping, Sequence[SegmentRow]] | None:
            row = connection.execute(statement).mappings().one_or_none()
            if row is None:
                return None
            return row, read_chain(connection, row[responses.c.segment_id], tenant)

        with store_failures("a response cannot be read"):
            found = await self._database.run_read(read)
            if found is None or not found[1]:  # or deleted between the two statements
                return None
            loaded = await decoded(found[1])
            record = stored_response(found[0], loaded)
        self._book.adopt(loaded)
        if record.is_over and before == self._deletions:
            self._recent.put(record, loaded.segment, verified_at=now)
        return record
