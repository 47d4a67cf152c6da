"""A host: one session and its turns, with or without a connection.

A connection makes a host for its client and hands over what arrives. Most hosts end with their
connection. One whose client asked for resume keeps a log of what it sends, may lose its connection
and be taken up by another one, over any wire; until then its turns go on and their events are
logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from turnwire.v1 import client_event_pb2, server_event_pb2
from turnwire_server.runtime.event_log import EventLog, Gap, Seen
from turnwire_server.runtime.metering import count_turn
from turnwire_server.runtime.outbox import Outlet
from turnwire_server.runtime.run import TurnRun
from turnwire_server.runtime.turn import run_turn
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import TERMINAL_ARMS, Delta, Outgoing
from turnwire_server.session.session import Session
from turnwire_server.session.turns import Turn

if TYPE_CHECKING:
    from turnwire_server.runtime.services import Services

__all__ = ["CLEANUP_S", "SessionHost", "Wire"]

_log = logging.getLogger("turnwire.runtime")

CLEANUP_S = 5.0
"""How long what was told to end may take."""

Wire = Literal["grpc", "websocket", "http", "memory"]

ServerEvent = server_event_pb2.ServerEvent

_STEERS = frozenset(
    name for name in ServerEvent.DESCRIPTOR.fields_by_name if name.startswith("response_steer_")
)
"""Arms that answer a steer."""
_WITHOUT_PLACE = _STEERS | {"error"}


class SessionHost:
    """Runs the turns that one session starts."""

    def __init__(
        self, services: Services, outlet: Outlet, *, wire: Wire, tenant: str, is_persistent: bool
    ) -> None:
        """Make a host with a new session.

        Args:
            services: What all hosts share.
            outlet: Where its events go first.
            wire: Which transport that is.
            tenant: Whose it is.
            is_persistent: Whether the wire outlives one turn.
        """
        settings = services.settings
        self.session = Session(
            settings.session,
            new_id=services.new_id,
            resume_grace_s=settings.resume_grace_s if is_persistent else 0.0,
        )
        self._services = services
        self.tenant = tenant
        self.wire = wire
        """The transport of its newest connection."""
        self._is_persistent = is_persistent
        self._outlet: Outlet | None = outlet
        self._events: EventLog | None = None
        self._held: dict[str, list[ServerEvent]] = {}
        """Answers that wait for the terminal event of a response, see `_answer`."""
        self.leave: Callable[[Rejection], None] | None = None
        """Tells its connection that it must go, and why; None when there is none."""
        self.on_progress: Callable[[], None] | None = None
        """Called after whatever the session decided."""
        self._runs: dict[str, TurnRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        services.hosts.add(self)

    @property
    def is_resumable(self) -> bool:
        """Whether it may outlive its connection."""
        return self._events is not None

    @property
    def runs(self) -> list[TurnRun]:
        """Its running turns."""
        return list(self._runs.values())

    @property
    def has_tasks(self) -> bool:
        """Whether turns of it have not come to their end."""
        return bool(self._tasks)

    # What its client says. Synchronous: nothing here waits.

    def receive(self, event: client_event_pb2.ClientEvent, size: int) -> None:
        """Take a client event of `size` bytes on the wire."""
        now = self._services.clock.monotonic()
        continues = False
        if event.HasField("response_create"):
            refusal = self._services.refusal(self.tenant)
            if refusal is not None:
                lane = event.stream_id if event.HasField("stream_id") else None
                return self.reject(
                    refusal, stream_id=lane, event_id=event.event_id, event=event, size=size
                )
            if self._events is not None and event.response_create.previous_response_id:
                self._events.continued(event.response_create.previous_response_id)
                continues = True
        self.session.receive(event, size=size, now=now)
        if self._events is None and self.session.resume_token is not None:
            self._events = EventLog(self._services.settings.resume_buffer_bytes)
            self._services.sessions.add(self)
        self.pull()
        if continues and self._events is not None:
            # Behind the turn's first step, and behind the write of what that says: to forget a
            # long answer takes longer than either.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._events.tidy)

    def reject(
        self,
        rejection: Rejection,
        *,
        stream_id: str | None,
        event_id: str | None,
        event: client_event_pb2.ClientEvent | None,
        size: int,
    ) -> None:
        """Take an event that is refused at the edge, see `Session.refuse`."""
        self.session.refuse(
            rejection,
            event=event,
            stream_id=stream_id,
            event_id=event_id,
            size=size,
            now=self._services.clock.monotonic(),
        )
        self.pull()

    def cancel(self, response_id: str) -> None:
        """End a running response as its client's `response.cancel` would."""
        event = client_event_pb2.ClientEvent()
        event.response_cancel.response_id = response_id
        self.receive(event, 0)

    def close_input(self) -> None:
        """Note that its client has nothing more to say."""
        self.session.close_input()
        self.pull()

    # Its connection comes and goes.

    def missed(self, last_seen: Sequence[Seen]) -> list[Outgoing] | Gap:
        """Return the events that a client has missed; the host must be resumable."""
        assert self._events is not None
        return self._events.after(last_seen)

    def attach(self, outlet: Outlet, *, wire: Wire) -> None:
        """Go on with a new connection, which has been sent all that was missed."""
        self._outlet, self.wire = outlet, wire
        self.session.reopen()
        self.pull()

    def detach(self) -> None:
        """Go on without a connection; the host must be resumable."""
        assert self._events is not None
        self._outlet = self.leave = self.on_progress = None

    # Its end.

    def cut(self, rejection: Rejection | None = None) -> None:
        """End all turns: every engine is told before this returns.

        Args:
            rejection: The answer to the creates that wait; None when nobody reads it.
        """
        self.session.cancel_all(rejection)
        self.pull()

    async def finish(self) -> None:
        """Wait for the turns, which were told to end; what does not end is given up."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=CLEANUP_S)
        for task in late:
            task.cancel()
        if late:
            _log.error("turns did not end session_id=%s turns=%d", self.session.id, len(late))
            await asyncio.wait(late)
            for run in self.runs:
                run.abandon()

    def forget(self) -> None:
        """Give everything back; nothing runs any more."""
        self.session.forget()
        # A cycle with its connection would keep both until the next collection.
        self._outlet = self.leave = self.on_progress = None
        self._events = None
        self._services.sessions.forget(self)
        self._services.resting.forget(self)
        self._services.hosts.discard(self)

    # What its session decides.

    def pull(self, ended: TurnRun | None = None) -> None:
        """Do what the session decided; `ended` is the turn whose end it decided about."""
        for turn in self.session.turns_to_cancel():
            run = self._runs.get(turn.response_id)
            if run is not None:
                run.stop()
        for turn in self.session.turns_to_wake():
            if self._events is not None:
                self._events.answered(turn.lane)
            self._runs[turn.response_id].wake()
        held = () if ended is None else self._held.pop(ended.turn.response_id, ())
        for event in (*held, *self.session.events_to_send()):
            self._answer(event, ended)
        for turn in self.session.turns_to_start():
            self._start(turn)
        if self.on_progress is not None:
            self.on_progress()

    def _send(self, event: ServerEvent, response_id: str | None) -> None:
        """Send an event of the session itself, in the sequence of a response if it has one."""
        arm = event.WhichOneof("event") or ""
        # What is about the connection does not outlive it; what ended a create is sent again to
        # who asks again, and not beside that.
        if self._events is not None and not arm.startswith("turnwire_"):
            if arm == "error" or arm not in TERMINAL_ARMS:
                self._events.add(event, response_id)
        if self._outlet is not None:
            self._outlet.send(event)

    def send_logged(self, event: Outgoing, response_id: str) -> bool:
        """Log an event of a turn and send it; return whether there is room for more."""
        if self._events is not None:
            self._events.add(event, response_id if _has_place(event) else None)
        return self._outlet.send(event) if self._outlet is not None else True

    def send_all_logged(
        self, events: Sequence[Outgoing], response_id: str, *, at_once: bool
    ) -> bool:
        """Send events of a turn and log them, see `Outlet.send_all`."""
        log = self._events
        try:
            return self._outlet is None or self._outlet.send_all(events, at_once=at_once)
        finally:  # behind the write, for which the client waits; it cannot ask for them before
            if log is not None:
                for event in events:
                    log.add(event, response_id if _has_place(event) else None)

    async def drain(self) -> None:
        """Wait until there is room, or nobody who reads."""
        if self._outlet is not None:
            await self._outlet.drain()

    def _answer(self, event: ServerEvent, ended: TurnRun | None) -> None:
        """Send an event of the session, numbered if it answers a steer or an inject in time.

        One that comes between the making of the target's terminal event and its sending, for which
        the store is waited for, is sent behind it. The number of one that comes later stays 0.
        """
        run = self._target(event, ended)
        if run is None or not run.has_begun:
            self._send(event, None)
        elif run.is_over or run.assembler.is_open:
            run.assembler.number(event)
            self._send(event, run.turn.response_id)
        else:
            self._held.setdefault(run.turn.response_id, []).append(event)

    def _target(self, event: ServerEvent, ended: TurnRun | None) -> TurnRun | None:
        """Return the run that an event answers a steer or an inject to, None without one."""
        arm = event.WhichOneof("event") or ""
        if arm in _STEERS:
            target_id: str = getattr(event, arm).steer.previous_response_id
        elif arm == "response_inject_failed":
            target_id = event.response_inject_failed.response_id
        else:
            return None
        run = self._runs.get(target_id)
        if run is None and ended is not None and ended.turn.response_id == target_id:
            run = ended
        return run

    def _start(self, turn: Turn) -> None:
        outlet = self._outlet
        if self._events is not None or outlet is None:
            outlet = _LoggedOutlet(self, turn.response_id)
        run = TurnRun(
            turn,
            session=self.session,
            outlet=outlet,
            services=self._services,
            tenant=self.tenant,
            is_persistent=self._is_persistent,
            on_over=self._turn_over,
        )
        self._runs[turn.response_id] = run
        self._services.running[turn.response_id] = (self, run)
        task = asyncio.get_running_loop().create_task(run_turn(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _turn_over(self, run: TurnRun) -> None:
        metrics = self._services.metrics
        if metrics is not None:
            count_turn(run, self.wire, metrics, self._services.afterwork)
        del self._runs[run.turn.response_id]
        del self._services.running[run.turn.response_id]
        self._services.resting.note(self)
        self.pull(run)


class _LoggedOutlet:
    """Where a turn of a resumable session sends its events."""

    __slots__ = ("_host", "_response_id")

    def __init__(self, host: SessionHost, response_id: str) -> None:
        self._host = host
        self._response_id = response_id

    def send(self, event: Outgoing) -> bool:
        return self._host.send_logged(event, self._response_id)

    def send_all(self, events: Sequence[Outgoing], *, at_once: bool) -> bool:
        return self._host.send_all_logged(events, self._response_id, at_once=at_once)

    async def drain(self) -> None:
        await self._host.drain()


def _has_place(event: Outgoing) -> bool:
    """Return whether a turn's event has its number in the sequence of the turn's response."""
    return isinstance(event, Delta) or event.WhichOneof("event") not in _WITHOUT_PLACE
