"""A connection: one reader that never waits, one writer, and the turns between them.

The transport calls `receive` for each client event and runs `run`, which writes until the
connection is over. The connection owns its turns' tasks: none outlives `run`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from turnwire.v1 import client_event_pb2, error_pb2, server_event_pb2
from turnwire_server.runtime.metering import count_turn
from turnwire_server.runtime.outbox import Outbox, Sink
from turnwire_server.runtime.run import TurnRun
from turnwire_server.runtime.turn import run_turn
from turnwire_server.session.errors import Rejection
from turnwire_server.session.session import Session
from turnwire_server.session.turns import Turn

if TYPE_CHECKING:
    from turnwire_server.runtime.services import Services

__all__ = ["Connection", "Ending", "KeepaliveMode", "Wire"]

_log = logging.getLogger("turnwire.runtime")

Wire = Literal["grpc", "websocket", "http", "memory"]
KeepaliveMode = Literal["event", "in_progress", "off"]

_CLEANUP_S = 5.0


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a connection is over."""

    reason: Literal["finished", "disconnected", "age", "drain", "internal"]
    turns_cut: bool = False
    """Whether turns ran that had to be ended."""


class Connection:
    """One stream of a client and the session that it carries."""

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
    ) -> None:
        """Make a connection; `run` must be called. Use `Services.connect`."""
        settings = services.settings
        self.session = Session(settings.session, new_id=services.new_id)
        self._services = services
        self._outbox = Outbox(sink, settings.outbox, services.clock)
        self.wire = wire
        self._tenant = tenant
        self._keepalive = keepalive
        self._heartbeat_s = heartbeat_s
        self._is_persistent = is_persistent
        self._started_at = services.clock.monotonic()
        self._runs: dict[str, TurnRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._is_half_closed = False

    # From the reader. Synchronous: nothing here waits.

    def receive(self, event: client_event_pb2.ClientEvent, size: int) -> None:
        """Take a client event of `size` bytes on the wire."""
        if self._over.done():
            return
        self.session.receive(event, size=size, now=self._services.clock.monotonic())
        self._pull()

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
        if self._over.done():
            return
        self.session.refuse(
            rejection,
            event=event,
            stream_id=stream_id,
            event_id=event_id,
            size=size,
            now=self._services.clock.monotonic(),
        )
        self._pull()

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
        self._is_half_closed = True
        self.session.close_input()
        self._pull()

    def disconnect(self) -> None:
        """The peer is gone: every engine is told before this returns."""
        self._outbox.break_off()
        self._cut(Ending("disconnected", turns_cut=not self.session.is_idle))

    def shut_down(self) -> None:
        """The server goes: end everything with its terminal event and close."""
        rejection = Rejection(
            error_pb2.ERROR_REASON_SERVER_ERROR,
            "The server goes away and did not start this create. Send it on a new connection.",
        )
        self._cut(Ending("drain", turns_cut=not self.session.is_idle), rejection)

    def cancel(self, response_id: str) -> None:
        """End a running response as its client's `response.cancel` would."""
        event = client_event_pb2.ClientEvent()
        event.response_cancel.response_id = response_id
        self.receive(event, 0)

    # From the transport's task.

    async def run(self) -> Ending:
        """Write until the connection is over and all its events were written.

        Returns:
            Why it is over. Cancelling this coroutine disconnects.
        """
        loop = asyncio.get_running_loop()
        writer = loop.create_task(self._outbox.run())
        watch = loop.create_task(self._watch())
        try:
            await asyncio.wait((self._over, writer), return_when=asyncio.FIRST_COMPLETED)
            if not self._over.done():  # the writer stopped first: the peer is gone
                self.disconnect()
            await self._finish_turns()
            self._outbox.close()
            # A slow reader gets what it asked for; one that is sent away is not waited for long.
            patience = None if self._over.result().reason == "finished" else _CLEANUP_S
            await asyncio.wait((writer,), timeout=patience)
            if writer.done():
                writer.result()
            return self._over.result()
        finally:
            watch.cancel()
            if not writer.done() or self._tasks:  # cancelled, before or while the turns ended
                self.disconnect()
                await self._finish_turns()
            await asyncio.wait((watch, writer), timeout=_CLEANUP_S)
            if not writer.done():  # in a write that does not end, though the peer is gone
                writer.cancel()
                await asyncio.wait((writer,))
            self.session.forget()
            self._services.forget(self)

    async def _finish_turns(self) -> None:
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_CLEANUP_S)
            for task in late:
                task.cancel()
            if late:
                _log.error("turns did not end session_id=%s turns=%d", self.session.id, len(late))
                await asyncio.wait(late)
                for run in list(self._runs.values()):
                    run.abandon()

    # Private.

    def _pull(self, ended: TurnRun | None = None) -> None:
        """Do what the session decided; `ended` is the turn whose end it decided about."""
        for turn in self.session.turns_to_cancel():
            run = self._runs.get(turn.response_id)
            if run is not None:
                run.stop()
        for turn in self.session.turns_to_wake():
            self._runs[turn.response_id].wake()
        for event in self.session.events_to_send():
            self._number(event, ended)
            self._outbox.send(event)
        for turn in self.session.turns_to_start():
            self._start(turn)
        self._end_if_finished()

    def _number(self, event: server_event_pb2.ServerEvent, ended: TurnRun | None) -> None:
        """Give the answer to a steer or an inject a number of its target's sequence.

        That of an answer which comes later than the target's end stays 0.
        """
        arm = event.WhichOneof("event") or ""
        if arm.startswith("response_steer_"):
            target_id = getattr(event, arm).steer.previous_response_id
        elif arm == "response_inject_failed":
            target_id = event.response_inject_failed.response_id
        else:
            return
        run = self._runs.get(target_id)
        if run is None and ended is not None and ended.turn.response_id == target_id:
            run = ended
        if run is not None and run.has_begun:
            run.assembler.number(event)

    def _start(self, turn: Turn) -> None:
        run = TurnRun(
            turn,
            session=self.session,
            outbox=self._outbox,
            services=self._services,
            tenant=self._tenant,
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
        self._pull(run)

    def _end_if_finished(self) -> None:
        if self._is_half_closed and self.session.is_idle and not self._over.done():
            self._over.set_result(Ending("finished"))

    def _cut(self, ending: Ending, rejection: Rejection | None = None) -> None:
        """End everything; `rejection` is the answer to what waits, if the peer still reads."""
        if not self._over.done():
            self._over.set_result(ending)
        self.session.cancel_all(rejection)
        self._pull()

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
            for run in list(self._runs.values()):
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
        if self.wire == "grpc" or self.session.wants_session_events:
            away = server_event_pb2.TurnwireGoAway(reason="age", time_left_s=settings.age_grace_s)
            self._outbox.send(server_event_pb2.ServerEvent(turnwire_go_away=away))
        deadline = clock.monotonic() + settings.age_grace_s
        while not self.session.is_idle and clock.monotonic() < deadline:
            await clock.sleep(min(0.05, settings.age_grace_s))
        if self._over.done():  # the client was done too
            return
        turns_cut = not self.session.is_idle
        if turns_cut:
            self.session.cancel_all(rejection)
            self._pull()
            await self._finish_turns()
        self._outbox.send(rejection.event())
        if not self._over.done():
            self._over.set_result(Ending("age", turns_cut=turns_cut))
