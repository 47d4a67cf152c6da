"""One wire with its reader and its writer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias

from turnwire._create import Create
from turnwire._news import News
from turnwire._turn_state import TurnState
from turnwire._wire import Arrival, Wire
from turnwire.errors import ConnectionLost, TurnwireError
from turnwire.v1.client_event_pb2 import ClientEvent

__all__ = ["Link"]

_SendCreate: TypeAlias = Callable[[Create], Coroutine[Any, Any, int]]

# How long a broken writer waits for the reader to say why.
_LAST_WORDS_S = 1.0


class Link:
    """What a session is attached to, until it is lost or left.

    However its reader or its writer ends, the session is told once. A link that was left goes on
    reading, and drops what comes, until it is dropped itself: to cancel a read or a write may be an
    announced end for the server, and the session may be about to go on elsewhere.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        route: Callable[[Arrival], TurnState | None],
        sent: Callable[[TurnState | None, int], None],
        lost: Callable[[Link, Exception], None],
        early: Sequence[Arrival] = (),
    ) -> None:
        """Attach to a wire.

        Args:
            wire: The wire; it belongs to the link from now on.
            route: Called with each thing that came; what it returns may hold up the reader.
            sent: Called with the turn and the payload bytes of each event that was sent.
            lost: Called once with why the link is over.
            early: What was read from the wire before.
        """
        self.wire = wire
        self.paused_by: TurnState | None = None
        """The turn whose unread events hold up the reader."""
        self._route = route
        self._sent = sent
        self._lost = lost
        self._is_deaf = self._is_mute = False
        self._is_over = False
        self._received = 0
        """How often something came."""
        self._loop = asyncio.get_running_loop()
        # Bounded by what the user starts and has not seen the end of.
        self._outbox: deque[tuple[ClientEvent | Create | _Begun, TurnState | None]] = deque()
        """What is being written, and what waits behind it."""
        self._more = News()
        self._written = News()
        self._send_create: _SendCreate | None = getattr(wire, "send_create", None)
        """Sends a create of which there is no message yet; not on each wire."""
        self._is_idle = False
        """Whether the writer waits for something to write."""
        self._reader = self._loop.create_task(self._read(early), name="turnwire reader")
        self._writer = self._loop.create_task(self._write(), name="turnwire writer")
        self._reader.add_done_callback(self._ended)
        self._writer.add_done_callback(self._ended)

    def send(self, event: ClientEvent | Create, state: TurnState | None = None) -> None:
        """Send an event after those before it; its bytes are put down to `state`.

        With nothing before it, it leaves from here: the writer then waits for the rest of it.
        """
        what: ClientEvent | Create | _Begun = event
        if self._is_idle and not self._is_mute:
            what = _Begun(self._give(event))
            if what.result is not None:
                self._sent(state, what.result)
                return
        self._is_idle = False
        self._outbox.append((what, state))
        self._more.tell()

    def fail(self, error: Exception) -> None:
        """Give the link up: it is known to be dead."""
        if not self._is_over:
            self._is_over = True
            self._lost(self, error)

    def leave(self) -> None:
        """Take nothing more from it and give it nothing more."""
        self._is_deaf = self._is_mute = True

    async def ping(self, timeout_s: float) -> None:
        """Fail unless the other side gives a sign of life in time."""
        received = self._received
        try:
            async with asyncio.timeout(timeout_s):
                await self.wire.ping()
        except TimeoutError:
            if self._received == received:
                self.fail(ConnectionLost("the connection is dead: a ping was not answered"))
        except TurnwireError as error:
            self.fail(error)

    async def close(self) -> None:
        """Send what waits, say good-bye and wait for the other side. What comes is dropped."""
        self._is_deaf = True
        flushed = self._loop.create_task(self._flush())
        try:
            await asyncio.wait((flushed, self._writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            flushed.cancel()
        if not self._writer.done():  # Else nothing can be said any more.
            await self.wire.close()

    async def drop(self) -> None:
        """Let go of everything at once. Idempotent."""
        self._is_over = True
        self._is_idle = False
        self._reader.cancel()
        self._writer.cancel()
        await asyncio.gather(self._reader, self._writer, return_exceptions=True)
        await self.wire.abort()

    # Private.

    async def _read(self, early: Sequence[Arrival]) -> None:
        arrivals = early
        route = self._route
        while True:
            for arrival in arrivals:
                if self._is_deaf:
                    break
                state = route(arrival)
                if state is not None and state.is_full:
                    self.paused_by = state
                    await state.room()
                    self.paused_by = None
            arrivals = await self.wire.receive()
            self._received += 1

    async def _write(self) -> None:
        outbox = self._outbox
        while True:
            while outbox:
                what, state = outbox[0]
                if isinstance(what, _Begun):
                    self._sent(state, await what)
                elif not self._is_mute:
                    self._sent(state, await self._give(what))
                outbox.popleft()
            self._is_idle = True
            self._written.tell()
            await self._more.wait()

    def _give(self, event: ClientEvent | Create) -> Coroutine[Any, Any, int]:
        """Return the sending of an event."""
        if isinstance(event, ClientEvent):
            return self.wire.send(event)
        if self._send_create is not None:
            return self._send_create(event)
        return self.wire.send(event.whole)

    async def _flush(self) -> None:
        while self._outbox:
            await self._written.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._is_over:
            return
        # What the server said last tells more than that it takes nothing more.
        if self._reader.done():
            self.fail(_reason(self._reader))
        elif isinstance(reason := _reason(task), TurnwireError):
            self._loop.call_later(_LAST_WORDS_S, self.fail, reason)
        else:
            self.fail(reason)


class _Begun:
    """Work that has made its first step outside of a task, for a task to go on with."""

    __slots__ = ("_error", "_waits_for", "_work", "result")

    def __init__(self, work: Coroutine[Any, Any, int]) -> None:
        self._work = work
        self.result: int | None = None
        """What it returned, if that was all."""
        self._error: BaseException | None = None
        self._waits_for: object = None
        try:
            self._waits_for = work.send(None)
        except StopIteration as end:
            self.result = end.value
        except (Exception, asyncio.CancelledError) as error:
            self._error = error  # It is the task's, which would have met it.

    def __await__(self) -> Generator[Any, None, int]:
        if self._error is not None:
            raise self._error
        while True:
            try:
                yield self._waits_for
            except BaseException as error:
                step = partial(self._work.throw, error)  # A cancellation is for the work to see.
            else:
                step = partial(self._work.send, None)
            try:
                self._waits_for = step()
            except StopIteration as end:
                return int(end.value)


def _reason(task: asyncio.Task[None]) -> Exception:
    error = None if task.cancelled() else task.exception()
    return error if isinstance(error, Exception) else ConnectionLost("the wire was cut")
