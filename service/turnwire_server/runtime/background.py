"""Turns that no connection owns: each runs to its end, and whoever asks is told of it.

Background responses are such turns, and so are those whose request has an idempotency key. Their
events go into a log, not to a wire. A client that creates, joins or resumes such a turn follows it
from where it wants to; its going away ends its following and nothing else. The log is kept for a
while after the end, within bounds; then the store's response is what is left.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from turnwire.v1 import client_event_pb2, error_pb2, response_pb2, server_event_pb2
from turnwire_server.runtime.event_log import EventLog, Gap, Seen
from turnwire_server.runtime.following import EndlessOutlet, Follower
from turnwire_server.runtime.host import SessionHost, Wire
from turnwire_server.runtime.keeping import Keeping
from turnwire_server.runtime.outbox import Sink
from turnwire_server.runtime.run import TurnRun
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import TERMINAL_ARMS, Delta, Outgoing

if TYPE_CHECKING:
    from turnwire_server.runtime.services import Services

__all__ = ["DetachedTurn", "DetachedTurns"]

_RETRY_AFTER_S = 1
_COMING_S = 1.0
"""Within this the client that began a turn is there, or has hung up."""
_NO_OUTCOME = Rejection(error_pb2.ERROR_REASON_SERVER_ERROR, "The turn ended without an outcome.")


class DetachedTurn:
    """One turn and its log."""

    def __init__(
        self,
        turns: DetachedTurns,
        services: Services,
        create: client_event_pb2.ResponseCreate,
        *,
        size: int,
        wire: Wire,
        tenant: str,
        keeping: Keeping,
    ) -> None:
        """Start it. Use `DetachedTurns.start`."""
        loop = asyncio.get_running_loop()
        self._turns = turns
        self._services = services
        self.tenant = tenant
        self.is_background = create.background
        self.is_stored = create.store or not create.HasField("store")
        self.followers: set[Follower] = set()
        self.terminal: server_event_pb2.ServerEvent | None = None
        """The terminal event, or the `error` that refused the turn; None before it."""
        self.ended_at = 0.0
        """Seconds on the clock of the end."""
        self._first: server_event_pb2.ServerEvent | None = None
        self._log = EventLog(services.settings.background.response_log_bytes)
        self._log_start = 0
        """Number of the first event that the log was given."""
        self._next_number = 0
        self._begun: asyncio.Future[None] = loop.create_future()
        self._over: asyncio.Future[None] = loop.create_future()
        self.attending = 0
        """How many clients wait for it or follow it."""
        self._expecting = 0  # those too that are there and do neither just now
        self._grace: asyncio.Task[None] | None = None

        self._idle = asyncio.Event()
        self._host = SessionHost(
            services, EndlessOutlet(self._take), wire=wire, tenant=tenant, is_persistent=False
        )
        self._host.receive(client_event_pb2.ClientEvent(response_create=create), size)
        self.response_id = ""
        """Id of the response; "" when there is none, because the create was refused at once."""
        self._run: TurnRun | None = None
        for run in self._host.runs:
            self._run, self.response_id = run, run.turn.response_id
            run.keeping = keeping
        self._host.on_progress = self._note_progress
        self._host.close_input()
        self._task = loop.create_task(self._live())

    # What it is.

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self._over.done()

    @property
    def was_refused(self) -> bool:
        """Whether nothing ran: the turn was refused, or never began."""
        return self.is_over and (self._first is None or self._first.HasField("error"))

    @property
    def is_unattended(self) -> bool:
        """Whether it runs though no client waits for it, or needs to."""
        return not self.is_over and (self.is_background or self._grace is not None)

    @property
    def log_bytes(self) -> int:
        """What its log takes, about."""
        return self._log.bytes

    @property
    def newest(self) -> int:
        """Number of its newest event, -1 before the first."""
        return self._next_number - 1

    def state(self) -> response_pb2.Response | None:
        """Return the response as it stands, a new message; None once the store knows better."""
        if self._run is None or self._run.is_over or not self._run.has_begun:
            return None
        response = self._run.assembler.response
        if response.status != response_pb2.RESPONSE_STATUS_IN_PROGRESS:
            return None  # the end is told by what is kept of it, not a moment before
        copy = response_pb2.Response()
        copy.CopyFrom(response)
        return copy

    def missed(self, after: int) -> list[Outgoing] | Gap:
        """Return the events so far with numbers above `after`; a gap when one is not kept."""
        if not len(self._log):
            return [] if after + 1 >= self._next_number else Gap(None)
        is_before = after + 1 == self._log_start
        return self._log.after(() if is_before else (Seen(None, self.response_id, after),))

    # For clients.

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Let it go on for a client that is there, though it waits for no event just now."""
        self._expecting += 1
        self._stop_grace()
        try:
            yield
        finally:
            self._expecting -= 1
            if not (self._expecting or self.is_over or self.is_background):
                # Without room it still goes on until whoever called has had its say: a client
                # that has heard the beginning may be about to follow.
                has_room = self._turns.refusal(self.tenant) is None
                self.await_client(grace_s=None if has_room else 0.0)

    async def opening(self) -> server_event_pb2.ServerEvent:
        """Wait for the first event and return it. Cancelling leaves the turn alone."""
        with self._attended():
            await asyncio.shield(self._begun)
        return self._first or _NO_OUTCOME.event()

    async def outcome(self) -> server_event_pb2.ServerEvent:
        """Wait for the terminal event and return it. Cancelling leaves the turn alone."""
        with self._attended():
            await asyncio.shield(self._over)
        return self.terminal or _NO_OUTCOME.event()

    async def follow(self, sink: Sink, *, after: int = -1, heartbeat_s: float) -> None:
        """Write the events after number `after` as they come, up to the terminal event.

        A client that has the terminal event gets nothing more; one that believes to be behind
        it gets it. Cancelling leaves the turn alone.

        Args:
            sink: Where to.
            after: Number of the newest event that the client has, -1 for none.
            heartbeat_s: Seconds of silence after which the sink gives a sign of life.
        """
        follower = Follower(
            self,
            sink,
            after=after,
            settings=self._services.settings.outbox,
            clock=self._services.clock,
            heartbeat_s=heartbeat_s,
        )
        with self._attended():
            await follower.run()

    def cancel(self) -> None:
        """End it as its client's cancel would: the engine is told in this very call."""
        if not self.is_over:
            self._host.cancel(self.response_id)

    async def ended(self) -> None:
        """Wait until nothing of it runs any more. Cancelling leaves it alone."""
        await asyncio.wait((self._task,))

    def when_over(self, call: Callable[[], None]) -> None:
        """Let `call` be called soon after the terminal event."""
        self._over.add_done_callback(lambda _: call())

    def await_client(self, *, grace_s: float | None = None) -> None:
        """Let it go on without a client for a while; None for as long as the settings say."""
        if grace_s is None:
            grace_s = self._services.settings.idempotency.grace_s
        self._grace = asyncio.get_running_loop().create_task(self._cancel_later(grace_s))

    def interrupt(self) -> None:
        """End it because the server is stopped: its response will have failed."""
        if self._run is not None:
            self._run.is_interrupted = True
        self._host.cut()

    def drop_log(self) -> None:
        """Forget the events so far, to make room."""
        self._log = EventLog(self._services.settings.background.response_log_bytes)
        self._log_start = self._next_number

    # Private.

    async def _live(self) -> None:
        try:
            await self._idle.wait()
            await self._host.finish()
        finally:
            self._host.forget()
            self.ended_at = self._services.clock.monotonic()
            self._run = None  # it holds the whole conversation
            for future in (self._begun, self._over):
                if not future.done():
                    future.set_result(None)
            for follower in list(self.followers):
                follower.stop()
            self._stop_grace()
            self._turns.ended(self)

    def _note_progress(self) -> None:
        if self._host.session.is_idle:
            self._idle.set()

    def _take(self, event: Outgoing) -> None:
        """Log an event of the turn and tell those who follow it."""
        if not isinstance(event, Delta):
            if self._first is None:
                self._first = event
                self._begun.set_result(None)
            if event.WhichOneof("event") in TERMINAL_ARMS:
                self.terminal = event
                self._over.set_result(None)
        is_error = event is self.terminal and not event.HasField("sequence_number")
        before = self._log.bytes
        self._log.add(event, None if is_error else self.response_id)
        self._next_number += 1
        self._turns.grew(self, self._log.bytes - before)
        for follower in list(self.followers):
            follower.take(event)

    @contextmanager
    def _attended(self) -> Iterator[None]:
        self.attending += 1
        try:
            with self.expecting():
                yield
        finally:
            self.attending -= 1

    async def _cancel_later(self, grace_s: float) -> None:
        await self._services.clock.sleep(grace_s)
        self._grace = None
        self.cancel()

    def _stop_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None


class DetachedTurns:
    """The detached turns of a server: those that run, and those that can still be followed."""

    def __init__(self, services: Services) -> None:
        """Make an empty registry."""
        self._services = services
        self._settings = services.settings.background
        self._running: OrderedDict[str, DetachedTurn] = OrderedDict()
        self._kept: OrderedDict[str, DetachedTurn] = OrderedDict()
        """Turns that are over, in the order of their ends."""
        self._bytes = 0

    @property
    def log_bytes(self) -> int:
        """What all logs take, about."""
        return self._bytes

    def refusal(self, tenant: str) -> Rejection | None:
        """Return why no more turns may run without a client, None when they may."""
        unattended = [turn.tenant for turn in self._running.values() if turn.is_unattended]
        if len(unattended) >= self._settings.max_running:
            return _too_many("The server", len(unattended))
        own = unattended.count(tenant)
        return _too_many("This key", own) if own >= self._settings.max_running_per_tenant else None

    def start(
        self,
        create: client_event_pb2.ResponseCreate,
        *,
        size: int,
        wire: Wire,
        tenant: str,
        keeping: Keeping,
    ) -> DetachedTurn | Rejection:
        """Start a turn, unless it is one in the background and too many run.

        Args:
            create: The turn; belongs to it from now on.
            size: Bytes of the request on the wire, after decompression.
            wire: Where it came from.
            tenant: Who asks.
            keeping: What its response is kept with.
        """
        if create.background and (refusal := self.refusal(tenant)) is not None:
            return refusal
        turn = DetachedTurn(
            self, self._services, create, size=size, wire=wire, tenant=tenant, keeping=keeping
        )
        if turn.response_id:
            self._running[turn.response_id] = turn
            if not turn.is_background:
                turn.await_client(grace_s=None if self.refusal(tenant) is None else _COMING_S)
        return turn

    def find(self, response_id: str, *, tenant: str) -> DetachedTurn | None:
        """Return a tenant's turn that runs or can still be followed."""
        self._expire()
        turn = self._running.get(response_id) or self._kept.get(response_id)
        return turn if turn is not None and turn.tenant == tenant else None

    def forget(self, response_id: str) -> None:
        """Keep the events of a turn that is over no longer."""
        turn = self._kept.pop(response_id, None)
        if turn is not None:
            self._bytes -= turn.log_bytes

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._running)

    def interrupt(self) -> None:
        """End all that run because the server is stopped."""
        for turn in self._running.values():
            turn.interrupt()

    async def finish(self, grace_s: float) -> None:
        """Wait until nothing runs, at most `grace_s` seconds; they must have been told to end."""
        if self._running:
            ending = [asyncio.ensure_future(turn.ended()) for turn in self._running.values()]
            _, late = await asyncio.wait(ending, timeout=grace_s)
            for waiting in late:
                waiting.cancel()

    # From the turns.

    def grew(self, turn: DetachedTurn, size: int) -> None:
        """Note that a turn's log grew by `size` bytes; make room."""
        self._bytes += size
        while self._bytes > self._settings.log_bytes and self._kept:
            self.forget(next(iter(self._kept)))
        if self._bytes > self._settings.log_bytes:
            # Only those that run are left: the one that asks for room pays for it.
            self._bytes -= turn.log_bytes
            turn.drop_log()

    def ended(self, turn: DetachedTurn) -> None:
        """Note that a turn is over."""
        self._running.pop(turn.response_id, None)
        self._expire()
        if turn.was_refused:
            self._bytes -= turn.log_bytes  # there is no response by that id
        else:
            self._kept[turn.response_id] = turn

    def _expire(self) -> None:
        limit = self._services.clock.monotonic() - self._settings.log_ttl_s
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if oldest.ended_at > limit:
                return
            self.forget(oldest.response_id)


def _too_many(whose: str, number: int) -> Rejection:
    return Rejection(
        error_pb2.ERROR_REASON_RATE_LIMIT_EXCEEDED,
        f"{whose} has {number} responses that run without a client; wait until one is over.",
        param="background",
        headers={"retry-after": str(_RETRY_AFTER_S)},
    )
