"""The outbox: one writer per connection that batches events into few writes.

A write costs about the same for one event as for sixteen, so what matters is how many writes
there are. `send` is synchronous and only queues; the writer takes all that is ready at once.
Deltas may wait for company for a few milliseconds when they come fast; everything else, and the
first event after a quiet spell, goes at once. While a write is in flight, all that becomes ready
shares the next. A sink that mostly need not be waited for is written to from the loop itself, or
from the turn that begins or ends an item or itself while no other one runs; the writer's task is
for what must wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from turnwire_server.ports.clock import Clock
from turnwire_server.runtime.settings import OutboxSettings
from turnwire_server.session.events import Delta, Outgoing

__all__ = ["Outbox", "Outlet", "PromptSink", "Sink"]

_FAST = 1 / 200
_FASTEST = 1 / 2000
_SMOOTHING = 0.2


class Sink(Protocol):
    """A transport's way out."""

    def encode(self, event: Outgoing) -> bytes:
        """Return the event as the wire wants it. Called once per event, in order."""
        ...

    async def write(self, batch: Sequence[bytes]) -> None:
        """Write encoded events in one write if the wire can; wait for its flow control.

        Raises:
            ConnectionError: the peer is gone.
        """
        ...

    def heartbeat(self) -> bytes | None:
        """Return what to write when nothing was written for a while, None for nothing."""
        ...


@runtime_checkable
class PromptSink(Sink, Protocol):
    """A way out that mostly need not be waited for: then no task is woken for a write."""

    def write_now(self, batch: Sequence[bytes]) -> bool:
        """Write as `write` does if that needs no waiting; False: nothing was written."""
        ...


class Outlet(Protocol):
    """Where the events of a turn go: an outbox, or what may have one behind it."""

    def send(self, event: Outgoing) -> bool:
        """Send an event; return whether there is room for more."""
        ...

    def send_all(self, events: Sequence[Outgoing], *, at_once: bool) -> bool:
        """Send events that are there together; return whether there is room for more.

        Args:
            events: The events, in order.
            at_once: Whether they leave in this very call if they need not wait for the peer: for
                a turn that is the only one with anything to say. Else the events of all that
                happens in one iteration of the loop share a write.
        """
        ...

    async def drain(self) -> None:
        """Wait until there is room, or nobody who reads. Cancelling is safe."""
        ...


class _Paced:
    """What every token needs of an outbox.

    Members of a base class stand before all others in the memory, and between two tokens of one
    session the processor's caches forget: each line of memory that is not touched is a gain.
    """

    __slots__ = (
        "_bytes",
        "_interval",
        "_is_due",
        "_is_full",
        "_last_event_at",
        "_loop",
        "_monotonic",
        "_prompt",
        "_queue",
        "_settings",
        "_sink",
        "_timer",
        "is_broken",
    )


class Outbox(_Paced):
    """Queue and writer of one connection."""

    __slots__ = (
        "_calm",
        "_closed",
        "_is_writing",
        "_prompt_sink",
        "_room",
        "_wake",
        "_written_at",
    )

    def __init__(self, sink: Sink, settings: OutboxSettings, clock: Clock) -> None:
        """Make an empty outbox; `run` must be running for anything to leave it."""
        self._sink = sink
        self._monotonic = clock.monotonic
        # Kept: to ask for the running loop takes a system call.
        self._loop = asyncio.get_running_loop()
        self._prompt_sink = sink if isinstance(sink, PromptSink) else None
        self._prompt = self._prompt_sink
        """The sink while it may be written to without the writer, else None."""
        self._settings = settings
        self._queue: list[bytes] = []
        self._bytes = 0
        """Bytes of what is not written: what waits, and the writer's batch."""
        self._is_due = False
        """Whether what is queued leaves in the next tick of the loop."""
        self._is_writing = False
        """Whether the writer is in the middle of a write."""
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_full = False
        """Whether there is no room; asked for every write, and an event is set in Python."""
        self._calm = asyncio.Event()
        self._calm.set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._last_event_at = float("-inf")
        self._interval = 1.0
        self.is_broken = False
        """Whether the peer is gone; then everything sent is dropped."""
        self._written_at = clock.monotonic()
        """When the writer wrote last, or a sign of life was sent."""

    def send(self, event: Outgoing) -> bool:
        """Queue an event.

        Returns:
            Whether there is room for more; when not, the caller must await `drain` before the
            next event of its turn.
        """
        if self.is_broken:
            return True
        encoded = self._sink.encode(event)
        self._queue.append(encoded)
        self._bytes += len(encoded)
        has_room = self._bytes < self._settings.outbox_bytes or self._fill()
        monotonic = self._monotonic  # to call a member in one go is slower in Python 3.11
        now = monotonic()
        gap = now - self._last_event_at
        self._last_event_at = now
        window = 0.0
        if isinstance(event, Delta):
            interval = self._interval
            interval += ((gap if gap < 1.0 else 1.0) - interval) * _SMOOTHING
            self._interval = interval
            if interval <= _FAST and gap < self._settings.quiet_s:
                window = self._window()
        if self._is_due:
            return has_room
        if window == 0.0:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(window, self.flush)
        return has_room

    def send_all(self, events: Sequence[Outgoing], *, at_once: bool) -> bool:
        """Queue events that are there together, and write them `at_once` where that is asked for.

        Returns:
            As `send` does.
        """
        if self.is_broken or not events:
            return True
        queue, encode = self._queue, self._sink.encode
        try:
            for event in events:
                encoded = encode(event)
                queue.append(encoded)
                self._bytes += len(encoded)
        finally:  # one that cannot be encoded does not keep those before it
            if self._bytes >= self._settings.outbox_bytes:
                self._fill()
            self._last_event_at = self._monotonic()
            if at_once and self._prompt is not None:
                if self._timer is not None:
                    self._cancel_timer(self._timer)
                self._is_due = True
                self._write_now()
            elif not self._is_due:
                self.flush()
        return self._bytes < self._settings.outbox_bytes

    def _window(self) -> float:
        """Return how long fast deltas wait for company."""
        if self._interval > _FASTEST:
            return self._settings.fast_window_s
        return self._settings.fastest_window_s

    def send_heartbeat(self) -> None:
        """Queue the transport's own sign of life, if it has one and nothing else is on its way."""
        if self.is_broken or self._queue or self._is_writing:
            return  # a peer that does not read must not make the queue grow
        beat = self._sink.heartbeat()
        if beat is not None:
            self._queue.append(beat)
            self._bytes += len(beat)
            self._written_at = self._monotonic()
            self.flush()

    def _fill(self) -> bool:
        """Note that there is no room, and return so."""
        self._is_full = True
        self._room.clear()
        if self._bytes >= 2 * self._settings.outbox_bytes:
            self._calm.clear()
        return False

    def flush(self) -> None:
        """Let what is queued leave in the next tick of the loop."""
        if self._timer is not None:
            self._cancel_timer(self._timer)
        self._is_due = True
        if self._prompt is None:
            self._wake_writer()
        else:
            self._loop.call_soon(self._write_now)

    def _wake_writer(self) -> None:
        self._prompt = None
        self._wake.set()

    def _cancel_timer(self, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._timer = None

    def _write_now(self) -> None:
        """Write what is due at once, else let the writer do it."""
        if not self._is_due:
            return
        prompt, queue = self._prompt, self._queue
        if prompt is None or not queue or not prompt.write_now(queue):
            self._wake_writer()
            return
        self._is_due = False
        queue.clear()
        self._bytes = 0
        if self._is_full:
            self._make_room()

    async def drain(self) -> None:
        """Wait until there is room, or the peer is gone. Cancelling is safe."""
        self.flush()
        await self._room.wait()

    @property
    def last_write_at(self) -> float:
        """Seconds on the clock of the last write, which waits for no more than a window."""
        return max(self._last_event_at, self._written_at)

    @property
    def is_crowded(self) -> bool:
        """Whether twice the bound waits, as only answers to what the peer itself sends can do."""
        return not self._calm.is_set()

    async def calm(self) -> None:
        """Wait until it is no longer crowded, or the peer is gone. Cancelling is safe."""
        await self._calm.wait()

    def close(self) -> None:
        """Take no more events; `run` returns when all that is queued was written."""
        self._closed = True
        self._prompt = None
        self.flush()

    def break_off(self) -> None:
        """Drop everything: the peer is gone."""
        self.is_broken = True
        self._prompt = None
        self._queue.clear()
        self._bytes = 0
        self._room.set()
        self._calm.set()
        self.flush()

    def _make_room(self) -> None:
        if self._bytes < self._settings.outbox_bytes:
            self._is_full = False
            self._room.set()
            self._calm.set()

    def _take(self) -> list[bytes]:
        batch, self._queue = self._queue, []
        return batch

    async def run(self) -> None:
        """Write until closed and empty, or until the peer is gone."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._is_due = False
            size = self._bytes
            if self._queue and not self.is_broken:
                self._is_writing = True
                try:
                    # The batch is the sink's alone: what it let go of is not held here too.
                    await self._sink.write(self._take())
                except ConnectionError:
                    self.break_off()
                self._is_writing = False
                if not self.is_broken:
                    self._bytes -= size
                self._written_at = self._monotonic()
            self._make_room()
            if self.is_broken or (self._closed and not self._queue):
                return
            if not self._closed and not self._wake.is_set():
                self._prompt = self._prompt_sink
