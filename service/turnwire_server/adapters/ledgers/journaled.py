"""The ledger of a server with a database: a journal in front of it, exports behind it.

A turn writes two lines to the journal and waits for nothing. After work moves what is settled into
the database, as many records per transaction as came together; what leaves the server afterwards
is told by tasks of their own.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from turnwire_server.adapters.ledgers.journal import (
    DeadJournal,
    InstanceJournal,
    take_dead_journals,
)
from turnwire_server.adapters.ledgers.journal_lines import (
    JournalState,
    closed_line,
    open_line,
    progress_line,
    settled_line,
)
from turnwire_server.adapters.ledgers.settings import UsageSettings
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.ledger import LedgerFailure, UsageRecord
from turnwire_server.ports.metrics import ExportLevels, UsageLevels

__all__ = ["JournaledLedger", "RecordExporter", "UsageTable"]

_log = logging.getLogger("turnwire.ledger")

_BATCH: Final = 500
"""Most records of one transaction."""
_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 10.0
_CLOSE_S: Final = 5.0
"""How long the database may take for the last records; later the next start moves them."""


class UsageTable(Protocol):
    """Where closed records are."""

    async def put(self, records: Sequence[UsageRecord]) -> None:
        """Keep records, all or none; one whose response id is there already changes nothing.

        Raises:
            LedgerFailure: They are not kept.
        """
        ...

    async def endings(self, response_ids: Sequence[str]) -> Mapping[str, str]:
        """Return id -> status of those of the responses that are stored and over.

        Raises:
            LedgerFailure: The database cannot be asked.
        """
        ...


class RecordExporter(Protocol):
    """Tells somebody outside of closed records."""

    def start(self) -> None:
        """Start its task."""
        ...

    def wake(self) -> None:
        """Note that there may be something new to export."""
        ...

    def levels(self) -> ExportLevels:
        """Return how it goes."""
        ...

    async def close(self) -> None:
        """Stop; what is not exported yet is left to the next start. Idempotent."""
        ...


class JournaledLedger:
    """`ports.Ledger` on an instance journal and a table."""

    def __init__(
        self,
        journal: InstanceJournal,
        table: UsageTable,
        *,
        clock: Clock,
        settings: UsageSettings,
        exporters: Sequence[RecordExporter] = (),
    ) -> None:
        """Put the parts together.

        Args:
            journal: The journal of this process.
            table: Where closed records go.
            clock: Time.
            settings: Bounds.
            exporters: Told of each batch of closed records; started and closed here.
        """
        self._journal = journal
        self._table = table
        self._clock = clock
        self._exporters = exporters
        self._gather_s = settings.gather_s
        self._least_size = settings.journal_bytes
        self._rewrite_at = settings.journal_bytes
        self._state = JournalState(database=journal.database)
        self._dead: Sequence[DeadJournal] = ()
        self._waiting: deque[UsageRecord] = deque()
        self._wake = asyncio.Event()
        self._mover: asyncio.Task[None] | None = None
        self._is_closed = False
        self._closed_by_status: dict[str, int] = {}
        self._journal_failures = 0
        self._table_failures = 0

    async def start(self) -> None:
        """Close what dead processes left behind, and start to move and to export records."""
        directory = self._journal.path.parent
        dead = await asyncio.to_thread(take_dead_journals, directory)
        self._dead = [journal for journal in dead if self._is_ours(journal)]
        for journal in self._dead:
            await self._recover(journal)
        self._mover = asyncio.get_running_loop().create_task(self._move())
        for exporter in self._exporters:
            exporter.start()

    def _is_ours(self, journal: DeadJournal) -> bool:
        """Return whether to clear up after the process of a journal; else let it go."""
        if not journal.state.is_known:
            _log.error("journal of another version left alone instance=%s", journal.instance_id)
        elif journal.state.database == self._journal.database:
            return True
        journal.let_go()
        return False

    async def _recover(self, journal: DeadJournal) -> None:
        """Close the records of a dead process; doing it again changes nothing."""
        running = list(journal.state.open)
        endings: dict[str, str] = {}
        for start in range(0, len(running), _BATCH):
            endings.update(await self._table.endings(running[start : start + _BATCH]))
        records = journal.state.records(self._clock.wall(), endings)
        for start in range(0, len(records), _BATCH):
            batch = records[start : start + _BATCH]
            await self._table.put(batch)
            self._count(batch)
        if records or journal.state.bad_lines:
            _log.warning(
                "usage of a dead process closed instance=%s settled=%d interrupted=%d unread=%d",
                journal.instance_id,
                len(journal.state.settled),
                len(journal.state.open),
                journal.state.bad_lines,
            )

    # Inside a turn: nothing here waits or raises.

    def open(self, response_id: str, tenant: str, model: str, created_at: int) -> None:
        """Note that the response runs."""
        self._state.add_open(response_id, tenant, model, created_at)
        self._write(open_line(response_id, tenant, model, created_at), response_id)

    def progress(self, record: UsageRecord) -> None:
        """Note what an open response used until now."""
        self._state.add_progress(record)
        self._write(progress_line(record), record.response_id)

    def settle(self, record: UsageRecord) -> None:
        """Note what the response used."""
        self._state.add_settled(record)
        self._write(settled_line(record), record.response_id)

    def _write(self, line: bytes, response_id: str) -> None:
        """Append a line; what is not written is in memory still, and closed if we live on."""
        try:
            if self._is_closed:
                raise OSError("the ledger is closed")
            self._journal.append(line)
        except OSError as error:
            self._journal_failures += 1
            _log.error(
                "journal cannot be written error=%s response_id=%s",
                error.strerror or "closed",
                response_id,
            )

    # After work.

    def close_record(self, record: UsageRecord) -> None:
        """Move the record with those of the next moment; `close` moves what is left."""
        self._waiting.append(record)
        self._wake.set()

    async def _move(self) -> None:
        """Move records into the table as they come; try again for as long as it fails.

        Each waits a little for others: a transaction is dear, and the next turn begins right now.
        """
        failures = 0
        while True:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            if not failures and len(self._waiting) < _BATCH:
                await self._clock.sleep(self._gather_s)
            try:
                await self._move_batch()
                failures = 0
            except Exception as error:  # outermost frame of the task: it must go on
                failures += 1
                self._table_failures += 1
                _log.error(
                    "usage cannot be moved waiting=%d failures=%d error=%s",
                    len(self._waiting),
                    failures,
                    error if isinstance(error, LedgerFailure) else type(error).__name__,
                )
                most = min(_FIRST_DELAY_S * 2 ** min(failures, 16), _LONGEST_DELAY_S)
                await self._clock.sleep(random.uniform(most / 2, most))

    async def _move_batch(self) -> None:
        count = min(len(self._waiting), _BATCH)
        # They stay in the queue until they are moved, so that nothing is lost on the way.
        batch = {self._waiting[n].response_id: self._waiting[n] for n in range(count)}
        await self._table.put(list(batch.values()))
        self._count(batch.values())
        self._state.add_closed(batch)
        self._note_closed(list(batch))
        for _ in range(count):
            self._waiting.popleft()
        for exporter in self._exporters:
            exporter.wake()

    def _note_closed(self, response_ids: Sequence[str]) -> None:
        """Note in the journal what the database has, and keep the journal short."""
        try:
            self._journal.append(closed_line(response_ids))
            if self._journal.size >= self._rewrite_at:
                self._journal.rewrite(self._state.lines())
                # What is open may be long itself: it is not written again and again.
                self._rewrite_at = max(self._least_size, 2 * self._journal.size)
        except OSError as error:  # a record that is closed twice counts once
            self._journal_failures += 1
            _log.error("journal cannot be written error=%s", error.strerror)

    # Other processes.

    def dead_owners(self) -> Sequence[str]:
        """Return the ids of the dead processes that `start` found."""
        return [journal.instance_id for journal in self._dead]

    def forget_dead(self) -> None:
        """Remove the journals of the dead processes."""
        dead, self._dead = self._dead, ()
        for journal in dead:
            journal.remove()

    # The end.

    async def close(self) -> None:
        """Move what waits, stop exporting, and remove the journal if nothing in it is open."""
        if self._is_closed:
            return
        if self._mover is not None:
            self._mover.cancel()
            await asyncio.wait((self._mover,))
        try:
            async with asyncio.timeout(_CLOSE_S):
                while self._waiting:
                    await self._move_batch()
        except (LedgerFailure, TimeoutError):
            _log.error("usage left to the next start waiting=%d", len(self._waiting))
        finally:
            for exporter in self._exporters:
                await exporter.close()
            self._is_closed = True
            for journal in self._dead:
                journal.let_go()
            self._dead = ()
            self._journal.close(remove=not self._state.open and not self._state.settled)

    def usage_levels(self) -> UsageLevels:
        """Return what the metrics show."""
        return UsageLevels(
            open=len(self._state.open),
            settled=len(self._state.settled),
            closed=dict(self._closed_by_status),
            journal_failures=self._journal_failures,
            table_failures=self._table_failures,
            exports={levels.sink: levels for levels in (e.levels() for e in self._exporters)},
        )

    def _count(self, records: Iterable[UsageRecord]) -> None:
        for record in records:
            count = self._closed_by_status.get(record.status, 0)
            self._closed_by_status[record.status] = count + 1
