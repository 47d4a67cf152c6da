"""Exports: closed records told to somebody outside, at least once each, keyed by response id.

What is to be exported stands in the database, written with the record itself. A task per sink
claims what is due for a while, delivers it, and notes what came of it; what it claimed before it
died is due again when the claim is over. So a record may be delivered twice, and is never lost:
one that fails is tried for ever, ever more rarely. New records come first, so it harms no other.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from turnwire_server.adapters.ledgers.settings import UsageSettings
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.ledger import LedgerFailure, UsageRecord
from turnwire_server.ports.metrics import ExportLevels

__all__ = ["Claim", "ExportQueue", "Exporter", "UsageSink"]

_log = logging.getLogger("turnwire.ledger")

_LOOK_S: Final = 10.0
"""Longest until it looks again: other processes' claims run out, and nobody tells."""
_CLOSE_S: Final = 2.0
"""How long the delivery that is under way may take when the server stops."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A record that this process is to deliver."""

    record: UsageRecord
    attempts: int
    """Attempts that failed."""


class ExportQueue(Protocol):
    """What is to be exported, kept in the database."""

    async def claim(self, sink: str, *, now: int, until: int, limit: int) -> Sequence[Claim]:
        """Return records that are due at `now`; nobody else gets them before `until`.

        Raises:
            LedgerFailure: The database cannot be asked; so do all methods.
        """
        ...

    async def note(self, sink: str, delivered: Sequence[str], failed: Mapping[str, int]) -> None:
        """Drop what was delivered, and keep what failed for later.

        Args:
            sink: The sink.
            delivered: Response ids.
            failed: Response id -> Unix seconds of the next attempt; each counts as one attempt.
        """
        ...

    async def waiting(self, sink: str) -> tuple[int, int | None]:
        """Return how many records there are, and when the next one is due, None for never."""
        ...


class UsageSink(Protocol):
    """Somebody outside."""

    name: str
    """Its name in the database and in metrics."""
    batch: int
    """Most records of one delivery."""
    patience_s: float
    """Longest that a delivery takes."""

    async def deliver(self, records: Sequence[UsageRecord]) -> Sequence[str]:
        """Deliver records; return the response ids of those that arrived.

        Why others did not is logged by the sink, with ids and without secrets.
        """
        ...

    async def close(self) -> None:
        """Give everything back. Idempotent."""
        ...


class Exporter:
    """Tells one sink, in a task of its own."""

    def __init__(
        self, sink: UsageSink, queue: ExportQueue, *, clock: Clock, settings: UsageSettings
    ) -> None:
        """Make the exporter; `start` it in the running loop.

        Args:
            sink: Who is told.
            queue: What is to be told.
            clock: Time.
            settings: How often and when it tries again.
        """
        self._sink = sink
        self._queue = queue
        self._clock = clock
        self._settings = settings
        self._news = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._count_at = 0.0
        self._backlog = 0
        self._delivered = 0
        self._failures = 0

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """Note that there may be something new."""
        self._news.set()

    def levels(self) -> ExportLevels:
        """Return how it goes."""
        return ExportLevels(self._sink.name, self._backlog, self._delivered, self._failures)

    async def close(self) -> None:
        """Stop; a delivery that takes too long is cut off, and made again by the next start."""
        self._closing.set()
        self.wake()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=_CLOSE_S)
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait((self._task,))
        await self._sink.close()

    async def _run(self) -> None:
        while not self._closing.is_set():
            self._news.clear()
            try:
                wait_s = await self._export()
            except Exception as error:  # outermost frame of the task: it must go on
                reason = error if isinstance(error, LedgerFailure) else type(error).__name__
                _log.error("export stopped for now sink=%s error=%s", self._sink.name, reason)
                wait_s = _LOOK_S
            if wait_s > 0:
                await self._rest(wait_s, self._news)
                # A look and its notes cost as much for one record as for many, and the turn behind
                # the one that just ended begins right now.
                await self._rest(self._settings.export_gather_s, self._closing)

    async def _export(self) -> float:
        """Deliver what is due; return how long there is nothing to do, in seconds."""
        sink = self._sink
        now = self._clock.wall()
        claims = await self._queue.claim(
            sink.name,
            now=now,
            # Twice as long as it takes: a slow machine must not lead to a second delivery.
            until=now + 2 * int(sink.patience_s) + 10,
            limit=sink.batch,
        )
        if claims:
            await self._deliver(claims)
        if len(claims) == sink.batch and self._clock.monotonic() < self._count_at:
            return 0.0  # there may be many more, and counting them takes long
        self._count_at = self._clock.monotonic() + _LOOK_S
        self._backlog, due_at = await self._queue.waiting(sink.name)
        if due_at is None:
            return _LOOK_S
        return min(max(due_at - self._clock.wall(), 0), _LOOK_S)

    async def _deliver(self, claims: Sequence[Claim]) -> None:
        arrived = set(await self._told([claim.record for claim in claims]))
        failed: dict[str, int] = {}
        now = self._clock.wall()
        for claim in claims:
            response_id = claim.record.response_id
            if response_id not in arrived:
                failed[response_id] = now + self._delay_s(claim.attempts)
                if claim.attempts + 1 == self._settings.export_attempts:
                    _log.error(
                        "export fails again and again sink=%s response_id=%s attempts=%d",
                        *(self._sink.name, response_id, claim.attempts + 1),
                    )
        self._delivered += len(arrived)
        self._failures += len(failed)
        await self._queue.note(self._sink.name, sorted(arrived), failed)

    async def _told(self, records: Sequence[UsageRecord]) -> Sequence[str]:
        """Deliver records; one that the sink cannot take in any way holds up no other."""
        try:
            return await self._sink.deliver(records)
        except Exception as bug:  # whatever is wrong with one must not stop all
            if len(records) == 1:
                _log.error(
                    "export failed sink=%s response_id=%s error=%s",
                    *(self._sink.name, records[0].response_id, type(bug).__name__),
                )
                return ()
        return [one for record in records for one in await self._told([record])]

    def _delay_s(self, attempts: int) -> int:
        """Return how long to wait behind a failure with `attempts` before it: whole seconds."""
        settings = self._settings
        most = min(
            settings.export_delay_s * 2 ** min(attempts, 32), settings.export_longest_delay_s
        )
        # Half of it is fixed, so that one that is down is left alone; half is jitter, so that the
        # processes of a cluster do not come back together.
        return max(1, round(random.uniform(most / 2, most)))

    async def _rest(self, seconds: float, unless: asyncio.Event) -> None:
        """Wait for `seconds`, or until something happens."""
        loop = asyncio.get_running_loop()
        nap = loop.create_task(self._clock.sleep(seconds))
        event = loop.create_task(unless.wait())
        try:
            await asyncio.wait((nap, event), return_when=asyncio.FIRST_COMPLETED)
        finally:
            nap.cancel()
            event.cancel()
