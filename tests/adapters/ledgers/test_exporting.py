"""Exports: at least once each, tried again with patience, going on where a dead process stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from harness.clock import ManualClock
from harness.usage import usage_record
from harness.waiting import until
from turnwire_server.adapters.ledgers.exporting import Exporter
from turnwire_server.adapters.ledgers.settings import UsageSettings
from turnwire_server.adapters.ledgers.sql import SqlUsage
from turnwire_server.ports.ledger import LedgerFailure, UsageRecord

WAIT_S = 20.0


class ScriptedSink:
    """Takes what it is told to take."""

    name = "webhook"
    batch = 4
    patience_s = 10.0

    def __init__(self) -> None:
        self.attempts: list[str] = []
        """Response ids, in the order in which they came."""
        self.arrived: list[str] = []
        self.refused: set[str] = set()
        """Response ids that fail."""
        self.ready = asyncio.Event()
        """Cleared to block."""
        self.ready.set()
        self.closed = False

    async def deliver(self, records: Sequence[UsageRecord]) -> Sequence[str]:
        ids = [record.response_id for record in records]
        self.attempts += ids
        await self.ready.wait()
        arrived = [one for one in ids if one not in self.refused]
        self.arrived += arrived
        return arrived

    async def close(self) -> None:
        self.closed = True


class NotingClock(ManualClock):
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        await super().sleep(seconds)


class Exports:
    """One queue, and the exporters of several processes."""

    def __init__(self, usage: SqlUsage, exits: AsyncExitStack) -> None:
        self.usage = usage
        self.clock = NotingClock()
        self._exits = exits

    async def put(self, *names: str) -> None:
        await self.usage.put([usage_record(name) for name in names])

    def exporter(self, sink: ScriptedSink, **settings: Any) -> Exporter:
        given = UsageSettings(**{"export_gather_s": 0.0, **settings})
        exporter = Exporter(sink, self.usage, clock=self.clock, settings=given)
        self._exits.push_async_callback(exporter.close)
        exporter.start()
        return exporter

    async def waiting(self) -> int:
        return (await self.usage.waiting("webhook"))[0]

    async def pass_time(self, condition: Callable[[], object], step_s: float = 1.0) -> None:
        """Move the clock on until `condition` holds."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await self.clock.until_sleeping()
                self.clock.advance(step_s)
                await asyncio.sleep(0)


@pytest.fixture
async def exports(database) -> AsyncIterator[Exports]:
    async with asyncio.timeout(60), AsyncExitStack() as exits:
        yield Exports(SqlUsage(database, sinks=["webhook"]), exits)


async def test_what_is_there_at_the_start_and_what_comes_later_is_delivered(exports):
    await exports.put(*"abcdef")
    sink = ScriptedSink()
    exporter = exports.exporter(sink)
    await until(lambda: len(sink.arrived) == 6, within_s=WAIT_S)
    await exports.clock.until_sleeping()  # it has looked, and there is nothing
    await exports.put("g")
    exporter.wake()
    await until(lambda: sink.arrived[6:] == ["g"], within_s=WAIT_S)
    await until(lambda: exporter.levels().delivered == 7, within_s=WAIT_S)
    await exporter.close()
    assert await exports.waiting() == 0
    assert sorted(sink.attempts) == list("abcdefg")
    assert sink.closed


async def test_new_records_wait_for_others_and_are_delivered_together(exports):
    sink = ScriptedSink()
    exporter = exports.exporter(sink, export_gather_s=1.0)
    await exports.clock.until_sleeping()  # it has looked, and there is nothing
    await exports.put("a")
    exporter.wake()
    await until(lambda: sink.attempts or 1.0 in exports.clock.asked, within_s=WAIT_S)
    await exports.put("b")
    exporter.wake()
    assert sink.attempts == []
    exports.clock.advance(1.0)
    await until(lambda: sorted(sink.attempts) == ["a", "b"], within_s=WAIT_S)


async def test_who_waits_for_others_does_not_hold_up_the_end(exports):
    sink = ScriptedSink()
    exporter = exports.exporter(sink, export_gather_s=1.0)
    await exports.clock.until_sleeping()
    exporter.wake()
    await until(lambda: 1.0 in exports.clock.asked, within_s=WAIT_S)
    async with asyncio.timeout(WAIT_S):
        await exporter.close()
    assert sink.closed


async def test_what_fails_is_tried_again_later_and_later_and_harms_no_other(exports):
    await exports.put("bad", "good")
    sink = ScriptedSink()
    sink.refused = {"bad"}
    started = exports.clock.wall()
    exporter = exports.exporter(sink, export_delay_s=8.0, export_longest_delay_s=20.0)
    tried_at: list[int] = []

    def tried(count: int) -> Callable[[], bool]:
        return lambda: sink.attempts.count("bad") == count

    await until(lambda: exporter.levels().failures == 1, within_s=WAIT_S)
    assert sink.arrived == ["good"]
    for count in (2, 3, 4, 5):
        await exports.pass_time(tried(count))
        tried_at.append(exports.clock.wall() - started)
    gaps = [later - earlier for earlier, later in zip([0, *tried_at], tried_at, strict=False)]
    # 8, 16, 20, 20: each at least half of that; the clock goes on in steps beside the deliveries.
    assert [gap >= least for gap, least in zip(gaps, (4, 8, 10, 10), strict=True)] == [True] * 4
    sink.refused = set()
    await exports.pass_time(lambda: "bad" in sink.arrived)
    assert sink.arrived == ["good", "bad"]


async def test_what_fails_for_long_is_said_once_and_tried_for_ever(exports, caplog):
    await exports.put("bad")
    sink = ScriptedSink()
    sink.refused = {"bad"}
    exporter = exports.exporter(sink, export_attempts=3, export_longest_delay_s=100.0)
    await exports.pass_time(lambda: exporter.levels().failures == 40, step_s=50.0)
    line = "export fails again and again sink=webhook response_id=bad attempts=3"
    assert [record.message for record in caplog.records] == [line]
    await exports.put("good")
    exporter.wake()
    await exports.pass_time(lambda: sink.arrived == ["good"], step_s=0.0)
    sink.refused = set()
    await exports.pass_time(lambda: sink.arrived == ["good", "bad"], step_s=50.0)


async def test_a_record_that_breaks_the_sink_holds_up_no_other(exports, caplog):
    class BrokenSink(ScriptedSink):
        async def deliver(self, records: Sequence[UsageRecord]) -> Sequence[str]:
            if any(record.response_id == "poison" for record in records):
                raise ValueError("a sink's bug")
            return await super().deliver(records)

    await exports.put("a", "poison", "b")
    sink = BrokenSink()
    exporter = exports.exporter(sink)
    await until(lambda: sorted(sink.arrived) == ["a", "b"], within_s=WAIT_S)
    await exports.pass_time(lambda: exporter.levels().failures == 3)
    assert "sink=webhook response_id=poison error=ValueError" in caplog.text
    await exports.put("c")
    exporter.wake()
    await until(lambda: len(sink.arrived) == 3, within_s=WAIT_S)
    assert sorted(sink.arrived) == ["a", "b", "c"]  # each once


async def test_a_restart_goes_on_where_the_attempts_stopped(exports):
    await exports.put("bad")
    sink = ScriptedSink()
    sink.refused = {"bad"}
    exporter = exports.exporter(sink)
    await exports.pass_time(lambda: exporter.levels().failures == 2)
    await exporter.close()
    [claim] = await exports.usage.claim("webhook", now=2**40, until=0, limit=1)
    assert claim.attempts == 2


async def test_what_a_dead_process_had_claimed_is_delivered_by_another_one(exports):
    await exports.put("a", "b")
    stuck, other = ScriptedSink(), ScriptedSink()
    stuck.ready.clear()
    exports.exporter(stuck)
    await until(lambda: len(stuck.attempts) == 2, within_s=WAIT_S)
    exports.exporter(other)
    await exports.clock.until_sleeping()
    assert other.attempts == []  # not while the first one may still be at it
    await exports.pass_time(lambda: len(other.arrived) == 2, step_s=5.0)
    stuck.ready.set()


async def test_two_processes_deliver_everything_once_between_them(exports):
    await exports.put(*(f"r{number}" for number in range(40)))
    sinks = ScriptedSink(), ScriptedSink()
    for sink in sinks:
        exports.exporter(sink)
    await until(lambda: sum(len(sink.arrived) for sink in sinks) == 40, within_s=WAIT_S)
    assert len({*sinks[0].attempts, *sinks[1].attempts}) == 40


async def test_a_database_that_fails_stops_the_export_for_a_while_only(exports, monkeypatch):
    await exports.put("a")
    claim, broken = exports.usage.claim, [True, True]

    async def sometimes(*given: Any, **named: Any) -> Any:
        if broken:
            broken.pop()
            raise LedgerFailure("The database is gone.")
        return await claim(*given, **named)

    monkeypatch.setattr(exports.usage, "claim", sometimes)
    sink = ScriptedSink()
    exports.exporter(sink)
    await exports.pass_time(lambda: sink.arrived == ["a"], step_s=5.0)


async def test_a_blocked_delivery_does_not_hold_up_the_stop(exports, monkeypatch):
    monkeypatch.setattr("turnwire_server.adapters.ledgers.exporting._CLOSE_S", 0.05)
    await exports.put("a")
    sink = ScriptedSink()
    sink.ready.clear()
    exporter = exports.exporter(sink)
    await until(lambda: sink.attempts, within_s=WAIT_S)
    async with asyncio.timeout(WAIT_S):
        await exporter.close()
    assert sink.closed
    assert await exports.waiting() == 1
