"""The turns of a session and its events: who gets which."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from turnwire._book import TurnBook
from turnwire._create import Create, input_items
from turnwire._delivery import cancel_event
from turnwire._event import MIDDLE_ARMS, RESPONSE_ENDS, Event
from turnwire._keeper import Keeper
from turnwire._lineage import Lineage
from turnwire._recovery import Dial, RecoverySettings
from turnwire._rejections import is_retryable, rejection, rejection_from_body
from turnwire._request import is_text
from turnwire._steer import STEER_ARMS, Steers, SteerState
from turnwire._transcript import Transcript
from turnwire._turn import Turn
from turnwire._turn_state import TurnState, ghost_of
from turnwire._wire import Arrival, Broken, Wire, WireSettings
from turnwire.errors import (
    ConnectionLost,
    ProtocolViolation,
    SessionClosed,
    Timeout,
    TurnwireError,
)
from turnwire.v1.client_event_pb2 import ClientEvent, Input, ResponseAppend, ResponseSteer
from turnwire.v1.item_pb2 import Item
from turnwire.v1.server_event_pb2 import ServerEvent

__all__ = ["Connection"]

_AGE = "websocket_connection_limit_reached"
_TAKEN_OVER = "session_taken_over"
# Refusals that are about the connection and not about one of its turns.
_CONNECTION_CODES = frozenset({_AGE, _TAKEN_OVER, "invalid_stream_id"})


class Connection:
    """Turns on a wire, and on the wires after it.

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
        dial: Dial | None = None,
        recovery: RecoverySettings | None = None,
    ) -> None:
        self._settings = settings
        self._max_buffered_events = max_buffered_events
        self._on_notice = on_notice
        self._is_persistent = wire.persistent
        self._loop = asyncio.get_running_loop()
        recovery = recovery or RecoverySettings()
        self._book = TurnBook(settings.silence_timeout_s, self._silent)
        self._appends: dict[str, TurnState] = {}
        """Append's `event_id` -> the turn that it answers."""
        self._steers = Steers(self._take_along)
        self._error: TurnwireError | None = None
        self._is_closing = False
        self.bytes_down = 0
        """Payload bytes of server events."""
        self._event_prefix = f"evt_{secrets.token_hex(6)}"
        self._created = 0
        is_kept = dial is not None and recovery.reconnect_s > 0
        self._lineage = Lineage(
            Transcript(recovery.transcript_bytes if is_kept else 0),
            is_persistent=wire.persistent,
        )
        self.keeper = Keeper(
            wire,
            settings,
            recovery,
            dial,
            book=self._book,
            steers=self._steers,
            lineage=self._lineage,
            route=self._route,
            lose=self._lose,
            settle=self._forget,
        )

    @property
    def is_open(self) -> bool:
        """Whether turns can be started."""
        return self._error is None and not self._is_closing

    def start(
        self,
        event: ClientEvent | Create,
        stream_id: str | None,
        event_id: str | None,
        *,
        is_exact: bool = False,
    ) -> Turn:
        """Start a turn; `Session.create` has the contract.

        Args:
            event: The create, without the rest; it belongs to the connection from now on.
            stream_id: Its lane.
            event_id: Its id, made up when None.
            is_exact: Whether the turn may not begin anew once any of its events was given out.
        """
        if self._error is not None:
            raise self._error
        if self._is_closing:
            raise SessionClosed("the session was closed")
        if event_id is None:
            event_id = self._new_event_id()
        elif self._book.find(event_id) is not None:
            raise ValueError(f"event_id: {event_id!r} is a turn that runs")
        are_texts = is_text(event_id) and (stream_id is None or is_text(stream_id))
        if isinstance(event, Create) and not are_texts:
            event = event.whole  # Protobuf knows what to say of it.
        event.event_id = event_id
        if stream_id is not None:
            event.stream_id = stream_id
        if not are_texts:  # It takes bytes, for example; the answers name what it made of them.
            event_id, stream_id = event.event_id, None if stream_id is None else event.stream_id
        most, count = self._max_buffered_events, input_items(event)
        state = TurnState(event_id, stream_id, count, most, event, is_exact=is_exact)
        self._book.add(state)
        self.keeper.start(state)
        return Turn(state, self)

    def forget(self, response_id: str) -> None:
        """Remember a response no more: it was deleted."""
        self._lineage.transcript.forget(response_id)

    async def close(self, *, finish: bool = False) -> None:
        """Close; `Session.close` has the contract."""
        if self._is_closing:
            return
        self._is_closing = True
        until = self._loop.time() + self._settings.close_timeout_s
        try:
            if finish:
                async with asyncio.timeout_at(until):
                    await self._all_over()
        except TimeoutError:
            pass  # The bound did its work; the rest is cut below.
        finally:
            # So that the server does not take it for a loss, and keeps nothing running.
            farewells = [
                cancel_event(state)
                for state in self._book
                if self._is_persistent and state.delivery.is_sent and not state.cancel_asked
            ]
            self._lose(SessionClosed("the session was closed"))
            await self.keeper.close(farewells, until)

    # What turns ask for.

    def append(self, state: TurnState, input: Input) -> None:
        """Send outputs to a paused turn; `Turn.append` has the contract."""
        event_id = self._new_event_id()
        self._appends[event_id] = state
        body = ResponseAppend(response_id=state.response_id or "", input=input)
        event = ClientEvent(event_id=event_id, stream_id=state.stream_id, response_append=body)
        state.begin_append(event)
        self._book.heard(state.stream_id)
        self.keeper.send(event, state)

    def steer(self, state: TurnState, input: Input) -> SteerState:
        """Send messages to a turn that runs; `Turn.steer` has the contract."""
        if self._error is not None:
            raise self._error
        if not self._is_persistent:
            raise ValueError("steering needs gRPC or WebSocket")
        body = ResponseSteer(previous_response_id=state.response_id or "", input=input)
        steer = SteerState(ClientEvent(event_id=self._new_event_id(), response_steer=body))
        self._steers.add(steer)
        self.keeper.send(steer.event, state)
        return steer

    def cancel(self, state: TurnState) -> None:
        """Ask the server to end a turn; `Turn.cancel` has the contract."""
        if state.outcome is not None or state.cancel_asked:
            return
        state.cancel_asked = True
        if state.delivery.is_sent:
            self.keeper.send(cancel_event(state))
        else:
            message = "The create was cancelled before it was sent."
            state.lose(rejection("request_cancelled", message, status=400))
            self._forget(state)

    # Private: ending turns.

    def _new_event_id(self) -> str:
        self._created += 1
        return f"{self._event_prefix}_{self._created}"

    def _forget(self, state: TurnState) -> None:
        self._book.remove(state)
        for event_id in [one for one, turn in self._appends.items() if turn is state]:
            del self._appends[event_id]
            self._book.answered(event_id)

    def _lose(self, error: TurnwireError) -> None:
        """End everything; only the first reason counts, unless the user closed the session."""
        if self._error is None or isinstance(error, SessionClosed):
            self._error = error
        for state in self._book:
            state.lose(error)
            self._forget(state)
        self._book.close()
        self._steers.lose(error)

    async def _all_over(self) -> None:
        for state in self._book:
            state.keep_all()
            await state.until(lambda: False)

    def _silent(self, waiting: TurnState) -> None:
        held_up_by = self.keeper.held_up_by
        if held_up_by is not waiting:
            why = " while another turn's events were not read" if held_up_by else ""
            seconds = self._settings.silence_timeout_s
            waiting.end(Timeout(f"nothing came for {seconds:g} s{why}"))
            if waiting.delivery.is_sent:
                self.keeper.send(cancel_event(waiting))
            else:
                waiting.is_over = True
                self._forget(waiting)

    # Private: what comes in.

    def _route(self, event: Arrival) -> TurnState | None:
        """Take one thing that came; return the turn that got it."""
        if isinstance(event, Broken):
            self._exchange_failed(event.create_id, event.error)
            return None
        self.bytes_down += event.size
        arm, event_id = event.arm, event.create_id
        if arm in MIDDLE_ARMS and event_id is None:
            # Nearly all events are of these kinds, and a turn neither begins nor ends with them.
            state = self._book.hear(event.stream_id)
            if state is not None:
                state.feed(event)
                return state
        if not arm:
            return None  # A type of a later version.
        if arm == "response_created":
            self._start_successor(event.whole)
        elif arm == "error" and self._hear_error(event.whole, event_id):
            return None
        state = self._owner(event, event_id)
        if arm in RESPONSE_ENDS and self._book.has_ended(event.response_id, state):
            return None  # To a create that was sent again, in case its end had been lost.
        if arm in STEER_ARMS:
            state = self._hear_steer(event, state)
        if state is None:
            self._hear_notice(event, event.whole)
            return None
        self._book.heard(state.stream_id)
        if arm == "response_incomplete" and self.keeper.was_cut_short(state, event):
            return None
        state.feed(event)
        if arm == "response_done" and state.response_id is not None:
            self._steers.release(state.response_id)
        if state.is_over:
            self._lineage.note(state, event)
            self._forget(state)
            self.keeper.progress()
        elif arm == "response_created":
            if state.cancel_asked:
                # The cancel may have missed it, having named a create that was queued.
                self.keeper.send(cancel_event(state))
            self.keeper.progress()
        return state

    def _exchange_failed(self, event_id: str, failure: TurnwireError) -> None:
        lost = self._book.find(event_id)
        if lost is None:
            return
        if lost.outcome is None and self.keeper.exchange_failed(lost, failure):
            return
        lost.lose(failure)
        self._forget(lost)

    def _hear_error(self, event: ServerEvent, event_id: str | None) -> bool:
        """Take a refusal that ends no turn; return whether it was one."""
        if event_id is None and event.HasField("event_id"):
            event_id = event.event_id
        body = event.error.error
        if event_id is None:
            if body.code == _TAKEN_OVER:
                message = "the session was resumed on another connection"
                raise ConnectionLost(message, code=_TAKEN_OVER, retryable=False)
            # An older server's word on what was asked for with the connection.
            return body.param == "resume"
        if event_id in self._appends:
            refused = self._appends.pop(event_id)
            self._book.answered(event_id)
            refused.refuse_append(rejection_from_body(event.error.status, body))
            return True
        state = self._book.find(event_id)
        if state is None:
            # It was answered before, and the server does not know that the answer came.
            return self._book.is_former(event_id)
        if state.outcome is not None or state.response_id is not None:
            return False
        if body.code == _AGE or (self.keeper.is_retiring and is_retryable(body.code)):
            return self.keeper.turn_away(state)
        if body.code == "previous_response_not_found" and self._lineage.brings_history(state):
            self._book.rename(state, self._new_event_id())
            state.delivery.is_sent = False
            self.keeper.pump()
            return True
        return False

    def _hear_notice(self, event: Event, message: ServerEvent) -> None:
        """Take an event that is of no turn."""
        match event.arm:
            case "turnwire_session_started":
                self.keeper.hear_start(message.turnwire_session_started)
                return
            case "turnwire_go_away":
                self.keeper.go_away(message.turnwire_go_away.reason)
            case "error" if message.error.error.code == _AGE:
                self.keeper.go_away("age")
        if self._on_notice is not None:
            self._on_notice(event)

    def _start_successor(self, event: ServerEvent) -> None:
        """Make the turn of a response that follows one that was steered, in front of its lane."""
        response = event.response_created.response
        if response.turnwire.HasField("event_id") or not response.previous_response_id:
            return
        stream_id = event.stream_id if event.HasField("stream_id") else None

        def start(items: list[Item]) -> Turn:
            state = TurnState(
                self._new_event_id(), stream_id, len(items), self._max_buffered_events
            )
            state.delivery.is_sent = True
            state.delivery.succeeds = response.previous_response_id
            state.delivery.steered = items
            self._book.add(state, first=True)
            return Turn(state, self)

        self._steers.succeed(response.previous_response_id, start)

    def _hear_steer(self, event: Event, owner: TurnState | None) -> TurnState | None:
        """Take what is said of a steer; return the turn whose sequence it is in."""
        target_id = event.message.steer.previous_response_id  # type: ignore[attr-defined]  # By arm.
        is_within = owner is not None and owner.response_id == target_id
        self._steers.hear(event, is_paused=is_within and owner is not None and owner.is_paused)
        return owner if is_within else None

    def _take_along(self, target_id: str, items: list[Item]) -> None:
        """Note messages that the server puts in front of what continues a response."""
        for state in self._book:
            if state.response_id == target_id:
                state.steer_round(items)
                return
        self._lineage.transcript.steer(target_id, items)

    def _owner(self, event: Event, event_id: str | None) -> TurnState | None:
        """Return the turn that an event is of; None when it is of the session."""
        arm = event.arm
        if event_id is None and arm == "error" and event.whole.HasField("event_id"):
            event_id = event.whole.event_id
        if event_id is not None:
            return self._book.find(event_id)
        if arm.startswith("turnwire_"):
            return None
        head = self._book.head(event.stream_id)
        if arm == "error" and event.whole.error.error.code in _CONNECTION_CODES:
            return None
        if arm == "response_created":
            extension = event.whole.response_created.response.turnwire
            if extension.HasField("event_id") and (
                head is None or extension.event_id != head.event_id
            ):
                return self._unexpected(event.whole, extension.event_id)
        return head

    def _unexpected(self, event: ServerEvent, event_id: str) -> TurnState | None:
        """Take the start of a turn that does not wait for it."""
        stream_id = event.stream_id if event.HasField("stream_id") else None
        if self._book.is_former(event_id):
            ghost = ghost_of(event_id, stream_id, event.response_created.response.id)
            self._book.add(ghost, first=True)
            return ghost
        if self._book.head(stream_id) is not None:
            raise ProtocolViolation("a turn began out of its lane's order")
        return None
