"""Usage in the database: kept once, summed up exactly, and claimed by one process at a time."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select

from harness.clock import ManualClock
from harness.stores import stored
from harness.usage import totals, usage_record
from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.settings import DatabaseSettings
from turnwire_server.adapters.database.tables import usage_outbox, usage_records
from turnwire_server.adapters.ledgers.report import UsageSums
from turnwire_server.adapters.ledgers.sql import SqlUsage, database_key
from turnwire_server.adapters.stores.segments import SegmentBook
from turnwire_server.adapters.stores.sql import SqlResponseStore
from turnwire_server.ports.ledger import LedgerFailure

MIDNIGHT = 1_799_971_200  # 2027-01-15T00:00:00Z


async def rows(database, table) -> list[dict]:
    async with database.read() as connection:
        return [dict(row._mapping) for row in (await connection.execute(select(table))).all()]


async def test_a_record_is_kept_as_it_is(database):
    usage = SqlUsage(database)
    big = usage_record("big", input_tokens=2**40, tenant="key_1", model="\N{GRINNING FACE}/m")
    await usage.put([usage_record("one"), big])
    found = {row["response_id"]: row for row in await rows(database, usage_records)}
    assert set(found) == {"one", "big"}
    assert (found["big"]["input_tokens"], found["big"]["model"]) == (2**40, "\N{GRINNING FACE}/m")
    assert await rows(database, usage_outbox) == []


async def test_a_model_s_name_that_no_database_takes_does_not_stop_the_others(database):
    usage = SqlUsage(database)
    await usage.put([usage_record("odd", model="a\0b" + "m" * 300), usage_record("one")])
    names = {row["response_id"]: row["model"] for row in await rows(database, usage_records)}
    assert names == {"odd": "a\ufffdb" + "m" * 253, "one": "sim"}


async def test_the_first_record_of_a_response_counts_and_is_exported_once(database):
    usage = SqlUsage(database, sinks=["file", "webhook"])
    await usage.put([usage_record("one")])
    await usage.put([usage_record("one", output_tokens=99), usage_record("two")])
    await usage.put([usage_record("two", status="interrupted")])
    found = {row["response_id"]: row for row in await rows(database, usage_records)}
    assert found["one"]["output_tokens"] == 20
    assert found["two"]["status"] == "completed"
    exports = [(row["sink"], row["response_id"]) for row in await rows(database, usage_outbox)]
    assert sorted(exports) == [
        *(("file", "one"), ("file", "two"), ("webhook", "one"), ("webhook", "two")),
    ]


async def test_a_record_and_its_export_are_there_together_or_not_at_all(database):
    usage = SqlUsage(database, sinks=["x" * 64, "x" * 64])  # one too many: the key is taken
    with pytest.raises(LedgerFailure, match="fails with"):
        await usage.put([usage_record("one")])
    assert await rows(database, usage_records) == []


async def test_many_records_are_one_batch(database):
    usage = SqlUsage(database, sinks=["file"])
    records = [usage_record(f"r{number}") for number in range(500)]
    await usage.put([records[7]])
    await usage.put(records)
    assert len(await rows(database, usage_records)) == 500
    assert len(await rows(database, usage_outbox)) == 500


async def test_the_ledger_sees_which_responses_are_stored_and_over(database):
    store, ran = SqlResponseStore(database, ManualClock(), SegmentBook()), "in_progress"
    statuses = {"one": "completed", "two": "incomplete", "three": "cancelled", "four": ran}
    for response_id, status in {**statuses, "five": "failed"}.items():
        await store.put(stored(response_id, status=status))
    usage = SqlUsage(database)
    asked = [*statuses, "five", "nowhere"]
    assert await usage.endings(asked) == {
        key: status for key, status in statuses.items() if status != ran
    }
    assert await usage.endings([]) == {}
    await store.close()


async def test_two_processes_put_the_same_records_at_once(connected):
    first, second = SqlUsage(await connected()), SqlUsage(await connected())
    records = [usage_record(f"r{number}") for number in range(50)]
    async with asyncio.timeout(20):
        await asyncio.gather(
            *(usage.put(records[n : n + 10]) for n in range(0, 50, 10) for usage in (first, second))
        )
    [sums] = await first.sums("model")
    assert sums.responses == 50
    assert (
        *(sums.input_tokens, sums.cached_tokens, sums.output_tokens, sums.reasoning_tokens),
    ) == totals(records)


async def test_sums_are_by_key_model_or_day_and_by_status(database):
    usage = SqlUsage(database)
    await usage.put(
        [
            usage_record("a", tenant="key_1", model="m", created_at=MIDNIGHT),
            usage_record("b", tenant="key_1", model="m", created_at=MIDNIGHT + 86_399),
            usage_record("c", tenant="key_1", model="n", created_at=MIDNIGHT + 86_400),
            usage_record("d", tenant="key_2", model="m", created_at=MIDNIGHT, status="failed"),
            usage_record("e", tenant="key_2", model="m", created_at=MIDNIGHT - 1),
        ]
    )
    by_key = await usage.sums("key", since=MIDNIGHT)
    assert by_key == [
        UsageSums("key_1", "m", "completed", 2, 200, 80, 40, 10),
        UsageSums("key_1", "n", "completed", 1, 100, 40, 20, 5),
        UsageSums("key_2", "m", "failed", 1, 100, 40, 20, 5),
    ]
    by_model = await usage.sums("model")
    assert [(each.group, each.status, each.responses) for each in by_model] == [
        *(("m", "completed", 3), ("m", "failed", 1), ("n", "completed", 1)),
    ]
    by_day = await usage.sums("day")
    assert [(each.group, each.model, each.status, each.responses) for each in by_day] == [
        (MIDNIGHT - 86_400, "m", "completed", 1),
        (MIDNIGHT, "m", "completed", 2),
        (MIDNIGHT, "m", "failed", 1),
        (MIDNIGHT + 86_400, "n", "completed", 1),
    ]


async def test_what_is_claimed_is_nobody_elses_until_the_claim_is_over(connected):
    first = SqlUsage(await connected(), sinks=["file", "webhook"])
    second = SqlUsage(await connected(), sinks=["file", "webhook"])
    await first.put([usage_record(f"r{number}") for number in range(10)])
    every = {"now": 100, "until": 160}
    async with asyncio.timeout(20):
        claims = await asyncio.gather(
            *(usage.claim("file", **every, limit=4) for usage in (first, second, first, second))
        )
    ids = [claim.record.response_id for batch in claims for claim in batch]
    # PostgreSQL skips what another transaction looks at: what is left is claimed next.
    ids += [each.record.response_id for each in await first.claim("file", **every, limit=10)]
    assert sorted(ids) == sorted(f"r{number}" for number in range(10))
    assert await second.claim("file", **{**every, "now": 159}, limit=10) == ()
    again = await second.claim("file", **{**every, "now": 160, "until": 200}, limit=20)
    assert len(again) == 10 and {claim.attempts for claim in again} == {0}
    assert again[0].record == usage_record(again[0].record.response_id)
    other_sink = await second.claim("webhook", **every, limit=20)
    assert len(other_sink) == 10


async def test_what_was_delivered_is_gone_and_what_failed_is_due_later(database):
    usage = SqlUsage(database, sinks=["file"])
    await usage.put([usage_record(name) for name in ("one", "two", "three")])
    await usage.claim("file", now=0, until=60, limit=10)
    await usage.note("file", ["one"], {"two": 30, "three": 40})
    assert await usage.waiting("file") == (2, 30)
    [claim] = await usage.claim("file", now=30, until=90, limit=10)
    assert (claim.record.response_id, claim.attempts) == ("two", 1)
    await usage.note("file", [], {"two": 50})
    assert await usage.waiting("file") == (2, 40)
    # What failed comes behind what is new, the longer it has waited the sooner.
    await usage.put([usage_record("four")])
    [first] = await usage.claim("file", now=1000, until=1060, limit=1)
    [second] = await usage.claim("file", now=1000, until=1060, limit=1)
    [third] = await usage.claim("file", now=1000, until=1060, limit=1)
    assert [each.record.response_id for each in (first, second, third)] == ["four", "three", "two"]
    assert third.attempts == 2
    assert await usage.waiting("webhook") == (0, None)


async def test_a_database_that_is_gone_is_a_failure_without_its_address(tmp_path, database):
    usage = SqlUsage(database)
    async with database.write() as connection:
        await connection.exec_driver_sql("DROP TABLE usage_outbox")
        await connection.exec_driver_sql("DROP TABLE usage_records")
    for call in (
        usage.put([usage_record("one")]),
        usage.sums("key"),
        usage.waiting("file"),
    ):
        with pytest.raises(LedgerFailure) as failure:
            await call
        assert str(tmp_path) not in str(failure.value) and "SELECT" not in str(failure.value)


def key_of(url: str) -> str:
    return database_key(Database(DatabaseSettings(url=url)))


def test_a_database_is_called_the_same_by_all_who_use_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert key_of("sqlite:///one.db") == key_of(f"sqlite:///{tmp_path / 'one.db'}")
    assert key_of("sqlite:///one.db") != key_of("sqlite:///two.db")
    server = "postgresql://{}@db.example:5432/turnwire"
    assert key_of(server.format("me:old")) == key_of(server.format("me:new"))
    assert key_of(server.format("me")) != key_of(server.format("me").replace("5432", "5433"))
    assert "db.example" not in key_of(server.format("me"))
