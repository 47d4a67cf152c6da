"""One turn: from a create to its terminal event."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from turnwire._event import DELTA_ARMS, TERMINAL_ARMS, Event
from turnwire._rejections import rejection_from_body
from turnwire._request import InputItem, RequestInput, build_input
from turnwire._response import FunctionCall, Response, Timing, function_calls
from turnwire._steer import STEER_ARMS, Steer, SteerState
from turnwire.errors import ProtocolViolation, ResponseRejected, TurnFailed, TurnwireError
from turnwire.v1 import response_pb2
from turnwire.v1.client_event_pb2 import Input
from turnwire.v1.item_pb2 import Item

__all__ = ["Turn", "TurnHost", "TurnState", "TurnStats"]

# Events of a paused turn that do not mean that it goes on.
_WHILE_PAUSED = STEER_ARMS | {"keepalive", "response_in_progress"}


@dataclass(frozen=True, slots=True)
class TurnStats:
    """What one turn cost, as this client saw it.

    The token counts come from the server: `sent` and `rendered` need
    `include=["turnwire.timing"]`, which `session.run` asks for by itself.
    """

    response_id: str | None
    """Id of the response; None when the create was rejected."""
    status: str
    """Status of the response; `rejected` or `lost` when there is none."""
    ttft_s: float | None
    """Seconds from `create` to the first delta; None when there was none."""
    total_s: float
    """Seconds from `create` to the terminal event; the queue is part of it."""
    input_items: int
    """Items that the create brought."""
    tokens_input: int | None
    """Tokens of the whole prompt."""
    tokens_sent: int | None
    """Tokens of the items that the create brought."""
    tokens_rendered: int | None
    """Tokens that the server tokenized for this turn."""
    tokens_cached: int | None
    """Prompt tokens that the engine found in its prefix cache."""
    tokens_output: int | None
    """Tokens generated."""
    bytes_up: int
    """Payload bytes of the create."""
    bytes_down: int
    """Payload bytes of the turn's events."""
    overhead_ms: float | None
    """`total_s` without pauses and the engine's prefill and decode, in milliseconds: wire, server,
    client."""
    timing: Timing | None
    """Where the time went inside the server."""
    paused_s: float = 0.0
    """Seconds of `total_s` that a rollout waited for this client, its tools for example."""


class TurnState:
    """What the session knows of a turn. Lives on the session's event loop."""

    def __init__(
        self, event_id: str, stream_id: str | None, input_items: int, max_events: int
    ) -> None:
        self.event_id = event_id
        self.stream_id = stream_id
        self.response_id: str | None = None
        self.is_over = False
        """The server says nothing more about it; `outcome` may have been there before."""
        self.has_begun = False
        """It runs, or ran: its parent is pinned."""
        self.cancel_asked = False
        self.bytes_up = 0
        self.started = time.perf_counter()
        self.outcome: Response | TurnwireError | None = None
        self.is_paused = False
        """It is a rollout that said what it waits for and did not go on yet."""
        self.is_appending = False
        """Outputs are on their way."""
        self.append_error: TurnwireError | None = None
        """Why the last append was refused."""
        self._input_items = input_items
        self._max_events = max_events
        self._events: deque[Event] = deque()
        self._discard = False
        self._items: dict[int, Item] = {}
        self._round_start = 0
        self._paused_at = 0.0
        self._paused_s = 0.0
        self._last_sequence_number = -1
        self._bytes_down = 0
        self._first_delta: float | None = None
        self._ended = self.started
        # Set whenever something changed that a coroutine may wait for.
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    # What comes in.

    def feed(self, event: Event, size: int) -> None:
        """Take one event of this turn."""
        self._bytes_down += size
        arm = event.arm
        if self.outcome is not None:
            self.is_over = arm in TERMINAL_ARMS
            return
        number = event.sequence_number
        if number is not None:
            if number <= self._last_sequence_number:
                self.end(ProtocolViolation(f"sequence number {number} came twice or late"))
                return
            self._last_sequence_number = number
        if arm == "response_done":
            self._pause()
        elif self.is_paused and arm not in _WHILE_PAUSED:
            self._go_on()
        if arm in DELTA_ARMS:
            if self._first_delta is None:
                self._first_delta = time.perf_counter()
        elif arm == "response_output_item_done":
            done = event.message
            self._items[done.output_index] = done.item  # type: ignore[attr-defined]  # By arm.
        elif arm == "response_created":
            response = event.response
            self.response_id = response.id if response is not None else None
        elif arm == "response_in_progress":
            self.has_begun = True
        elif arm in TERMINAL_ARMS:
            self._terminal(event)
            return
        self._keep(event)

    def end(self, outcome: Response | TurnwireError) -> None:
        """End the turn for the user; only the first end counts."""
        if self.outcome is None:
            self.outcome = outcome
            self._ended = time.perf_counter()
            self._changed()

    def lose(self, error: TurnwireError) -> None:
        """End the turn for good: no more events will come."""
        self.is_over = True
        self.end(error)

    @property
    def waits_for_user(self) -> bool:
        """Whether it is paused and nothing is on its way."""
        return self.is_paused and not self.is_appending

    def begin_append(self) -> None:
        """Note that outputs are sent: the time is the server's again."""
        self.append_error = None
        self.is_appending = True
        self._paused_s += time.perf_counter() - self._paused_at

    def refuse_append(self, error: TurnwireError) -> None:
        """Note that the server refused what was appended: the turn still waits."""
        self.append_error = error
        self.is_appending = False
        self._paused_at = time.perf_counter()
        self._changed()

    def round_items(self) -> list[Item]:
        """Return the items of the newest round of a rollout, in order."""
        return [item for index, item in sorted(self._items.items()) if index >= self._round_start]

    def discard(self) -> None:
        """Drop what was not read and what will come; only the outcome matters from now on."""
        self._discard = True
        self._events.clear()
        self._room.set()

    def keep_all(self) -> None:
        """Stop holding up the connection: somebody waits for the end without reading."""
        self._max_events = sys.maxsize
        self._room.set()

    @property
    def is_full(self) -> bool:
        """Whether the user should read before more is taken in."""
        return not self._room.is_set()

    async def room(self) -> None:
        """Wait until the user has read enough for more to be kept."""
        await self._room.wait()

    # What the user takes.

    async def next_events(self) -> list[Event]:
        """Wait for events and return all that are there; none when the turn is over.

        Raises:
            TurnwireError: The turn is over, and not well.
        """
        while not self._events and self.outcome is None:
            await self._wait()
        events = list(self._events)
        self._events.clear()
        self._room.set()
        if not events and isinstance(self.outcome, TurnwireError):
            raise self.outcome
        return events

    async def next_event(self) -> Event | None:
        """Wait for one event and return it; None when the turn is over; raises as above."""
        while not self._events:
            if isinstance(self.outcome, TurnwireError):
                raise self.outcome
            if self.outcome is not None:
                return None
            await self._wait()
        event = self._events.popleft()
        if len(self._events) < self._max_events:
            self._room.set()
        return event

    async def result(self) -> Response:
        """Wait for the end, dropping events; raises as above."""
        self.discard()
        while self.outcome is None:
            await self._wait()
        if isinstance(self.outcome, TurnwireError):
            raise self.outcome
        return self.outcome

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds or the turn is over."""
        while self.outcome is None and not condition():
            await self._wait()

    def stats(self) -> TurnStats | None:
        """Return what the turn cost; None until it is over."""
        outcome = self.outcome
        if outcome is None:
            return None
        response = outcome if isinstance(outcome, Response) else None
        if isinstance(outcome, TurnFailed):
            response = outcome.response
        timing = response.timing if response is not None else None
        usage = response.usage if response is not None else None
        tokens = timing.tokens if timing is not None else None
        total_s = self._ended - self.started
        paused_s = self._paused_s + (self._ended - self._paused_at if self.waits_for_user else 0.0)
        engine_ms = timing.prefill_ms + timing.decode_ms if timing is not None else None
        return TurnStats(
            response_id=self.response_id,
            status=response.status if response is not None else _status_without_response(outcome),
            ttft_s=None if self._first_delta is None else self._first_delta - self.started,
            total_s=total_s,
            input_items=self._input_items,
            tokens_input=usage.input_tokens if usage is not None else None,
            tokens_sent=tokens.sent if tokens is not None else None,
            tokens_rendered=tokens.rendered if tokens is not None else None,
            tokens_cached=usage.cached_tokens if usage is not None else None,
            tokens_output=usage.output_tokens if usage is not None else None,
            bytes_up=self.bytes_up,
            bytes_down=self._bytes_down,
            overhead_ms=None
            if engine_ms is None
            else max(0.0, (total_s - paused_s) * 1000 - engine_ms),
            timing=timing,
            paused_s=paused_s,
        )

    # Private.

    def _pause(self) -> None:
        self.is_paused = True
        self._paused_at = time.perf_counter()

    def _go_on(self) -> None:
        if self.waits_for_user:
            self._paused_s += time.perf_counter() - self._paused_at
        self.is_paused = self.is_appending = False
        self._round_start = len(self._items)

    def _keep(self, event: Event) -> None:
        if not self._discard:
            self._events.append(event)
            if len(self._events) >= self._max_events:
                self._room.clear()
        self._changed()

    def _changed(self) -> None:
        self._news.set()

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _terminal(self, event: Event) -> None:
        self.is_over = True
        if event.arm == "error":
            message = event.message
            self.end(rejection_from_body(message.status, message.error))  # type: ignore[attr-defined]  # By arm.
            return
        response = event.response
        assert response is not None  # The other terminal arms all have one.
        self.response_id = response.id or self.response_id
        self.has_begun = True
        if not response.message.output:
            # A server may leave it out, as every item was sent before.
            response.message.output.extend(item for _, item in sorted(self._items.items()))
        if response.message.status == response_pb2.RESPONSE_STATUS_UNSPECIFIED:
            response.message.status = _STATUS_OF_ARM[event.arm]
        self._keep(event)
        self.end(TurnFailed(response) if event.arm == "response_failed" else response)


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
    broke (after its `response.failed` event), `ConnectionLost`, `Timeout` or `SessionClosed`.
    A response that is `incomplete` or `cancelled` is not an error.

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
        event = await self._state.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

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
        built = build_input(input)
        state.begin_append()
        self._host.append(state, built)
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


def _status_without_response(outcome: Response | TurnwireError) -> str:
    return "rejected" if isinstance(outcome, ResponseRejected) else "lost"


_STATUS_OF_ARM = {
    "response_completed": response_pb2.RESPONSE_STATUS_COMPLETED,
    "response_incomplete": response_pb2.RESPONSE_STATUS_INCOMPLETE,
    "response_failed": response_pb2.RESPONSE_STATUS_FAILED,
}
