"""Following a turn: what one client gets of a turn that no connection owns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from turnwire.v1 import error_pb2, server_event_pb2
from turnwire_server.ports.clock import Clock
from turnwire_server.runtime.event_log import Gap
from turnwire_server.runtime.outbox import Outbox, Sink
from turnwire_server.runtime.settings import OutboxSettings
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Outgoing

__all__ = ["EndlessOutlet", "Followed", "Follower"]

_CLEANUP_S = 5.0

_SLOW = Rejection(
    error_pb2.ERROR_REASON_SLOW_CONSUMER,
    "The events were not read before they had to go. The response itself goes on: get it.",
)


class EndlessOutlet:
    """Where the events of a turn go that waits for no client; there is always room."""

    def __init__(self, take: Callable[[Outgoing], None]) -> None:
        """Hand each event to `take`."""
        self._take = take

    def send(self, event: Outgoing) -> bool:
        """Send an event; there is room for more."""
        self._take(event)
        return True

    def send_all(self, events: Sequence[Outgoing], *, at_once: bool) -> bool:
        """Send events; there is room for more."""
        for event in events:
            self._take(event)
        return True

    async def drain(self) -> None:
        """Do nothing."""


class Followed(Protocol):
    """A turn that can be followed."""

    followers: set[Follower]
    """Those who are told of each event when it comes."""

    @property
    def terminal(self) -> server_event_pb2.ServerEvent | None:
        """The terminal event, None before it."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        ...

    def missed(self, after: int) -> list[Outgoing] | Gap:
        """Return the events so far with numbers above `after`."""
        ...


class Follower:
    """Writes the events of a turn to one client, from where it stands to the terminal event.

    First what the log has; from then on each event as it comes. A client that reads more slowly
    than they come is told from the log again, as long as that has them.
    """

    def __init__(
        self,
        turn: Followed,
        sink: Sink,
        *,
        after: int,
        settings: OutboxSettings,
        clock: Clock,
        heartbeat_s: float,
    ) -> None:
        """Make it; `run` follows.

        Args:
            turn: The turn.
            sink: Where the events go.
            after: Number of the newest event that the client has, -1 for none.
            settings: Bounds of what waits for the client.
            clock: Time.
            heartbeat_s: Seconds of silence after which the sink gives a sign of life.
        """
        self._turn = turn
        self._after = after
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._outbox = Outbox(sink, settings, clock)
        self._stopped = asyncio.Event()
        """Set when it is told no more: it lags, or nothing more comes."""

    def take(self, event: Outgoing) -> None:
        """Send a new event; one that finds no room ends the telling."""
        has_room = True
        if event.sequence_number > self._after:  # a number that was never given counts as seen
            self._after = event.sequence_number
            has_room = self._outbox.send(event)
        if not has_room or event is self._turn.terminal:
            self.stop()

    def stop(self) -> None:
        """Tell no more; what there is can be read from the log."""
        self._turn.followers.discard(self)
        self._stopped.set()

    async def run(self) -> None:
        """Write until the turn is over or the client is gone. Cancelling it is safe."""
        loop = asyncio.get_running_loop()
        writer = loop.create_task(self._outbox.run())
        feeder, heart = loop.create_task(self._feed()), loop.create_task(self._beat())
        try:
            await asyncio.wait((feeder, writer), return_when=asyncio.FIRST_COMPLETED)
            if feeder.done():
                feeder.result()
                self._outbox.close()
                await asyncio.wait((writer,))
            writer.result()
        finally:
            self._turn.followers.discard(self)
            if not writer.done():
                self._outbox.break_off()
            feeder.cancel()
            heart.cancel()
            await asyncio.wait((feeder, heart, writer), timeout=_CLEANUP_S)
            if not writer.done():  # in a write that does not end, though its client is gone
                writer.cancel()
                await asyncio.wait((writer,))

    async def _feed(self) -> None:
        turn, outbox = self._turn, self._outbox
        while True:
            missed = turn.missed(self._after)
            if isinstance(missed, Gap):
                outbox.send(_SLOW.event())
                return
            for event in missed:
                self._after = max(self._after, event.sequence_number)
                if not outbox.send(event):
                    break
            else:
                # No await since the log was read: nothing can have come in between.
                if turn.is_over or turn.terminal is not None:
                    return self._tell_end()
                turn.followers.add(self)
                await self._stopped.wait()
                self._stopped.clear()
            await outbox.drain()

    def _tell_end(self) -> None:
        """Tell the end to a client that believes to be behind it."""
        terminal = self._turn.terminal
        if terminal is not None and self._after > terminal.sequence_number:
            self._outbox.send(terminal)

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep(self._heartbeat_s / 3)
            if self._clock.monotonic() - self._outbox.last_write_at >= self._heartbeat_s:
                self._outbox.send_heartbeat()
