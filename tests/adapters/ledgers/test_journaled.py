"""The ledger on a journal: what a turn writes, what after work moves, what a start closes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.clock import ManualClock
from harness.usage import HeldTable, usage_record
from harness.waiting import until
from turnwire_server.adapters.ledgers.journal import InstanceJournal, take_dead_journals
from turnwire_server.adapters.ledgers.journal_lines import (
    header_line,
    open_line,
    progress_line,
    settled_line,
)
from turnwire_server.adapters.ledgers.journaled import JournaledLedger
from turnwire_server.adapters.ledgers.settings import UsageSettings
from turnwire_server.ports.ledger import INTERRUPTED, LedgerFailure, UsageRecord
from turnwire_server.ports.metrics import ExportLevels

HEADER = header_line("db")


class Ledgers:
    """Makes ledgers of one directory and one table; all are closed in the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.table = HeldTable()
        self.clock = ManualClock()
        self._made: list[JournaledLedger] = []

    def make(
        self, instance_id: str = "me", *, database: str = "db", **settings: Any
    ) -> JournaledLedger:
        journal = InstanceJournal.create(self.directory, instance_id, database=database)
        given = UsageSettings(**{"gather_s": 0.0, **settings})
        ledger = JournaledLedger(journal, self.table, clock=self.clock, settings=given)
        self._made.append(ledger)
        return ledger

    async def started(self, instance_id: str = "me", **settings: Any) -> JournaledLedger:
        ledger = self.make(instance_id, **settings)
        await ledger.start()
        return ledger

    def leave_dead(self, instance_id: str, content: bytes) -> Path:
        self.directory.mkdir(exist_ok=True)
        path = self.directory / f"{instance_id}.journal"
        path.write_bytes(content)
        return path

    def journal(self, instance_id: str = "me") -> bytes:
        return (self.directory / f"{instance_id}.journal").read_bytes()

    async def close(self) -> None:
        self.table.ready.set()
        self.table.failures = 0
        for ledger in self._made:
            await ledger.close()


@pytest.fixture
async def ledgers(tmp_path: Path) -> AsyncIterator[Ledgers]:
    made = Ledgers(tmp_path / "instances")
    yield made
    async with asyncio.timeout(20):
        await made.close()


def run(ledger: JournaledLedger, record: UsageRecord) -> None:
    """Do what a turn does."""
    ledger.open(record.response_id, record.tenant, record.model, record.created_at)
    ledger.settle(record)


async def close(ledger: JournaledLedger, *records: UsageRecord) -> None:
    """Close settled records and wait until the table has them, and nothing else is settled."""
    for record in records:
        ledger.close_record(record)
    await until(lambda: not ledger.usage_levels().settled)


async def test_a_settled_record_is_on_disk_before_settle_returns(ledgers):
    ledger = await ledgers.started()
    record = usage_record("one")
    ledger.open("one", "default", "sim", record.created_at)
    ledger.settle(record)
    assert settled_line(record) in ledgers.journal()
    assert ledgers.table.records == {}


async def test_a_closed_record_is_in_the_table_and_the_journal_is_removed_at_the_end(ledgers):
    ledger = await ledgers.started()
    record = usage_record("one")
    run(ledger, record)
    await close(ledger, record)
    assert ledgers.table.records == {"one": record}
    await ledger.close()
    assert list(ledgers.directory.iterdir()) == []


async def test_closing_twice_counts_once(ledgers):
    ledger = await ledgers.started()
    record = usage_record("one")
    run(ledger, record)
    await close(ledger, record, record)
    for again in (replace(record, output_tokens=99), usage_record("two")):
        run(ledger, again)
        await close(ledger, again)
    assert ledgers.table.records == {"one": record, "two": usage_record("two")}


async def test_what_comes_together_goes_into_the_table_together(ledgers):
    ledger = await ledgers.started()
    ledgers.table.ready.clear()
    records = [usage_record(f"r{number}") for number in range(700)]
    for record in records:
        run(ledger, record)
        ledger.close_record(record)
    async with asyncio.timeout(20):
        await ledgers.table.asked.wait()
    ledgers.table.ready.set()
    await until(lambda: len(ledgers.table.records) == 700)
    assert len(ledgers.table.batches) <= 3


async def test_a_closed_record_waits_for_others_of_the_next_moment(ledgers):
    ledger = await ledgers.started(gather_s=0.25)
    for name in ("one", "two"):
        run(ledger, usage_record(name))
        ledger.close_record(usage_record(name))
        await ledgers.clock.until_sleeping()
        assert ledgers.table.batches == []
    ledgers.clock.advance(0.25)
    await until(lambda: ledgers.table.batches == [2])


async def test_who_waits_for_others_is_moved_when_the_ledger_is_closed(ledgers):
    ledger = await ledgers.started(gather_s=0.25)
    record = usage_record("one")
    run(ledger, record)
    ledger.close_record(record)
    await ledgers.clock.until_sleeping()
    assert ledgers.table.records == {}
    async with asyncio.timeout(20):
        await ledger.close()
    assert set(ledgers.table.records) == {"one"}


async def test_a_table_that_fails_gets_the_records_when_it_works_again(ledgers, caplog):
    ledger = await ledgers.started()
    ledgers.table.failures = 3
    records = [usage_record("one"), usage_record("two")]
    for record in records:
        run(ledger, record)
        ledger.close_record(record)
    for _ in range(3):
        await ledgers.clock.until_sleeping()
        assert ledgers.table.records == {}
        ledgers.clock.advance(20)
    await until(lambda: set(ledgers.table.records) == {"one", "two"})
    assert ledger.usage_levels().table_failures == 3
    assert "usage cannot be moved" in caplog.text


async def test_who_closes_a_record_does_not_wait_for_the_table(ledgers):
    ledger = await ledgers.started()
    ledgers.table.ready.clear()
    for name in ("one", "two"):
        run(ledger, usage_record(name))
        ledger.close_record(usage_record(name))
        async with asyncio.timeout(20):
            await ledgers.table.asked.wait()
    assert ledgers.table.records == {}
    ledgers.table.ready.set()
    await until(lambda: set(ledgers.table.records) == {"one", "two"})


async def test_a_full_disk_is_an_error_line_and_a_metric_and_the_record_is_closed(
    ledgers, monkeypatch, caplog
):
    ledger = await ledgers.started()
    record = usage_record("one")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    run(ledger, record)
    assert ledger.usage_levels().journal_failures == 2
    assert [entry.levelno for entry in caplog.records] == [logging.ERROR] * 2
    assert "response_id=one" in caplog.text
    await close(ledger, record)
    assert ledgers.table.records == {"one": record}


async def test_the_journal_stays_short_while_the_server_works(ledgers):
    ledger = await ledgers.started(journal_bytes=4_000)
    ledger.open("long", "default", "sim", 1)
    for number in range(300):
        record = usage_record(f"r{number}")
        run(ledger, record)
        await close(ledger, record)
        assert len(ledgers.journal()) < 5_000
    assert len(ledgers.table.records) == 300
    assert open_line("long", "default", "sim", 1) in ledgers.journal()
    assert list(take_dead_journals(ledgers.directory)) == []


async def test_a_start_closes_what_a_dead_process_left_once(ledgers):
    done = usage_record("done", status="failed")
    torn = settled_line(usage_record("torn"))[:-9]
    path = ledgers.leave_dead(
        "dead",
        HEADER + settled_line(done) + open_line("ran", "key_1", "m", 7) + torn,
    )
    ledger = await ledgers.started()
    assert ledger.dead_owners() == ["dead"]
    assert ledgers.table.records["done"] == done
    ran = ledgers.table.records["ran"]
    assert (ran.status, ran.tenant, ran.input_tokens, ran.closed_at) == (
        *(INTERRUPTED, "key_1", 0, ledgers.clock.wall()),
    )
    assert set(ledgers.table.records) == {"done", "ran"}
    assert ledger.usage_levels().closed == {"failed": 1, INTERRUPTED: 1}
    assert path.exists()  # until what else it owned is cleared up
    ledger.forget_dead()
    assert not path.exists() and ledger.dead_owners() == []


async def test_what_was_stored_right_before_the_process_died_is_over_as_it_was_stored(ledgers):
    record = usage_record("kept", status=INTERRUPTED)
    opened = open_line("kept", record.tenant, record.model, record.created_at)
    ledgers.leave_dead("dead", HEADER + opened + progress_line(record))
    ledgers.table.stored = {"kept": "incomplete", "of another process": "completed"}
    await ledgers.started()
    closed = replace(record, status="incomplete", closed_at=ledgers.clock.wall())
    assert ledgers.table.records == {"kept": closed}


async def test_what_a_start_did_not_forget_the_next_one_finds_again(ledgers):
    ledgers.leave_dead("dead", HEADER + settled_line(usage_record("done")))
    first = await ledgers.started()
    other = await ledgers.started("other")
    assert (first.dead_owners(), other.dead_owners()) == (["dead"], [])
    await first.close()
    again = await ledgers.started("again")
    assert again.dead_owners() == ["dead"]
    assert len(ledgers.table.records) == 1


async def test_a_start_whose_table_fails_says_so_and_loses_nothing(ledgers):
    ledgers.leave_dead("dead", HEADER + settled_line(usage_record("done")))
    ledgers.table.failures = 1
    ledger = ledgers.make()
    with pytest.raises(LedgerFailure):
        await ledger.start()
    await ledger.close()
    await ledgers.started("next")
    assert set(ledgers.table.records) == {"done"}


async def test_the_journal_of_a_newer_server_is_left_alone(ledgers, caplog):
    path = ledgers.leave_dead("newer", b'["j",2,"db"]\n["z"]\n')
    ledger = await ledgers.started()
    assert ledger.dead_owners() == []
    ledger.forget_dead()
    assert path.exists()
    assert "instance=newer" in caplog.text


async def test_the_journal_of_a_process_with_another_database_is_left_to_its_like(ledgers):
    path = ledgers.leave_dead("dead", HEADER + settled_line(usage_record("done")))
    other = await ledgers.started("other", database="elsewhere")
    other.forget_dead()
    assert other.dead_owners() == [] and path.exists()
    assert ledgers.table.records == {}
    same = await ledgers.started("same")
    assert same.dead_owners() == ["dead"]
    assert set(ledgers.table.records) == {"done"}


async def test_what_runs_when_the_ledger_is_closed_is_left_to_the_next_start(ledgers):
    ledger = await ledgers.started()
    ledger.open("ran", "default", "sim", 1)
    await ledger.close()
    ledger.settle(usage_record("ran"))  # too late, and harmless
    await ledgers.started("next")
    assert ledgers.table.records["ran"].status == INTERRUPTED


async def test_what_waits_when_the_ledger_is_closed_is_moved(ledgers):
    ledger = ledgers.make()  # whose mover does not run
    record = usage_record("one")
    run(ledger, record)
    ledger.close_record(record)
    async with asyncio.timeout(20):
        await ledger.close()
    assert set(ledgers.table.records) == {"one"}


async def test_exporters_live_with_the_ledger_and_hear_of_each_batch(ledgers):
    class Exporter:
        def __init__(self) -> None:
            self.told: list[str] = []

        def start(self) -> None:
            self.told.append("start")

        def wake(self) -> None:
            self.told.append("wake")

        def levels(self) -> ExportLevels:
            return ExportLevels("test", 1, 2, 3)

        async def close(self) -> None:
            self.told.append("close")

    exporter = Exporter()
    journal = InstanceJournal.create(ledgers.directory, "me", database="db")
    ledger = JournaledLedger(
        journal,
        ledgers.table,
        clock=ledgers.clock,
        settings=UsageSettings(gather_s=0.0),
        exporters=[exporter],
    )
    await ledger.start()
    record = usage_record("one")
    run(ledger, record)
    assert ledger.usage_levels().settled == 1
    await close(ledger, record)
    levels = ledger.usage_levels()
    assert (levels.open, levels.settled, levels.closed) == (0, 0, {"completed": 1})
    assert levels.exports == {"test": ExportLevels("test", 1, 2, 3)}
    await ledger.close()
    assert exporter.told == ["start", "wake", "close"]
