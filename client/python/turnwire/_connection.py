"""The connection of a session: one reader, one writer, and who gets which event."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from turnwire._event import Event
from turnwire._rejections import rejection_from_body
from turnwire._steer import STEER_ARMS, Steers, SteerState
from turnwire._turn import Turn, TurnState
from turnwire._wire import Arrival, Wire, WireSettings
from turnwire.errors import ProtocolViolation, SessionClosed, Timeout, TurnwireError
from turnwire.v1.client_event_pb2 import (
    ClientEvent,
    Input,
    ResponseAppend,
    ResponseCancel,
    ResponseCreate,
    ResponseSteer,
)
from turnwire.v1.server_event_pb2 import ServerEvent

__all__ = ["Connection"]

# Refusals that are about the connection and not about one of its turns.
_CONNECTION_CODES = frozenset(
    {"websocket_connection_limit_reached", "session_taken_over", "invalid_stream_id"}
)


@dataclass(slots=True)
class _Lane:
    turns: deque[TurnState] = field(default_factory=deque)
    last_event: float = 0.0
    timer: asyncio.TimerHandle | None = None


class Connection:
    """Turns on a wire.

    A turn belongs to a lane; events go to the first turn of their lane that is not over, refusals
    to the create that their `event_id` names. The reader never waits for a turn, except for room
    when its events are not read.
    """

    def __init__(
        self,
        wire: Wire,
        settings: WireSettings,
        *,
        max_buffered_events: int,
        on_notice: Callable[[Event], None] | None,
    ) -> None:
        self._wire = wire
        self._settings = settings
        self._max_buffered_events = max_buffered_events
        self._on_notice = on_notice
        self._loop = asyncio.get_running_loop()
        self._turns: dict[str, TurnState] = {}
        self._lanes: dict[str | None, _Lane] = {}
        self._appends: dict[str, TurnState] = {}
        """Append's `event_id` -> the turn that it answers."""
        self._steers = Steers()
        self._error: TurnwireError | None = None
        self._is_closing = False
        self._paused_by: TurnState | None = None
        self.bytes_up = 0
        """Payload bytes of client events."""
        self.bytes_down = 0
        """Payload bytes of server events."""
        self._event_prefix = f"evt_{secrets.token_hex(6)}"
        self._created = 0
        # Bounded by what the user starts and has not seen the end of.
        self._outbox: asyncio.Queue[tuple[ClientEvent, TurnState | None]] = asyncio.Queue()
        self._reader = self._loop.create_task(self._read(), name="turnwire reader")
        self._writer = self._loop.create_task(self._write(), name="turnwire writer")

    @property
    def is_open(self) -> bool:
        """Whether turns can be started."""
        return self._error is None and not self._is_closing

    def start(self, create: ResponseCreate, stream_id: str | None, event_id: str | None) -> Turn:
        """Start a turn; `Session.create` has the contract."""
        if self._error is not None:
            raise self._error
        if self._is_closing:
            raise SessionClosed("the session was closed")
        if event_id is None:
            event_id = self._new_event_id()
        elif event_id in self._turns:
            raise ValueError(f"event_id: {event_id!r} is a turn that runs")
        count = len(create.input.items.items) or int(create.input.WhichOneof("value") == "text")
        state = TurnState(event_id, stream_id, count, self._max_buffered_events)
        self._turns[event_id] = state
        lane = self._lanes.setdefault(stream_id, _Lane())
        lane.turns.append(state)
        if len(lane.turns) == 1:
            lane.last_event = self._loop.time()
        self._watch(lane)
        event = ClientEvent(event_id=event_id, stream_id=stream_id, response_create=create)
        self._outbox.put_nowait((event, state))
        return Turn(state, self)

    async def close(self, *, finish: bool = False) -> None:
        """Close; `Session.close` has the contract."""
        if self._is_closing:
            return
        self._is_closing = True
        try:
            async with asyncio.timeout(self._settings.close_timeout_s):
                if finish:
                    await self._all_over()
                if not self._turns and self._error is None:
                    await self._wire.close()
        except TimeoutError:
            pass  # The bound did its work; the rest is cut below.
        finally:
            self._lose(SessionClosed("the session was closed"))
            self._reader.cancel()
            self._writer.cancel()
            await asyncio.gather(self._reader, self._writer, return_exceptions=True)
            await self._wire.abort()

    # What turns ask for.

    def append(self, state: TurnState, input: Input) -> None:
        """Send outputs to a paused turn; `Turn.append` has the contract."""
        event_id = self._new_event_id()
        self._appends[event_id] = state
        body = ResponseAppend(response_id=state.response_id or "", input=input)
        event = ClientEvent(event_id=event_id, stream_id=state.stream_id, response_append=body)
        self._lanes[state.stream_id].last_event = self._loop.time()
        self._outbox.put_nowait((event, state))

    def steer(self, state: TurnState, input: Input) -> SteerState:
        """Send messages to a turn that runs; `Turn.steer` has the contract."""
        if self._error is not None:
            raise self._error
        if not self._wire.persistent:
            raise ValueError("steering needs gRPC or WebSocket")
        steer = SteerState(state.response_id or "", input)
        self._steers.add(steer)
        body = ResponseSteer(previous_response_id=steer.target_id, input=input)
        self._outbox.put_nowait((ClientEvent(response_steer=body), state))
        return steer

    def cancel(self, state: TurnState) -> None:
        """Ask the server to end a turn; `Turn.cancel` has the contract."""
        if state.outcome is None and not state.cancel_asked:
            state.cancel_asked = True
            self._send_cancel(state)

    # Private: ending turns.

    def _new_event_id(self) -> str:
        self._created += 1
        return f"{self._event_prefix}_{self._created}"

    def _send_cancel(self, state: TurnState) -> None:
        if self._error is not None:
            return
        if state.response_id is not None:
            cancel = ClientEvent(response_cancel=ResponseCancel(response_id=state.response_id))
        else:
            # Still queued, as far as one can know: the create is named by its own event_id.
            cancel = ClientEvent(event_id=state.event_id, response_cancel=ResponseCancel())
        if state.stream_id is not None:
            cancel.stream_id = state.stream_id
        self._outbox.put_nowait((cancel, None))

    def _forget(self, state: TurnState) -> None:
        del self._turns[state.event_id]
        for event_id in [one for one, turn in self._appends.items() if turn is state]:
            del self._appends[event_id]
        lane = self._lanes[state.stream_id]
        lane.turns.remove(state)
        if not lane.turns:
            if lane.timer is not None:
                lane.timer.cancel()
            del self._lanes[state.stream_id]

    def _lose(self, error: TurnwireError) -> None:
        """End everything; only the first reason counts, unless the user closed the session."""
        if self._error is None or isinstance(error, SessionClosed):
            self._error = error
        for state in list(self._turns.values()):
            state.lose(error)
            self._forget(state)
        self._steers.lose(error)

    async def _all_over(self) -> None:
        for state in list(self._turns.values()):
            state.keep_all()
            await state.until(lambda: False)

    # Private: the reader and the writer.

    async def _read(self) -> None:
        try:
            while True:
                for arrival in await self._wire.receive():
                    self.bytes_down += arrival.size
                    state = self._route(arrival)
                    if state is not None and state.is_full:
                        self._paused_by = state
                        await state.room()
                        self._paused_by = None
        except TurnwireError as error:
            self._end(error)
        except Exception as error:
            # Nobody else would see it: the turns that wait must not wait for ever.
            self._end(error)

    async def _write(self) -> None:
        try:
            while True:
                event, state = await self._outbox.get()
                size = await self._wire.send(event)
                self.bytes_up += size
                if state is not None:
                    state.bytes_up += size
        except Exception as error:
            # As in the reader.
            self._end(error)

    def _end(self, error: Exception) -> None:
        if self._is_closing:
            self._lose(SessionClosed("the session was closed"))
        elif isinstance(error, TurnwireError):
            self._lose(error)
        else:
            failure = ProtocolViolation("an event could not be handled")
            failure.__cause__ = error
            self._lose(failure)

    def _route(self, arrival: Arrival) -> TurnState | None:
        if arrival.failure is not None:
            lost = self._turns.get(arrival.event_id or "")
            if lost is not None:
                lost.lose(arrival.failure)
                self._forget(lost)
            return None
        event = arrival.event
        arm = event.WhichOneof("event") if event is not None else None
        if event is None or arm is None:
            return None  # A type of a later version.
        if arm == "error" and event.event_id in self._appends:
            refused = self._appends.pop(event.event_id)
            refused.refuse_append(rejection_from_body(event.error.status, event.error.error))
            return None
        if arm == "response_created":
            self._start_successor(event)
        state = self._owner(event, arm, arrival.event_id)
        wrapped = Event(event, arm)
        if arm in STEER_ARMS:
            state = self._hear_steer(wrapped, state)
        if state is None:
            if self._on_notice is not None:
                self._on_notice(wrapped)
            return None
        self._lanes[state.stream_id].last_event = self._loop.time()
        state.feed(wrapped, arrival.size)
        if arm == "response_done" and state.response_id is not None:
            self._steers.release(state.response_id)
        if state.is_over:
            self._forget(state)
        elif arm == "response_created" and state.cancel_asked:
            # The cancel may have missed it, having named a create that was queued.
            self._send_cancel(state)
        return state

    def _start_successor(self, event: ServerEvent) -> None:
        """Make the turn of a response that follows one that was steered, in front of its lane."""
        response = event.response_created.response
        if response.turnwire.HasField("event_id") or not response.previous_response_id:
            return
        stream_id = event.stream_id if event.HasField("stream_id") else None

        def start(input_items: int) -> Turn:
            event_id = self._new_event_id()
            state = TurnState(event_id, stream_id, input_items, self._max_buffered_events)
            self._turns[event_id] = state
            lane = self._lanes.setdefault(stream_id, _Lane())
            lane.turns.appendleft(state)
            lane.last_event = self._loop.time()
            self._watch(lane)
            return Turn(state, self)

        self._steers.succeed(response.previous_response_id, start)

    def _hear_steer(self, event: Event, owner: TurnState | None) -> TurnState | None:
        """Take what is said of a steer; return the turn whose sequence it is in."""
        target_id = event.message.steer.previous_response_id  # type: ignore[attr-defined]  # By arm.
        is_within = owner is not None and owner.response_id == target_id
        self._steers.hear(event, is_paused=is_within and owner is not None and owner.is_paused)
        return owner if is_within else None

    def _owner(self, event: ServerEvent, arm: str, event_id: str | None) -> TurnState | None:
        """Return the turn that an event is of; None when it is of the session."""
        if event_id is None and arm == "error" and event.HasField("event_id"):
            event_id = event.event_id
        if event_id is not None:
            return self._turns.get(event_id)
        if arm.startswith("turnwire_"):
            return None
        lane = self._lanes.get(event.stream_id if event.HasField("stream_id") else None)
        if lane is None:
            return None
        head = lane.turns[0]
        if arm == "error" and event.error.error.code in _CONNECTION_CODES:
            return None
        if arm == "response_created":
            extension = event.response_created.response.turnwire
            if extension.HasField("event_id") and extension.event_id != head.event_id:
                raise ProtocolViolation("a turn began out of its lane's order")
        return head

    # Private: silence.

    def _watch(self, lane: _Lane) -> None:
        if lane.timer is None:
            due = lane.last_event + self._settings.silence_timeout_s
            lane.timer = self._loop.call_at(due, self._check, lane)

    def _check(self, lane: _Lane) -> None:
        lane.timer = None
        waiting = next((state for state in lane.turns if state.outcome is None), None)
        if waiting is None:
            return
        if waiting.waits_for_user:
            lane.last_event = self._loop.time()
        if self._loop.time() >= lane.last_event + self._settings.silence_timeout_s:
            lane.last_event = self._loop.time()
            if self._paused_by is not waiting:
                why = " while another turn's events were not read" if self._paused_by else ""
                seconds = self._settings.silence_timeout_s
                waiting.end(Timeout(f"nothing came for {seconds:g} s{why}"))
                self._send_cancel(waiting)
        self._watch(lane)
