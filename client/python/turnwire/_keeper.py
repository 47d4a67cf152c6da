"""Keeps a session attached to its server, on one connection after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress

from turnwire._backlog import Backlog
from turnwire._book import TurnBook
from turnwire._event import Event
from turnwire._lineage import Lineage
from turnwire._link import Link
from turnwire._recovery import Dial, RecoverySettings, Ticket, is_announced, may_pass, unexpected
from turnwire._redial import Redialer, Reopened, ticket_of
from turnwire._rescue import Rescue
from turnwire._steer import Steers
from turnwire._turn_state import TurnState
from turnwire._wire import Arrival, Wire, WireSettings
from turnwire.errors import ConnectionFailed, ConnectionLost, TurnwireError
from turnwire.v1.client_event_pb2 import ClientEvent, LastSeen
from turnwire.v1.server_event_pb2 import TurnwireSessionStarted

__all__ = ["Keeper"]


class Keeper:
    """Sends what must be sent, over the connection that there is, or the next one.

    A lost connection is reopened at once when turns wait or the session can be resumed, else when
    the next turn is asked for. Then either the session goes on, and what may not have arrived is
    sent again; or it begins anew, and each turn is rescued by itself.
    """

    def __init__(
        self,
        wire: Wire,
        settings: WireSettings,
        recovery: RecoverySettings,
        dial: Dial | None,
        *,
        book: TurnBook,
        steers: Steers,
        lineage: Lineage,
        route: Callable[[Arrival], TurnState | None],
        lose: Callable[[TurnwireError], None],
        settle: Callable[[TurnState], None],
    ) -> None:
        """Attach to an open wire.

        Args:
            wire: The first one; it belongs to the keeper.
            settings: What all wires are told.
            recovery: How to go on after a loss.
            dial: Opens another wire; None to end the session with its connection.
            book: The turns.
            steers: The steers.
            lineage: Addresses creates.
            route: Called with what comes in.
            lose: Ends the session for good.
            settle: Called with a turn that is over, other than by an event.
        """
        self._settings = settings
        self._recovery = recovery
        self._book = book
        self._steers = steers
        self._lineage = lineage
        self._backlog = Backlog(book, lineage)
        self._route = route
        self._lose = lose
        self._loop = asyncio.get_running_loop()
        self._redialer = None
        if dial is not None and recovery.reconnect_s > 0:
            timeout_s = settings.connect_timeout_s
            self._redialer = Redialer(dial, recovery, connect_timeout_s=timeout_s)
        self._rescue = Rescue(
            book, lineage, recovery, wire=lambda: self.wire, settle=settle, pump=self.pump
        )
        self.wire = wire
        """The one that there is, or was last: for calls beside the turns."""
        self.bytes_up = 0
        """Payload bytes of client events."""
        self.past_unary_bytes = (0, 0)
        """Payload bytes of calls on earlier wires."""
        self.reconnects = 0
        self._ticket: Ticket | None = None
        self._loss: TurnwireError = ConnectionLost("the connection is not open")
        self.is_retiring = False
        """Whether the server will end this connection: nothing new goes over it."""
        self._takes_ticket = True
        """Whether the session may be resumed then."""
        self._is_moving = False
        self._was_there = False
        """Whether the server ever answered."""
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._chores: set[asyncio.Task[None]] = set()
        self._left: Link | None = None
        """The one that was lost or left, until another takes its place."""
        self._attached_at = self._loop.time()
        self._link: Link | None = self._attach(wire)

    # What turns need.

    @property
    def is_resumable(self) -> bool:
        """Whether the server keeps the session for a while when the connection is lost."""
        return self._ticket is not None

    @property
    def held_up_by(self) -> TurnState | None:
        """The turn whose unread events hold up the connection."""
        return None if self._link is None else self._link.paused_by

    def start(self, state: TurnState) -> None:
        """Send a create, now or when it can be."""
        if self._link is None:
            if self._task is None and self._redialer is not None:
                self._redialer.backoff.reset()  # The loss is an old one.
            self.pump()
        elif self._backlog.is_there or self.is_retiring:
            self.pump()
        else:
            if len(self._book) == 1 and self.wire.persistent:
                self._look_alive(self._link)
            self._backlog.send(self._link, state)

    def send(self, event: ClientEvent, state: TurnState | None = None) -> None:
        """Send an event of a turn that runs; lost with the connection if there is none."""
        if self._link is not None:
            self._link.send(event, state)

    def pump(self) -> None:
        """Send what waits and can be sent, in order on each lane."""
        if self._link is not None and not self.is_retiring:
            self._backlog.pump(self._link)
            return
        self._backlog.is_there = True
        if self._link is None and len(self._book):
            self._reopen()

    def progress(self) -> None:
        """Note that a turn came further: what went wrong before is over."""
        self._was_there = True
        if self._redialer is not None:
            self._redialer.backoff.reset()
        if self._backlog.is_there:
            self.pump()
        if self.is_retiring:
            self._move_when_idle()

    # What the server says of the session and its connection.

    def hear_start(self, started: TurnwireSessionStarted) -> None:
        """Take what resumes the session."""
        self._ticket = ticket_of(started)

    def go_away(self, reason: str) -> None:
        """The server will end the connection: go to another one, as soon as nothing is lost by it.

        A session that is resumed there may go at once; on a server that drains, its turns must end.
        """
        if self._redialer is None or self.is_retiring or self._link is None:
            return
        self.is_retiring = True
        self._takes_ticket = reason == "age"
        self._loss = ConnectionLost("the server asked to leave")
        if self._takes_ticket and self._ticket is not None:
            self._move()
        else:
            self._move_when_idle()

    def turn_away(self, state: TurnState) -> bool:
        """Note that the server takes no more creates on this connection.

        Returns:
            Whether the create waits for the next one; else it is refused.
        """
        delivery = state.delivery
        if self._redialer is None or delivery.resends >= self._recovery.max_resends:
            return False
        delivery.resends += 1
        delivery.is_sent = False
        self._backlog.is_there = True
        if self.is_retiring:
            self._move_when_idle()
        else:
            self.go_away("age")
        return True

    def was_cut_short(self, state: TurnState, end: Event) -> bool:
        """Return whether the server ended a turn only because it goes away, and it begins again.

        That is when nobody asked for it and nobody has seen anything of it.
        """
        if not self.is_retiring or state.cancel_asked or state.outcome is not None:
            return False
        response = end.response
        if response is None or response.status != "cancelled":
            return False
        if not self._rescue.begins_again(state):
            return False
        self._backlog.is_there = True
        self._move_when_idle()
        return True

    def exchange_failed(self, state: TurnState, error: TurnwireError) -> bool:
        """Note that the exchange of one turn broke, on a wire where each has its own.

        Returns:
            Whether something is done about it; else the turn is lost.
        """
        if self._redialer is None or not may_pass(error):
            return False
        if isinstance(error, ConnectionFailed) and not self._was_there:
            return False  # As on the other wires, where the first connection is not tried again.
        self._lineage.session += 1  # The server may have been another one since.
        self._backlog.is_there = True
        self._rescue.retry(state, error, self._redialer.backoff)
        return True

    # The end.

    async def close(self, farewells: Iterable[ClientEvent], until: float) -> None:
        """Say what is left to say, then let go of everything.

        Args:
            farewells: What to send, if there is a connection.
            until: When to wait no longer, on the loop's clock.
        """
        self._is_closed = True
        link, self._link = self._link, None
        tasks = [task for task in (self._task, self._pinging, *self._chores) if task is not None]
        try:
            if link is not None:
                with suppress(TimeoutError, TurnwireError):  # The rest is cut below.
                    async with asyncio.timeout_at(until):
                        for event in farewells:
                            link.send(event)
                        await link.close()
        finally:
            await self._rescue.close()
            for task in (self._task, self._pinging):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in (link, self._left):
                if each is not None:
                    await each.drop()

    # Private: links.

    def _attach(self, wire: Wire, early: Sequence[Arrival] = ()) -> Link:
        self._attached_at = self._loop.time()
        return Link(wire, route=self._route, sent=self._sent, lost=self._lost, early=early)

    def _sent(self, state: TurnState | None, size: int) -> None:
        self.bytes_up += size
        if state is not None:
            state.bytes_up += size

    def _look_alive(self, link: Link) -> None:
        """Ask for a sign of life beside the create, when the connection was idle for long.

        The create does not wait for it: should the connection be dead, it is sent again.
        """
        idle_s = self._loop.time() - max(self._book.idle_since, self._attached_at)
        if self._redialer is not None and idle_s >= self._recovery.ping_after_idle_s:
            timeout_s = self._recovery.ping_timeout_s
            self._pinging = self._loop.create_task(link.ping(timeout_s))

    def _own(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    # Private: from one link to the next.

    def _lost(self, link: Link, error: Exception) -> None:
        if link is not self._link:
            return
        self._leave()
        if not isinstance(error, TurnwireError):
            error = unexpected(error)
        redialer = self._redialer
        if redialer is None or not may_pass(error):
            self._lose(error)
            return
        self._loss = error
        if is_announced(error):
            self._ticket = None
        if self._loop.time() - self._attached_at > self._recovery.most_delay_s:
            redialer.backoff.reset()
        if len(self._book) or self._ticket is not None:
            self._reopen()

    def _leave(self) -> Sequence[LastSeen]:
        """Take nothing more from the link; return how far its events were taken."""
        if self._link is not None:
            self._link.leave()
            self._left, self._link = self._link, None
            self._backlog.is_there = True
        return self._book.last_seen()

    def _move_when_idle(self) -> None:
        if self._is_moving or any(state.delivery.is_sent for state in self._book):
            return
        if not self._takes_ticket:
            self._ticket = None  # It was the draining server's.
        if len(self._book) or self._ticket is not None:
            self._move()
        else:
            # Nothing to take along: the next turn opens the next one.
            self._leave()
            self.is_retiring = False
            left, self._left = self._left, None
            if left is not None:
                self._own(self._part(left))

    def _move(self) -> None:
        self._is_moving = True
        self._reopen()

    async def _part(self, link: Link) -> None:
        with suppress(TimeoutError, TurnwireError):
            async with asyncio.timeout(self._settings.close_timeout_s):
                await link.close()
        await link.drop()

    def _reopen(self) -> None:
        if self._task is None and not self._is_closed:
            self._task = self._loop.create_task(self._reopening(), name="turnwire reconnect")

    async def _reopening(self) -> None:
        assert self._redialer is not None  # Else the session ended with its connection.
        try:
            while self._link is None or self._is_moving:
                reopened = await self._redialer.reopen(self._loss, self._ticket, self._leave)
                if reopened.ticket is None:
                    self._begin_anew(reopened)
                else:
                    self._go_on(reopened, reopened.ticket)
        except TurnwireError as error:
            self._give_up(error)
        except Exception as bug:
            # Nobody else would see it: the turns that wait must not wait for ever.
            self._lose(unexpected(bug))
        finally:
            self._task = None

    def _take_over(self, reopened: Reopened) -> Link:
        self._leave()
        old, self._left = self._left, None
        up, down = self.wire.unary_bytes
        self.past_unary_bytes = (self.past_unary_bytes[0] + up, self.past_unary_bytes[1] + down)
        self.wire = reopened.wire
        self.reconnects += 1
        self._is_moving = self.is_retiring = False
        self._book.heard_all()
        if old is not None:
            self._own(old.drop())
        self._link = self._attach(reopened.wire, reopened.early)
        return self._link

    def _go_on(self, reopened: Reopened, ticket: Ticket) -> None:
        """Go on with the session: say again what the server may not have heard."""
        self._ticket = ticket
        for state in self._book:
            state.resume()
        link = self._take_over(reopened)
        self._backlog.say_again(link)
        for steer in self._steers.unanswered():
            link.send(steer.event)
        self.pump()

    def _begin_anew(self, reopened: Reopened) -> None:
        """Begin another session: rescue the turns of the lost one."""
        self._ticket = None
        self._lineage.session += 1
        self._book.forget_places()
        self._take_over(reopened)
        self._rescue.all(self._loss, self._steers)
        self._steers.lose(self._loss)
        self.pump()

    def _give_up(self, error: TurnwireError) -> None:
        """The patience is over; the next turn may try again, unless that is of no use."""
        self._is_moving = False
        if self._link is not None:
            self.is_retiring = False
            self.pump()
        elif not may_pass(error):
            self._lose(error)
        else:
            self._ticket = None
            self._lineage.session += 1
            self._book.forget_places()
            self._rescue.none(error)
            self._steers.lose(error)
