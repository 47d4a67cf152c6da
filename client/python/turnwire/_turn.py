"""One turn: from a create to its terminal event."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from turnwire._event import Event
from turnwire._request import InputItem, RequestInput, build_input
from turnwire._response import FunctionCall, Response, function_calls
from turnwire._stats import TurnStats
from turnwire._steer import Steer, SteerState
from turnwire._turn_state import TurnState
from turnwire.errors import TurnwireError
from turnwire.v1.client_event_pb2 import Input

__all__ = ["Turn", "TurnHost", "TurnState", "TurnStats"]


class TurnHost(Protocol):
    """What a turn asks of its session."""

    def cancel(self, state: TurnState) -> None:
        """Ask the server to end the turn."""

    def append(self, state: TurnState, input: Input) -> None:
        """Send outputs to a paused turn."""

    def steer(self, state: TurnState, input: Input) -> SteerState:
        """Send user messages to a turn that runs."""


class Turn:
    """One turn, made by `session.create`.

    Iterate over it for its events, await `response()` for its end, or first the one and then the
    other. Both raise `ResponseRejected` when the create was refused, `TurnFailed` when the turn
    broke (after its `response.failed` event), `ConnectionLost` (`OutputLost` when output had been
    given out), `Timeout` or `SessionClosed`. A response that is `incomplete` or `cancelled` is not
    an error.

    A lost connection is reopened by the session. Where the session goes on, so does the turn, and
    nobody notices. Where it cannot, a turn without output so far begins again: then it has another
    `response_id`, and who iterates gets `response.created` once more. One whose response was
    finished and stored meanwhile ends with its terminal event, which has all of the output.

    Cancelling a task that waits here is safe and does not end the turn; used as an async context
    manager, the turn is told to end when the block is left before its end. A turn of which nobody
    reads the events holds up its connection once `max_buffered_events` wait; a turn that nobody
    refers to any more does not.
    """

    def __init__(self, state: TurnState, host: TurnHost) -> None:
        self._state = state
        self._host = host
        self._loop = asyncio.get_running_loop()

    @property
    def event_id(self) -> str:
        """The id that the create was sent with."""
        return self._state.event_id

    @property
    def stream_id(self) -> str | None:
        """The lane; None for the default lane."""
        return self._state.stream_id

    @property
    def response_id(self) -> str | None:
        """Id of the response; None until `response.created` came."""
        return self._state.response_id

    @property
    def stats(self) -> TurnStats | None:
        """What the turn cost; None until it is over."""
        return self._state.stats()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        state = self._state
        while not state.events:
            if isinstance(state.outcome, TurnwireError):
                raise state.outcome
            if state.outcome is not None:
                raise StopAsyncIteration
            await state.news.wait()
        # One call less for nearly all events.
        return state.take() if state.is_full else state.events.popleft()

    async def started(self) -> str:
        """Wait until the turn has begun, its parent being pinned, and return its response's id.

        After this the parent's lane may move on (protocol: forks).

        Raises:
            TurnwireError: It ended without having begun.
        """
        state = self._state
        await state.until(lambda: state.has_begun)
        if not state.has_begun and isinstance(state.outcome, TurnwireError):
            raise state.outcome
        return state.response_id or ""

    async def response(self) -> Response:
        """Wait for the end and return the final response. Events that were not read are dropped."""
        return await self._state.result()

    # Rollouts.

    @property
    def is_paused(self) -> bool:
        """Whether it is a rollout that waits for outputs."""
        return self._state.waits_for_user

    @property
    def calls(self) -> list[FunctionCall]:
        """The calls that a paused rollout waits for, in order; none when it does not wait."""
        return function_calls(self._state.round_items()) if self._state.waits_for_user else []

    async def paused(self) -> list[FunctionCall]:
        """Wait until a rollout pauses, and return the calls that it waits for.

        Returns:
            None of them when the turn is over; `response()` then has its end.
        """
        state = self._state
        await state.until(lambda: state.waits_for_user)
        return self.calls

    async def append(self, input: Sequence[InputItem]) -> None:
        """Answer the calls of a paused rollout, and wait until the server goes on with it.

        Args:
            input: An output for each call, and user messages if any.

        Raises:
            ValueError: The turn is not paused, or an item is none.
            ResponseRejected: The server does not take it; the turn waits as before.
            TurnwireError: The turn is over, and not well.
        """
        state = self._state
        if not state.waits_for_user:
            raise ValueError("the turn is not paused")
        self._host.append(state, build_input(input))
        await state.until(lambda: not state.is_appending)
        if state.append_error is not None:
            raise state.append_error
        if isinstance(state.outcome, TurnwireError):
            raise state.outcome

    # Steering.

    async def steer(self, input: RequestInput) -> Steer:
        """Send user messages while the turn runs, and wait until the server has taken them.

        The turn ends with the item that the model is writing, and another turn follows by itself
        that has the messages as its input: `await steer.successor()`.

        Args:
            input: Text, or user messages.

        Raises:
            ValueError: An item is none.
            ResponseRejected: The server does not take it, for example `response_already_completed`
                or `steering_not_supported`; the turn goes on.
            TurnwireError: The turn ended without having begun, or the connection is over.
        """
        built = build_input(input)
        await self.started()
        state = self._host.steer(self._state, built)
        await state.until(lambda: state.id is not None)
        return Steer(state)

    async def cancel(self) -> None:
        """Ask the server to end the turn, and wait until it is over.

        `response()` then returns the response with status `cancelled`, or raises
        `RequestCancelled` when the turn had not begun. Does nothing when the turn is over, and
        raises nothing: however the turn ended, iteration and `response()` tell. Events that were
        received before stay readable.
        """
        if self._state.outcome is None:
            self._host.cancel(self._state)
            self._state.keep_all()
            await self._state.until(lambda: False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Not waited for: the block may be left because its task is being cancelled.
        if self._state.outcome is None:
            self._host.cancel(self._state)

    def __del__(self) -> None:
        # The last reference may go on another thread, and after the loop.
        if self._state.outcome is None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._state.discard)

    def __repr__(self) -> str:
        return f"<Turn {self.response_id or self.event_id}>"
