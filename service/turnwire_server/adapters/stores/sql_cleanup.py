"""Removing rows: what has expired, and segments that nobody refers to any more.

A segment stays as long as a response, a conversation or another segment refers to it. So the items
of a deleted response are there as long as a response that continues it needs them as its context,
and no longer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    not_,
    select,
)

from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.tables import (
    conversations,
    response_items,
    responses,
    segments,
)

__all__ = ["delete_responses", "prune", "release"]

_BATCH: Final = 200
"""Rows that one transaction takes, so that turns get in between."""
_MOST_DEAD: Final = 5000
"""Segments that one statement names; databases have a limit."""

_other = segments.alias("other")


async def prune(database: Database, now: int) -> tuple[int, int]:
    """Remove the responses that have expired, and segments that nobody refers to.

    Args:
        database: The database.
        now: Unix seconds.

    Returns:
        How many responses, and how many of the segments beside theirs.
    """

    def prune_expired(connection: Connection) -> int:
        rows = connection.execute(
            select(responses.c.id, responses.c.segment_id)
            .where(responses.c.expires_at <= now)
            .limit(_BATCH)
            # What another process is about to delete is not waited for.
            .with_for_update(skip_locked=True)
        ).all()
        delete_responses(connection, [row.id for row in rows])
        release(connection, [row.segment_id for row in rows])
        return len(rows)

    def prune_orphans(connection: Connection) -> int:
        # There are none, unless somebody removed rows by hand.
        rows = connection.execute(_unused().limit(_BATCH))
        return release(connection, [row.id for row in rows])

    expired = removed = await database.run_write(prune_expired)
    while removed == _BATCH:
        removed = await database.run_write(prune_expired)
        expired += removed
    orphans = 0
    while removed := await database.run_write(prune_orphans):
        orphans += removed
    return expired, orphans


def delete_responses(connection: Connection, ids: Sequence[str]) -> None:
    """Delete rows of responses; their segments are still there."""
    if ids:
        connection.execute(delete(response_items).where(response_items.c.response_id.in_(ids)))
        connection.execute(delete(responses).where(responses.c.id.in_(ids)))


def release(connection: Connection, ids: Collection[str]) -> int:
    """Delete segments that nobody refers to any more, and those that only they continued.

    Returns:
        How many were deleted.
    """
    removed = 0
    wanted = set(ids)
    while wanted:
        dead = _dead(connection, wanted)
        if dead and connection.dialect.name != "sqlite":
            # Somebody may continue one of them at this moment. Whoever inserts such a row holds its
            # parent until it is there: wait for that, and look again.
            connection.execute(
                select(segments.c.id)
                .where(segments.c.id.in_(dead))
                .order_by(segments.c.id)
                .with_for_update()
            )
            still = _dead(connection, wanted)
            dead = {name: parent for name, parent in still.items() if name in dead}
        if not dead:
            break
        connection.execute(delete(segments).where(segments.c.id.in_(dead)))
        removed += len(dead)
        # Two dead children of one parent are found together; now the parent may be dead too.
        wanted = {parent for parent in dead.values() if parent is not None} - set(dead)
    return removed


def _unused() -> Select[tuple[str]]:
    """Select the segments that nothing refers to."""
    return select(segments.c.id).where(
        _unreferenced(),
        not_(exists().where(_other.c.parent_id == segments.c.id)),
    )


def _unreferenced() -> ColumnElement[bool]:
    return and_(
        not_(exists().where(responses.c.segment_id == segments.c.id)),
        not_(exists().where(conversations.c.segment_id == segments.c.id)),
    )


def _dead(connection: Connection, ids: Collection[str]) -> dict[str, str | None]:
    """Return the unused ones of some segments and the ancestors that only these keep.

    Returns:
        Id -> id of the parent. An ancestor with two dead children is not among them yet.
    """
    rows = connection.execute(_select_dead(), {"ids": list(ids)})
    return {row.id: row.parent_id for row in rows}


@cache  # to build it takes several times as long as to run it
def _select_dead() -> Select[tuple[str, str | None]]:
    """Select what `_dead` returns, for segments `ids`."""
    columns = (segments.c.id, segments.c.parent_id)
    dead = (
        select(*columns)
        .where(
            segments.c.id.in_(bindparam("ids", expanding=True)),
            _unreferenced(),
            not_(exists().where(_other.c.parent_id == segments.c.id)),
        )
        .cte("dead", recursive=True)
    )
    only_child = not_(
        exists().where(and_(_other.c.parent_id == segments.c.id, _other.c.id != dead.c.id))
    )
    dead = dead.union_all(
        select(*columns)
        .join(dead, segments.c.id == dead.c.parent_id)
        .where(_unreferenced(), only_child)
    )
    # The youngest come first: what is left out is asked for again, by its dead child.
    return select(dead.c.id, dead.c.parent_id).limit(_MOST_DEAD)
