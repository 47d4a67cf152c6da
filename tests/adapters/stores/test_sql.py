"""Responses in a database: what is written, and what other processes and later ones find."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import event, func, select

from harness.stores import Backends, SqlStores, message, sqlite_url, stored
from turnwire_server.adapters.database.tables import response_items, responses, segments
from turnwire_server.ports.store import IdempotencyKeyTaken, StoredResponse, StoreFailure
from turnwire_server.session.conversation import EMPTY
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tokens import TokenIds

LONG = "the session keeps what is there " * 40


def prompt(ids: TokenIds, fingerprint: str = "model 1") -> Prompt:
    return Prompt(fingerprint, ids, 2, (7, 8))


async def rows(stores: SqlStores) -> Sequence[Any]:
    async with stores.database.read() as connection:
        return (await connection.execute(select(segments).order_by(segments.c.id))).all()


async def chain(stores: SqlStores, length: int) -> list[StoredResponse]:
    """Put a chain of responses whose token ids grow as those of turns do."""
    ids, records = TokenIds(range(100)), []
    for number in range(length):
        ids = ids.extended(range(number, number + 50))
        record = stored(
            f"r{number}",
            message(f"in{number}", LONG),
            parent=records[-1] if records else None,
            output=(message(f"out{number}", role="assistant"),),
            prompt=prompt(ids),
        )
        await stores.responses.put(record)
        records.append(record)
    return records


async def test_a_turn_writes_what_is_new_only(sql_backend: Backends) -> None:
    stores = await sql_backend.open_sql()
    await chain(stores, 20)
    found = await rows(stores)
    assert len(found) == 20
    first, *later = found
    assert first.parent_id is None
    assert (first.kept_ids, len(first.ids)) == (0, 4 * 150)
    for number, (before, row) in enumerate(zip(found, later, strict=False), 1):
        assert row.parent_id == before.id
        assert (row.kept_ids, len(row.ids)) == (100 + 50 * number, 4 * 50)
        assert len(row.items) < len(LONG) + 200
        assert len(row.facts) < len(LONG) + 300  # the newest user text, which is a new one


async def test_a_later_process_continues_with_the_same_token_ids(sql_backend: Backends) -> None:
    records = await chain(await sql_backend.open_sql(), 20)
    later = await sql_backend.open_sql()
    found = await later.responses.get("r19", tenant="a")
    assert found is not None
    assert found.prompt == records[-1].prompt
    assert found.conversation.encoded_items() == records[-1].conversation.encoded_items()
    # And writes what it adds only.
    assert found.prompt is not None
    following = stored(
        "r20", message("in20"), parent=found, prompt=prompt(found.prompt.ids.extended([1, 2]))
    )
    await later.responses.put(following)
    newest = (await rows(later))[-1]
    assert (newest.kept_ids, len(newest.ids)) == (len(found.prompt.ids), 8)
    third = await (await sql_backend.open_sql()).responses.get("r20", tenant="a")
    assert third is not None
    assert third.prompt == following.prompt
    assert third.conversation.item_count == 41


async def test_forks_and_new_renderings_keep_the_ids_that_they_share(
    sqlite_backend: Backends,
) -> None:
    stores = await sqlite_backend.open_sql()
    [first] = await chain(stores, 1)
    assert first.prompt is not None
    ids = first.prompt.ids
    rendered_again = TokenIds([*ids.as_array(0, 120), 9, 9, *range(5000)])
    variants = {
        "grown": ids.extended([1]),
        "fork": ids.extended([2, 3]),
        "again": rendered_again,
        "other": TokenIds([5]),
        "shorter": TokenIds(ids.as_array(0, 30)),
        "none": None,
    }
    for name, wanted in variants.items():
        record = stored(
            name, message(name), parent=first, prompt=None if wanted is None else prompt(wanted)
        )
        await stores.responses.put(record)
    kept = {row.items: row.kept_ids for row in await rows(stores)}
    assert sorted(kept.values()) == [0, 0, 0, 30, 120, 150, 150]
    later = await sqlite_backend.open_sql()
    for name, wanted in variants.items():
        found = await later.responses.get(name, tenant="a")
        assert found is not None
        assert (found.prompt and found.prompt.ids) == wanted
    # A child of one without ids has all of its own.
    found = await later.responses.get("none", tenant="a")
    child = stored("child", message("c"), parent=found, prompt=prompt(TokenIds([1, 2])))
    await later.responses.put(child)
    found = await (await sqlite_backend.open_sql()).responses.get("child", tenant="a")
    assert found is not None
    assert found.prompt == child.prompt


async def test_a_chain_that_hangs_from_unstored_turns_is_kept_whole(sql_backend: Backends) -> None:
    stores = await sql_backend.open_sql()
    [first] = await chain(stores, 1)
    # Two turns with store:false, then one that is stored.
    unstored = first.conversation.extended([message("u1")]).extended([message("u2")])
    kept = stored("kept", message("m"), base=unstored)
    await stores.responses.put(kept)
    alone = stored("alone", message("m"), base=EMPTY.extended([message("u3")]))
    await stores.responses.put(alone)
    later = await sql_backend.open_sql()
    for record in (kept, alone):
        found = await later.responses.get(record.response_id, tenant="a")
        assert found is not None
        assert found.conversation.encoded_items() == record.conversation.encoded_items()
    assert [bool(row.parent_id) for row in await rows(stores)] == [False, True, False]


async def test_a_child_of_a_deleted_parent_is_kept_whole(sql_backend: Backends) -> None:
    stores, others = [await sql_backend.open_sql() for _ in range(2)]
    records = await chain(stores, 3)
    for record in reversed(records):
        await others.responses.delete(record.response_id, tenant="a")
    assert await rows(stores) == []
    # A connection that still has the conversation goes on with it.
    child = stored("child", message("m"), parent=records[-1], prompt=records[-1].prompt)
    await stores.responses.put(child)
    found = await others.responses.get("child", tenant="a")
    assert found is not None
    assert found.conversation.encoded_items() == child.conversation.encoded_items()
    assert found.prompt == child.prompt
    assert [row.parent_id for row in await rows(stores)] == [None]


async def test_one_that_is_over_takes_the_place_of_one_that_ran(sql_backend: Backends) -> None:
    stores = await sql_backend.open_sql()
    [first] = await chain(stores, 1)
    running = stored("r", message("m"), parent=first, status="in_progress", owner="i")
    await stores.responses.put(running)
    seen = await (await sql_backend.open_sql()).responses.get("r", tenant="a")
    assert seen is not None and not seen.is_over
    done = stored("r", message("m"), parent=first, output=(message("o"),), background=True)
    await stores.responses.put(done)
    assert len(await rows(stores)) == 2
    async with stores.database.read() as connection:
        assert await connection.scalar(select(func.count()).select_from(responses)) == 2
        assert await connection.scalar(select(func.count()).select_from(response_items)) == 4


async def test_the_next_turn_finds_its_parent_without_the_database(
    sqlite_backend: Backends,
) -> None:
    stores = await sqlite_backend.open_sql(verify_s=5.0)
    [record] = await chain(stores, 1)
    statements = noted(stores)
    assert await stores.responses.get("r0", tenant="a") is record
    assert statements == []
    sqlite_backend.clock.advance(6)
    assert await stores.responses.get("r0", tenant="a") is record
    assert len(statements) == 1
    assert await stores.responses.get("r0", tenant="a") is record
    assert len(statements) == 1


async def test_what_another_process_deleted_is_noticed_within_the_bound(
    sql_backend: Backends,
) -> None:
    ours, theirs = [await sql_backend.open_sql(verify_s=5.0) for _ in range(2)]
    await chain(ours, 1)
    assert await theirs.responses.delete("r0", tenant="a") is True
    sql_backend.clock.advance(5)
    assert await ours.responses.get("r0", tenant="a") is None
    assert await ours.responses.find_item("in0", tenant="a") is None


async def test_memory_is_bounded_and_what_is_shared_counts_once(sqlite_backend: Backends) -> None:
    stores = await sqlite_backend.open_sql(cache_bytes=60_000)
    recent = stores.responses._recent
    await chain(stores, 10)
    assert len(recent) == 10  # each has its own 1,300 characters
    held = recent.byte_count
    assert 10 * len(LONG) < held < 60_000
    await chain_more(stores, 100)
    assert recent.byte_count <= 60_000
    assert 0 < len(recent) < 100
    assert await stores.responses.get("r0", tenant="a") is not None
    while len(recent):
        recent.drop(next(iter(recent._entries)))
    assert recent.byte_count == 0


async def chain_more(stores: SqlStores, count: int) -> None:
    for number in range(count):
        await stores.responses.put(stored(f"more{number}", message(f"x{number}", LONG)))


async def test_turns_that_end_together_share_a_transaction(sql_backend: Backends) -> None:
    stores = await sql_backend.open_sql()
    commits: list[object] = []
    for engine in stores.database.sync_engines:
        event.listen(engine, "commit", commits.append)
    puts = [stores.responses.put(stored(f"r{n}", message(f"m{n}"))) for n in range(200)]
    async with asyncio.timeout(20):
        await asyncio.gather(*puts)
    assert 1 <= len(commits) <= 3


async def test_one_that_cannot_be_written_does_not_take_others_with_it(
    sql_backend: Backends,
) -> None:
    stores = await sql_backend.open_sql()
    await stores.responses.put(stored("r1", message("m1")))
    await stores.responses.put(stored("theirs", message("m1"), tenant="b"))
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(
            stores.responses.put(stored("r1", message("m2"))),  # in the place of the first
            stores.responses.put(stored("theirs", message("m2"))),  # another tenant's id
            stores.responses.put(stored("r3", message("m3"))),
            return_exceptions=True,
        )
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreFailure, type(None)]
    assert await stores.responses.find_item("m2", tenant="a") == message("m2")
    assert await stores.responses.get("r3", tenant="a") is not None
    theirs = await stores.responses.get("theirs", tenant="b")
    assert theirs is not None and theirs.item_ids == ("m1",)


def begun(response_id: str, key: str | None, **changed: Any) -> StoredResponse:
    """Return a response that is kept from its beginning."""
    members = {"status": "in_progress", "owner": "i", "idempotency_key": key, **changed}
    return stored(response_id, message(f"m_{response_id}"), **members)


async def test_a_response_is_kept_from_its_beginning_without_asking_first(
    sql_backend: Backends,
) -> None:
    stores = await sql_backend.open_sql()
    for record in (begun("r1", "key"), begun("r2", None, background=True)):
        statements = noted(stores)
        await stores.responses.put(record)
        assert all(statement.startswith("INSERT") for statement in statements)
        assert await stores.responses.get(record.response_id, tenant="a") is not None


async def test_of_a_response_that_has_its_key_no_other_holder_is_looked_for(
    sql_backend: Backends,
) -> None:
    stores = await sql_backend.open_sql()
    await stores.responses.put(begun("r1", "key"))
    statements = noted(stores)
    await stores.responses.put(stored("r1", message("m_r1"), idempotency_key="key"))
    asking = [statement for statement in statements if "idempotency_key =" in statement]
    assert [statement for statement in asking if statement.startswith("SELECT")] == []
    found = await stores.responses.find_by_key("a", "key")
    assert found is not None and (found.response_id, found.is_over) == ("r1", True)


async def test_a_response_that_changes_its_key_takes_none_that_is_held(
    sql_backend: Backends,
) -> None:
    stores = await sql_backend.open_sql()
    await stores.responses.put(begun("r1", "one"))
    await stores.responses.put(begun("r2", "two"))
    with pytest.raises(IdempotencyKeyTaken):
        await stores.responses.put(stored("r2", message("m_r2"), idempotency_key="one"))
    holders = [await stores.responses.find_by_key("a", key) for key in ("one", "two")]
    assert [holder and holder.response_id for holder in holders] == ["r1", "r2"]


async def test_of_those_that_begin_together_only_one_whose_key_is_held_is_refused(
    sql_backend: Backends,
) -> None:
    stores = await sql_backend.open_sql()
    now = sql_backend.clock.wall()
    await stores.responses.put(begun("held", "held", expires_at=now + 100))
    await stores.responses.put(begun("old", "old", expires_at=now + 10))
    sql_backend.clock.advance(20)
    expires_at = now + 200
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(
            stores.responses.put(begun("r1", "held", expires_at=expires_at)),
            stores.responses.put(begun("r2", "old", expires_at=expires_at)),
            stores.responses.put(begun("r3", "new", expires_at=expires_at)),
            stores.responses.put(begun("r4", "new", expires_at=expires_at)),
            stores.responses.put(stored("r5", message("m5"), expires_at=expires_at)),
            return_exceptions=True,
        )
    none, taken = type(None), IdempotencyKeyTaken
    assert [type(outcome) for outcome in outcomes] == [taken, none, none, taken, none]
    holders = [await stores.responses.find_by_key("a", key) for key in ("held", "old", "new")]
    assert [holder and holder.response_id for holder in holders] == ["held", "r2", "r3"]
    assert await stores.responses.get("r5", tenant="a") is not None
    assert len(await rows(stores)) == 4


async def test_servers_that_take_the_same_keys_in_other_orders_do_not_deadlock(
    sql_backend: Backends, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = await sql_backend.open_sql(), await sql_backend.open_sql()
    for turn in range(4):
        keys = [f"{turn}_{number}" for number in range(100)]
        puts = [one.responses.put(begun(f"a{key}", key)) for key in keys]
        puts += [other.responses.put(begun(f"b{key}", key)) for key in reversed(keys)]
        with caplog.at_level(logging.INFO):
            async with asyncio.timeout(20):
                outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert Counter(map(type, outcomes)) == {type(None): 100, IdempotencyKeyTaken: 100}
    fallen_back = [line for line in caplog.messages if line.startswith("writing one by one")]
    kinds = {line.rpartition("=")[2] for line in fallen_back}
    assert kinds <= {"IntegrityError", "UniqueViolationError"}


async def test_a_put_that_was_cancelled_while_it_waited_harms_nobody(
    sqlite_backend: Backends,
) -> None:
    stores = await sqlite_backend.open_sql()
    tasks = [
        asyncio.ensure_future(stores.responses.put(stored(f"r{n}", message(f"m{n}"))))
        for n in range(3)
    ]
    await asyncio.sleep(0)
    tasks[1].cancel()
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        asyncio.CancelledError,
        type(None),
    ]


async def test_closing_finishes_what_is_being_written(sqlite_backend: Backends) -> None:
    stores = await sqlite_backend.open_sql()
    put = asyncio.ensure_future(stores.responses.put(stored("r", message("m"))))
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await stores.responses.close()
        await put
    with pytest.raises(StoreFailure):
        await stores.responses.put(stored("late", message("m")))
    later = await sqlite_backend.open_sql()
    assert await later.responses.get("r", tenant="a") is not None


async def test_failures_hold_nothing_of_what_was_written(sqlite_backend: Backends) -> None:
    stores = await sqlite_backend.open_sql()
    async with stores.database.write() as connection:
        await connection.exec_driver_sql("DROP TABLE response_items")
    with pytest.raises(StoreFailure) as failure:
        await stores.responses.put(stored("r", message("m", "a secret")))
    told = repr(failure.value) + repr(failure.value.__cause__) + str(failure.value)
    assert "secret" not in told and "OperationalError" in told


# Removing.


async def test_prune_removes_what_has_expired_and_nothing_that_is_needed(
    sql_backend: Backends,
) -> None:
    stores = await sql_backend.open_sql()
    records = await chain(stores, 3)  # they expire after 100 s
    later = sql_backend.clock.wall() + 1000
    child = stored("child", message("m"), parent=records[1], expires_at=later)
    await stores.responses.put(child)
    sql_backend.clock.advance(100)
    assert await stores.responses.prune() == (3, 0)
    assert stores.responses.dropped["expired"] == 3
    # r0 and r1 are the child's context; r2 was nobody's.
    assert len(await rows(stores)) == 3
    fresh = await sql_backend.open_sql()
    found = await fresh.responses.get("child", tenant="a")
    assert found is not None
    assert found.conversation.encoded_items() == child.conversation.encoded_items()
    sql_backend.clock.advance(1000)
    assert await stores.responses.prune() == (1, 0)
    assert await rows(stores) == []
    assert await stores.responses.prune() == (0, 0)


async def test_prune_removes_segments_that_nobody_refers_to(sql_backend: Backends) -> None:
    stores = await sql_backend.open_sql()
    await chain(stores, 3)
    async with stores.database.write() as connection:
        await connection.execute(response_items.delete())
        await connection.execute(responses.delete())
    assert await stores.responses.prune() == (0, 3)
    assert await rows(stores) == []


async def test_a_long_chain_is_read_and_removed_as_a_whole(sql_backend: Backends) -> None:
    stores = await sql_backend.open_sql()
    records = await chain(stores, 300)
    found = await (await sql_backend.open_sql()).responses.get("r299", tenant="a")
    assert found is not None
    assert found.prompt == records[-1].prompt
    kept = ["r299", "r250"]
    async with stores.database.write() as connection:  # as if the others had expired before
        others = responses.c.id.not_in(kept)
        await connection.execute(
            response_items.delete().where(response_items.c.response_id.not_in(kept))
        )
        await connection.execute(responses.delete().where(others))
    await stores.responses.delete("r299", tenant="a")
    assert len(await rows(stores)) == 251
    await stores.responses.delete("r250", tenant="a")
    assert await rows(stores) == []


async def test_what_was_deleted_is_in_no_file(sqlite_backend: Backends, tmp_path: Any) -> None:
    stores = await sqlite_backend.open_sql()
    other = await sqlite_backend.open_sql()
    for number in range(50):
        await stores.responses.put(stored(f"r{number}", message(f"m{number}", LONG)))
    secret = "XYZZY-" * 3000  # more than a page
    await stores.responses.put(
        stored("secret", message("s", secret), output=(message("o", "PLUGH"),))
    )
    assert await other.responses.get("secret", tenant="a") is not None
    assert sqlite_url(tmp_path) == sqlite_backend.url
    assert b"XYZZY" in content(tmp_path) and b"PLUGH" in content(tmp_path)
    await stores.responses.delete("secret", tenant="a")
    assert b"XYZZY" not in content(tmp_path)
    assert b"PLUGH" not in content(tmp_path)
    assert b"the session keeps" in content(tmp_path)


async def test_what_could_not_be_scrubbed_while_others_read_is_scrubbed_later(
    sqlite_backend: Backends, tmp_path: Any
) -> None:
    stores = await sqlite_backend.open_sql()
    other = await sqlite_backend.open_sql()
    await stores.responses.put(stored("secret", message("s", "XYZZY")))
    async with other.database.read() as connection:
        await connection.execute(select(responses.c.id))
        await stores.responses.delete("secret", tenant="a")
        assert stores.database.needs_scrub.is_set()
        assert b"XYZZY" in content(tmp_path)
    assert await stores.database.scrub() is True
    assert not stores.database.needs_scrub.is_set()
    assert b"XYZZY" not in content(tmp_path)


def content(folder: Any) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def noted(stores: SqlStores) -> list[str]:
    """Return the list that gets the statements from now on."""
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        if not arguments[2].startswith("BEGIN"):
            statements.append(arguments[2])

    for engine in stores.database.sync_engines:
        event.listen(engine, "before_cursor_execute", note)
    return statements
