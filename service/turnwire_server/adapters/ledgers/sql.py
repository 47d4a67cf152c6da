"""Usage in the database: closed records, what is to be exported of them, and their sums."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    String,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.tables import responses, usage_outbox, usage_records
from turnwire_server.adapters.ledgers.exporting import Claim
from turnwire_server.adapters.ledgers.report import Grouping, UsageSums
from turnwire_server.ports.ledger import LedgerFailure, UsageRecord

__all__ = ["SqlUsage", "database_key"]

ResultT = TypeVar("ResultT")

_DAY_S: Final = 86_400
_ENDED: Final = ("completed", "incomplete", "cancelled")
"""Statuses of responses that came to their end; `failed` is also what a dead process leaves."""


def database_key(database: Database) -> str:
    """Return what a database is called in journals: a digest of where it is, without secrets."""
    url = database.engine.url
    where = str(Path(url.database or "").absolute()) if database.is_sqlite else url.database
    parts = (url.get_backend_name(), url.host or "", str(url.port or ""), where or "")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


class SqlUsage:
    """Where closed records are, and the queue of their exports."""

    def __init__(self, database: Database, *, sinks: Sequence[str] = ()) -> None:
        """Use a database that is started; each new record is to be exported to `sinks`."""
        self._database = database
        self._sinks = sinks
        # Once: to build it takes longer than to run it.
        dialect = sqlite if database.is_sqlite else postgresql
        keep = dialect.insert(usage_records).on_conflict_do_nothing(index_elements=["response_id"])
        # Rows that come back are read one by one, so only where somebody asks which were new.
        columns = usage_records.c.response_id, usage_records.c.tenant
        self._insert = keep.returning(*columns) if sinks else keep

    async def put(self, records: Sequence[UsageRecord]) -> None:
        """Keep records, and what is to be exported of them, in one transaction."""
        rows = [_row(record) for record in records]

        def keep(connection: Connection) -> None:
            result = connection.execute(self._insert, rows)
            if not self._sinks:
                return
            exports = [
                {
                    "sink": sink,
                    "response_id": row.response_id,
                    "tenant": row.tenant,
                    "attempts": 0,
                    "next_at": 0,
                }
                for row in result.all()  # those only that were not there
                for sink in self._sinks
            ]
            if exports:
                connection.execute(usage_outbox.insert(), exports)

        await self._write(keep)

    async def endings(self, response_ids: Sequence[str]) -> Mapping[str, str]:
        """Return id -> status of those of the responses that are stored and over."""
        if not response_ids:
            return {}
        table = responses.c
        query = select(table.id, table.status).where(
            table.id.in_(response_ids), table.status.in_(_ENDED)
        )
        rows = await self._read(lambda connection: connection.execute(query).all())
        return {row.id: row.status for row in rows}

    # Exports.

    async def claim(self, sink: str, *, now: int, until: int, limit: int) -> Sequence[Claim]:
        """Return records that are due, which nobody else gets before `until`."""
        table = usage_outbox.c
        due = (
            select(table.response_id)
            .where(table.sink == sink, table.next_at <= now)
            .order_by(table.next_at)
            .limit(limit)
            .with_for_update(skip_locked=True)  # SQLite has one writer, and needs no lock
            .cte()  # PostgreSQL may ask a subquery more than once, and gets others each time
        )
        claim = (
            update(usage_outbox)
            .where(table.sink == sink, table.response_id.in_(select(due.c.response_id)))
            .values(next_at=until)
            .returning(table.response_id, table.attempts)
        )

        def take(connection: Connection) -> Sequence[Claim]:
            attempts = {row.response_id: row.attempts for row in connection.execute(claim).all()}
            if not attempts:
                return ()
            records = select(usage_records).where(usage_records.c.response_id.in_(attempts))
            rows = connection.execute(records).all()
            return [Claim(_record(row), attempts[row.response_id]) for row in rows]

        return await self._write(take)

    async def note(self, sink: str, delivered: Sequence[str], failed: Mapping[str, int]) -> None:
        """Drop what was delivered, and keep what failed for later."""
        table = usage_outbox.c

        def change(connection: Connection) -> None:
            if delivered:
                connection.execute(
                    delete(usage_outbox).where(table.sink == sink, table.response_id.in_(delivered))
                )
            if failed:
                connection.execute(
                    update(usage_outbox)
                    .where(table.sink == sink, table.response_id == bindparam("which"))
                    .values(attempts=table.attempts + 1, next_at=bindparam("at")),
                    [{"which": which, "at": at} for which, at in failed.items()],
                )

        await self._write(change)

    async def waiting(self, sink: str) -> tuple[int, int | None]:
        """Return how many records wait, and when the next one is due."""
        table = usage_outbox.c
        query = select(func.count(), func.min(table.next_at)).where(table.sink == sink)
        count, next_at = await self._read(lambda connection: connection.execute(query).one())
        return int(count), None if next_at is None else int(next_at)

    # Reports.

    async def sums(self, by: Grouping, *, since: int = 0) -> Sequence[UsageSums]:
        """Return sums over what began at `since`, Unix seconds, or later; groups in order."""
        table = usage_records.c
        groups: dict[Grouping, ColumnElement[Any]] = {
            "key": table.tenant,
            "model": table.model,
            # A literal: PostgreSQL takes two parameters for two different expressions.
            "day": table.created_at - table.created_at % literal_column(str(_DAY_S)),
        }
        group = groups[by].label("usage_group")
        query = (
            select(
                group,
                table.model,
                table.status,
                func.count().label("responses"),
                *(
                    func.sum(column).label(column.name)
                    for column in (
                        table.input_tokens,
                        table.cached_tokens,
                        table.output_tokens,
                        table.reasoning_tokens,
                    )
                ),
            )
            .where(table.created_at >= since)
            .group_by(group, table.model, table.status)
            .order_by(group, table.model, table.status)
        )
        rows = await self._read(lambda connection: connection.execute(query).all())
        return [
            UsageSums(
                group=row.usage_group if by != "day" else int(row.usage_group),
                model=row.model,
                status=row.status,
                responses=int(row.responses),
                input_tokens=int(row.input_tokens),
                cached_tokens=int(row.cached_tokens),
                output_tokens=int(row.output_tokens),
                reasoning_tokens=int(row.reasoning_tokens),
            )
            for row in rows
        ]

    # Private.

    async def _write(self, job: Callable[[Connection], ResultT]) -> ResultT:
        try:
            return await self._database.run_write(job)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise _failure(error) from None

    async def _read(self, job: Callable[[Connection], ResultT]) -> ResultT:
        try:
            return await self._database.run_read(job)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise _failure(error) from None


def _failure(error: Exception) -> LedgerFailure:
    # The text of a driver's error may quote the statement; its kind says enough.
    original = error.orig if isinstance(error, DBAPIError) else error
    return LedgerFailure(f"The database of the usage fails with {type(original).__name__}.")


def _row(record: UsageRecord) -> dict[str, str | int]:
    return {
        "response_id": record.response_id,
        "tenant": record.tenant,
        "model": _text(record.model, usage_records.c.model),
        "status": record.status,
        "input_tokens": record.input_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "reasoning_tokens": record.reasoning_tokens,
        "created_at": record.created_at,
        "closed_at": record.closed_at,
    }


def _text(text: str, column: Column[str]) -> str:
    """Return a client's text as any database takes it: one that it refuses would stop them all."""
    assert isinstance(column.type, String)
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")[: column.type.length]


def _record(row: Row[Any]) -> UsageRecord:
    return UsageRecord(
        response_id=row.response_id,
        tenant=row.tenant,
        model=row.model,
        status=row.status,
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        reasoning_tokens=row.reasoning_tokens,
        created_at=row.created_at,
        closed_at=row.closed_at,
    )
