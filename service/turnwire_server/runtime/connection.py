"""A connection: one reader that never waits, one writer, and the session that it carries.

The transport calls `receive` for each client event and runs `run`, which writes until the
connection is over. The session and its turns are with a `SessionHost`. It ends with its connection
and no turn outlives `run`, unless its client asked for resume: then the connection only leaves it
when it is lost, too old or taken over by a newer one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from turnwire.v1 import client_event_pb2, error_pb2, server_event_pb2
from turnwire_server.runtime.host import CLEANUP_S, SessionHost, Wire
from turnwire_server.runtime.outbox import Outbox, Sink
from turnwire_server.session.errors import Rejection
from turnwire_server.session.session import Session

if TYPE_CHECKING:
    from turnwire_server.runtime.services import Services

__all__ = ["Connection", "Ending", "KeepaliveMode", "Wire"]

_log = logging.getLogger("turnwire.runtime")

KeepaliveMode = Literal["event", "in_progress", "off"]

_RETRY_AFTER_S = 1
_LAST_WORD_ROUNDS = 5
"""Iterations of the loop within which a reader has seen what arrived before the end."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a connection is over."""

    reason: Literal["finished", "disconnected", "lost", "taken_over", "age", "drain", "internal"]
    """`lost` and `taken_over`: the session goes on without it; so it does after `age` when it is
    resumable."""
    turns_cut: bool = False
    """Whether turns ran that had to be ended."""


class Connection:
    """One stream of a client."""

    def __init__(
        self,
        services: Services,
        sink: Sink,
        *,
        wire: Wire,
        tenant: str,
        keepalive: KeepaliveMode,
        heartbeat_s: float,
        is_persistent: bool,
        was_lost: Callable[[], bool],
    ) -> None:
        """Make a connection; `run` must be called. Use `Services.connect`."""
        self._services = services
        self._outbox = Outbox(sink, services.settings.outbox, services.clock)
        self.wire = wire
        self._tenant = tenant
        self._keepalive = keepalive
        self._heartbeat_s = heartbeat_s
        self._is_persistent = is_persistent
        self._was_lost = was_lost
        self._started_at = services.clock.monotonic()
        self._over: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._has_resumed = False
        """Whether its session began on another one."""
        self._has_left = False
        """Whether its session goes on without it."""
        self._is_half_closed = False
        self._is_draining = False
        self._host = SessionHost(
            services, self._outbox, wire=wire, tenant=tenant, is_persistent=is_persistent
        )
        self._host.leave, self._host.on_progress = self._leave_for, self._end_if_finished

    @property
    def session(self) -> Session:
        """The session that it carries, or carried last."""
        return self._host.session

    @property
    def is_resumable(self) -> bool:
        """Whether the session may outlive it."""
        return self._host.is_resumable

    # From the reader. Synchronous: nothing here waits.

    def receive(self, event: client_event_pb2.ClientEvent, size: int) -> None:
        """Take a client event of `size` bytes on the wire."""
        if self._over.done():
            return
        if (
            event.HasField("turnwire_session_resume")
            and not self._has_resumed
            and self.session.is_fresh
        ):
            self._resume(event)
        else:
            self._host.receive(event, size)

    def reject(
        self,
        rejection: Rejection,
        *,
        stream_id: str | None = None,
        event_id: str | None = None,
        event: client_event_pb2.ClientEvent | None = None,
        size: int = 0,
    ) -> None:
        """Take an event that the edge could not decode.

        Args:
            rejection: Why.
            stream_id: The lane, if it could be read.
            event_id: The event's id, if it could be read.
            event: What could be read of it, None when its kind could not.
            size: Bytes on the wire.
        """
        if not self._over.done():
            self._host.reject(
                rejection, stream_id=stream_id, event_id=event_id, event=event, size=size
            )

    @property
    def is_crowded(self) -> bool:
        """Whether the reader must await `calm` before it reads on.

        A turn stops at the outbox's bound, so only answers to what the peer sends go beyond it:
        a peer that does not read them is not read either.
        """
        return self._outbox.is_crowded

    async def calm(self) -> None:
        """Wait until the peer has read enough, or is gone. Cancelling is safe."""
        await self._outbox.calm()

    def half_close(self) -> None:
        """Take no more events; `run` returns when all that is queued is finished."""
        if self._over.done():
            return
        self._is_half_closed = True
        self._host.close_input()

    def disconnect(self) -> None:
        """The peer is gone, as it said: every engine is told before this returns."""
        self._outbox.break_off()
        self._cut("disconnected")

    def lose(self) -> None:
        """The peer is gone without a word: a resumable session waits for it, any other ends."""
        if self._has_left:
            self._outbox.break_off()
        elif self._may_leave:
            self._outbox.break_off()
            self._leave(Ending("lost"))
        else:
            self.disconnect()

    def vanish(self) -> None:
        """The peer is gone; the transport is asked how, where that matters."""
        if self._has_left or (self._may_leave and self._was_lost()):
            self.lose()
        else:
            self.disconnect()

    def drain(self, time_left_s: float) -> None:
        """The server goes soon: take no more creates, and close when nothing is left to do."""
        if self._over.done() or not self._is_persistent:
            return  # the one turn of the others is waited for
        self._is_draining = True
        rejection = Rejection(
            error_pb2.ERROR_REASON_SERVER_IS_OVERLOADED,
            "The server goes away and takes no more creates. Send it on a new connection.",
            headers={"retry-after": str(_RETRY_AFTER_S)},
        )
        self.session.close_to_creates(rejection)
        self._say_go_away("drain", time_left_s)
        self._end_if_finished()

    def shut_down(self) -> None:
        """The server goes now: end everything with its terminal event and close."""
        rejection = Rejection(
            error_pb2.ERROR_REASON_SERVER_ERROR,
            "The server goes away and did not start this create. Send it on a new connection.",
        )
        self._is_draining = True
        self._cut("drain", rejection)

    def cancel(self, response_id: str) -> None:
        """End a running response as its client's `response.cancel` would."""
        if not self._over.done():
            self._host.cancel(response_id)

    # From the transport's task.

    async def run(self) -> Ending:
        """Write until the connection is over and all its events were written.

        Returns:
            Why it is over. Cancelling this coroutine makes the peer vanish.
        """
        loop = asyncio.get_running_loop()
        writer = loop.create_task(self._outbox.run())
        watch = loop.create_task(self._watch())
        try:
            await asyncio.wait((self._over, writer), return_when=asyncio.FIRST_COMPLETED)
            if not self._over.done():  # the writer stopped first: the peer is gone
                self.vanish()
            if not self._has_left:
                await self._host.finish()
            self._outbox.close()
            # A slow reader gets what it asked for; one that is sent away is not waited for long.
            patience = None if self._over.result().reason == "finished" else CLEANUP_S
            await asyncio.wait((writer,), timeout=patience)
            if writer.done():
                writer.result()
            return self._over.result()
        except asyncio.CancelledError:
            if self._may_leave:
                await self._hear_out()
            raise
        finally:
            try:
                await self._clean_up(watch, writer)
            except asyncio.CancelledError:  # the client went while its connection ended
                await self._clean_up(watch, writer)
                raise
            finally:
                if not self._has_left:
                    self._host.forget()
                self._services.forget(self)

    # Private.

    @property
    def _may_leave(self) -> bool:
        """Whether the session can go on without this connection."""
        if not self._host.is_resumable:
            return False
        # What was finished may still be unread.
        return not self._over.done() or self._over.result().reason == "finished"

    async def _clean_up(self, watch: asyncio.Task[None], writer: asyncio.Task[None]) -> None:
        """End the tasks. When it is cancelled it can be called again."""
        watch.cancel()
        # Cancelled, before or while the turns ended?
        if not writer.done() or (self._host.has_tasks and not self._has_left):
            self.vanish()
            if not self._has_left:
                await self._host.finish()
        await asyncio.wait((watch, writer), timeout=CLEANUP_S)
        if not writer.done():  # in a write that does not end, though the peer is gone
            writer.cancel()
            await asyncio.wait((writer,))

    async def _hear_out(self) -> None:
        """Let the reader take the peer's last word, which may have come with its end."""
        for _ in range(_LAST_WORD_ROUNDS):
            if self._over.done():
                return
            await asyncio.sleep(0)

    def _resume(self, event: client_event_pb2.ClientEvent) -> None:
        """Carry another session from now on, in the place of the fresh one."""
        resume = event.turnwire_session_resume
        taken = self._services.sessions.take_up(resume, self._tenant)
        if isinstance(taken, Rejection):
            self._outbox.send(taken.event(event_id=event.event_id or None))
            return
        self._host.forget()
        self._host, missed = taken
        self._has_resumed = True
        self._host.leave, self._host.on_progress = self._leave_for, self._end_if_finished
        resumed = server_event_pb2.TurnwireSessionResumed(
            session_id=self.session.id,
            resume_token=self.session.resume_token,
            resume_grace_s=self._services.settings.resume_grace_s,
        )
        self._outbox.send(server_event_pb2.ServerEvent(turnwire_session_resumed=resumed))
        for one in missed:
            self._outbox.send(one)
        self._host.attach(self._outbox, wire=self.wire)

    def _leave_for(self, rejection: Rejection) -> None:
        """Give the session up to a newer connection."""
        self._outbox.send(rejection.event())
        self._leave(Ending("taken_over"))

    def _leave(self, ending: Ending) -> None:
        """Be over; the session goes on."""
        self._has_left = True
        self._host.detach()
        if not self._over.done():
            self._over.set_result(ending)
        if ending.reason != "taken_over":
            self._services.sessions.await_client(self._host)

    def _end_if_finished(self) -> None:
        """Be over when nothing is left to do and nothing may come."""
        if not self._is_half_closed and not self._is_draining:
            return
        if not self._over.done() and self.session.is_idle:
            self._over.set_result(Ending("finished" if self._is_half_closed else "drain"))

    def _cut(
        self, reason: Literal["disconnected", "drain"], rejection: Rejection | None = None
    ) -> None:
        """End everything; `rejection` is the answer to what waits, if the peer still reads."""
        if self._has_left:
            return
        if not self._over.done():
            self._over.set_result(Ending(reason, turns_cut=not self.session.is_idle))
        self._host.cut(rejection)

    def _say_go_away(self, reason: str, time_left_s: float) -> None:
        if self.wire == "grpc" or self.session.wants_session_events:
            away = server_event_pb2.TurnwireGoAway(reason=reason, time_left_s=time_left_s)
            self._outbox.send(server_event_pb2.ServerEvent(turnwire_go_away=away))

    async def _watch(self) -> None:
        """Keep the connection alive and end it when it is too old."""
        settings, clock = self._services.settings, self._services.clock
        beat = min(settings.keepalive_s, self._heartbeat_s)
        age = settings.connection_age_s if self._is_persistent else math.inf
        too_old_at = self._started_at + age
        while not self._over.done():
            now = clock.monotonic()
            if now >= too_old_at:
                return await self._grow_too_old()
            await clock.sleep(min(beat / 3, max(too_old_at - now, 0.001)))
            now = clock.monotonic()
            if self._over.done():
                return
            for run in self._host.runs:
                silent = now - run.last_event_at
                if self._keepalive != "off" and silent >= settings.keepalive_s:
                    run.keepalive(as_in_progress=self._keepalive == "in_progress")
            if now - self._outbox.last_write_at >= self._heartbeat_s:
                self._outbox.send_heartbeat()

    async def _grow_too_old(self) -> None:
        settings, clock = self._services.settings, self._services.clock
        minutes = settings.connection_age_s / 60
        rejection = Rejection(
            error_pb2.ERROR_REASON_WEBSOCKET_CONNECTION_LIMIT_REACHED,
            f"Responses websocket connection limit reached ({minutes:g} minutes). Create a new "
            "websocket connection to continue.",
        )
        self.session.close_to_creates(rejection)
        self._say_go_away("age", settings.age_grace_s)
        deadline = clock.monotonic() + settings.age_grace_s
        while not self.session.is_idle and clock.monotonic() < deadline:
            await clock.sleep(min(0.05, settings.age_grace_s))
            if self._over.done():  # lost or taken over: another connection's session by now
                return
        if self._over.done():  # the client was done too
            return
        if self._host.is_resumable:
            self._outbox.send(rejection.event())
            return self._leave(Ending("age"))
        turns_cut = not self.session.is_idle
        if turns_cut:
            self.session.cancel_all(rejection)
            self._host.pull()
            await self._host.finish()
        self._outbox.send(rejection.event())
        if not self._over.done():
            self._over.set_result(Ending("age", turns_cut=turns_cut))
