"""One turn on behalf of one HTTP exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from turnwire._event import TERMINAL_ARMS, Event
from turnwire._json import plain
from turnwire._response import Response
from turnwire._turn import Turn
from turnwire.errors import ResponseRejected, TurnFailed
from turnwire.openai import _answers
from turnwire.openai._items import chain
from turnwire.openai._plan import Plan
from turnwire.openai._pool import SessionPool
from turnwire.openai._slots import Head, Lease
from turnwire.openai._values import PhaseTimeoutError
from turnwire.v1 import response_pb2
from turnwire.v1.server_event_pb2 import ServerEvent

__all__ = ["Running", "within"]

ResultT = TypeVar("ResultT")

_ARMS_WITH_RESPONSE = frozenset(
    arm.name
    for arm in ServerEvent.DESCRIPTOR.oneofs_by_name["event"].fields
    if arm.message_type is not None and "response" in arm.message_type.fields_by_name
)
_CONTINUABLE = frozenset({"completed", "incomplete"})
_CANCEL_TIMEOUT_S = 10.0


async def within(read_s: float | None, work: Awaitable[ResultT]) -> ResultT:
    """Wait for `work`, at most `read_s` seconds.

    Raises:
        PhaseTimeoutError: It took longer.
    """
    try:
        async with asyncio.timeout(read_s):
            return await work
    except TimeoutError:
        raise PhaseTimeoutError("read", "nothing came in time") from None


class Running:
    """A turn that runs, and its session, until the exchange is over: the stream of its events."""

    def __init__(
        self, turn: Turn, plan: Plan, lease: Lease, pool: SessionPool, read_s: float | None
    ) -> None:
        self._turn = turn
        self._plan = plan
        self._lease = lease
        self._pool = pool
        self._read_s = read_s
        self._loop = asyncio.get_running_loop()
        self._pending: list[Event] = []
        self._is_over = False

    async def begin(self) -> None:
        """Wait for the first events: from then on the turn runs, and an answer can begin.

        Raises:
            TurnwireError: It was refused, or there was no answer; the session is still taken.
        """
        self._pending = await within(self._read_s, self._turn._state.next_events())

    async def result(self) -> Response:
        """Wait for the end and return the response, a failed one too.

        Raises:
            TurnwireError: There is none.
        """
        self._pending.clear()
        try:
            response = await within(self._read_s, self._turn.response())
        except TurnFailed as failed:
            response = failed.response
        self._restore(response.message)
        self._finish()
        return response

    async def next_chunk(self) -> bytes:
        """Wait for the next events and return their lines; empty at the end.

        Raises:
            TurnwireError: The turn was cut.
        """
        if self._is_over:
            return b""
        events, self._pending = self._pending, []
        try:
            if not events:
                events = await within(self._read_s, self._turn._state.next_events())
        except ResponseRejected as error:
            self._finish()
            return _answers.error_chunk(error)
        except BaseException:
            self.abandon()
            raise
        if not events:
            self._finish()
            return _answers.SSE_DONE
        for event in events:
            if event.arm in _ARMS_WITH_RESPONSE:
                self._restore(event.message.response)  # type: ignore[attr-defined]  # By arm.
            event.whole.ClearField("stream_id")  # The lane is this side's affair.
        lines = b"".join(map(_answers.sse, events))
        if events[-1].arm in TERMINAL_ARMS:
            # Here, since many a reader closes at this event and never asks for the rest.
            self._finish()
            lines += _answers.SSE_DONE
        return lines

    async def aclose(self) -> None:
        """End the turn unless it is over. Does not wait for its end; the session does."""
        self.abandon()

    def abandon(self) -> None:
        """End the turn unless it is over, and give the session back once it is."""
        if not self._is_over:
            self._is_over = True
            _leave_later(self._turn, self._lease, self._pool)

    def hand_over(self) -> None:
        """Leave the session to another turn: this one was refused."""
        self._is_over = True

    def __del__(self) -> None:
        # An answer that was never read to its end nor closed must not keep its session for ever.
        if not self._is_over and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_leave_later, self._turn, self._lease, self._pool)

    # Private.

    def _finish(self) -> None:
        self._is_over = True
        self._pool.release(self._lease.slot, self._head(), is_stored=self._plan.is_stored)

    def _head(self) -> Head | None:
        response = self._turn._state.outcome
        if not isinstance(response, Response) or response.status not in _CONTINUABLE:
            return None
        if not self._plan.is_followed:
            return None
        try:
            output = [plain(item) for item in response.message.output]
            return Head(response.id, chain(self._plan.digests[-1], output)[-1])
        except ValueError:
            return None  # Nested too deep to be compared.

    def _restore(self, response: response_pb2.Response) -> None:
        """Take out what only the session has to do with."""
        if self._plan.parent is None:
            response.ClearField("previous_response_id")
        if response.HasField("turnwire"):
            response.turnwire.ClearField("event_id")
            if not response.turnwire.ListFields():
                response.ClearField("turnwire")


def _leave_later(turn: Turn, lease: Lease, pool: SessionPool) -> None:
    if turn._state.outcome is None:
        pool.own(_leave(turn, lease, pool))
    else:
        pool.release(lease.slot, None)


async def _leave(turn: Turn, lease: Lease, pool: SessionPool) -> None:
    try:
        async with asyncio.timeout(_CANCEL_TIMEOUT_S):
            await turn.cancel()
    except TimeoutError:
        pool.discard(lease.slot)
    else:
        pool.release(lease.slot, None)
