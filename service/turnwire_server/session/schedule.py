"""The turns of a session: who waits, who runs, who ends, and what each of them continues."""

from __future__ import annotations

from collections.abc import Callable

from turnwire.v1 import client_event_pb2, error_pb2, server_event_pb2
from turnwire_server.session.cache import CachedResponse, ResponseCache
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.errors import Rejection
from turnwire_server.session.lanes import Lanes
from turnwire_server.session.lifecycle import TurnTrigger
from turnwire_server.session.repeats import Repeats
from turnwire_server.session.rollout import Appended
from turnwire_server.session.settings import SessionSettings
from turnwire_server.session.steering import Steering, refusal_events
from turnwire_server.session.turns import Turn

__all__ = ["Schedule"]

_CANCELLED = Rejection(
    error_pb2.ERROR_REASON_REQUEST_CANCELLED,
    "The create was cancelled before it started.",
)


class Schedule:
    """Decides which turns start and end. Part of one session, which hands its lists over."""

    __slots__ = (
        "_closed",
        "_is_input_closed",
        "_lanes",
        "_new_id",
        "_steering",
        "_turns",
        "cache",
        "events",
        "repeats",
        "to_cancel",
        "to_start",
        "to_wake",
    )

    def __init__(
        self, settings: SessionSettings, steering: Steering, *, new_id: Callable[[str], str]
    ) -> None:
        """Make it for a session with these limits and this steering."""
        self._steering = steering
        self._new_id = new_id
        self._lanes = Lanes(settings)
        self.cache = ResponseCache(settings.max_warm_ups)
        self.repeats = Repeats(settings.max_event_ids, settings.max_answer_bytes)
        """Of accepted events: one that was turned away may be sent again as it was."""
        self._turns = 0
        self._closed: Rejection | None = None
        self._is_input_closed = False
        self.events: list[server_event_pb2.ServerEvent] = []
        """Events to send."""
        self.to_start: list[Turn] = []
        self.to_wake: list[Turn] = []
        self.to_cancel: list[Turn] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self._lanes.is_idle

    @property
    def running(self) -> list[Turn]:
        """The turns in flight."""
        return self._lanes.running

    @property
    def in_flight(self) -> int:
        """How many turns are in flight."""
        return self._lanes.in_flight

    @property
    def queued(self) -> int:
        """How many turns wait."""
        return self._lanes.queued

    def running_response(self, response_id: str) -> Turn | None:
        """Return the turn in flight with this response, None when there is none."""
        for turn in self._lanes.running:
            if turn.response_id == response_id:
                return turn
        return None

    def reject(self, rejection: Rejection, stream_id: str | None, event_id: str | None) -> None:
        """Answer with an `error` event."""
        self.events.append(rejection.event(stream_id, event_id))

    # What the client wants.

    def create(
        self,
        create: client_event_pb2.ResponseCreate,
        *,
        stream_id: str | None,
        event_id: str | None,
        size: int,
        now: float,
        refusal: Rejection | None,
    ) -> None:
        """Take a create, which waits only to be answered in order when there is a `refusal`."""
        if event_id is not None and event_id in self.repeats:
            answer = self.repeats.answer(event_id, stream_id)
            if answer is not None:
                self.events.append(answer)
            return
        rejection = self._lanes.admit(stream_id)
        if rejection is not None:
            self.reject(rejection, stream_id, event_id)
            return
        self._turns += 1
        turn = Turn(
            create,
            lane=stream_id,
            number=self._turns,
            response_id=self._new_id("resp_"),
            event_id=event_id,
            size=size,
            received_at=now,
            refusal=refusal or self._closed,
        )
        self._pin_parent(turn)
        if self._lanes.run_if_idle(turn):  # As most creates find them: nobody has to queue.
            self.repeats.add(event_id)
            self._start(turn)
            return
        rejection = self._lanes.enqueue(turn)
        if rejection is not None:
            self.reject(rejection, stream_id, event_id)
            return
        self.repeats.add(event_id)
        self._start_ready()

    def cancel(
        self,
        cancel: client_event_pb2.ResponseCancel,
        stream_id: str | None,
        event_id: str | None,
    ) -> None:
        """Take a cancel: of a response, of the create with the `event_id`, or of a lane's turn."""
        if cancel.response_id:
            target = self.running_response(cancel.response_id)
        elif event_id in self.repeats:
            # It names a create. Should that be over, what runs on its lane now is another turn.
            for turn in self._lanes.waiting():
                if turn.event_id == event_id:
                    self._cancel_waiting(turn)
                    return
            running = self._lanes.running
            target = next((turn for turn in running if turn.event_id == event_id), None)
        else:
            target = self._lanes.running_on(stream_id)
        if target is not None:
            self._cancel_running(target)

    # What the driver says.

    def end_turn(
        self,
        turn: Turn,
        outcome: CachedResponse | None,
        answer: server_event_pb2.ServerEvent | None,
    ) -> None:
        """Take back a turn, see `Session.end_turn`."""
        successor, answers = self._steering.end(turn, outcome, closed=self._closed)
        self.events += answers
        turn.move(TurnTrigger.END)
        self._lanes.release(turn)
        self.repeats.end(turn.event_id, answer)
        if outcome is not None:
            self.cache.put(outcome)
        elif turn.has_begun or not turn.is_successor:
            self._evict_parent(turn)
        if self._lanes.queued:
            for waiting in self._lanes.waiting():
                if waiting.parent_turn is turn:
                    waiting.parent_turn = None
                    waiting.parent = outcome
        if successor is not None:
            self._lanes.enqueue_first(successor)
        if self._lanes.queued:
            self._start_ready()
        if self._steering.waiting:
            self.events += self._steering.announce()

    def pause_turn(self, turn: Turn, conversation: Conversation) -> None:
        """Note that a turn waits for the outputs of the calls in `conversation`."""
        turn.move(TurnTrigger.PAUSE)
        turn.paused_at = conversation
        if self._is_input_closed:
            self._cancel_running(turn)

    def take_back(self, turn: Turn, appended: Appended) -> None:
        """Note that what was appended cannot be used: the turn waits as before."""
        turn.move(TurnTrigger.PAUSE)
        turn.steers = appended.steers + turn.steers
        self.repeats.discard(appended.event_id)
        if self._is_input_closed:
            self._cancel_running(turn)

    def close_input(self) -> None:
        """Note that no client event can come any more: what is paused is cancelled."""
        self._is_input_closed = True
        for turn in self._lanes.running:
            if turn.is_paused:
                self._cancel_running(turn)

    def close_to_creates(self, rejection: Rejection) -> None:
        """Answer every further create with `rejection`, in its lane's order."""
        self._closed = rejection

    def reopen(self) -> None:
        """Take creates and all other events again; those that were to be refused run."""
        closed, self._closed = self._closed, None
        self._is_input_closed = False
        for turn in self._lanes.waiting():
            if turn.refusal is not None and turn.refusal is closed:
                turn.refusal = None
                self._pin_parent(turn)

    def cancel_all(self, rejection: Rejection | None) -> None:
        """End everything, see `Session.cancel_all`."""
        unstarted, self.to_start = self.to_start, []
        for turn in unstarted:
            self._lanes.release(turn)
            turn.move(TurnTrigger.END)
        self.to_cancel = [turn for turn in self.to_cancel if turn not in unstarted]
        waiting = self._lanes.waiting()
        for turn in waiting:
            self._lanes.withdraw(turn)
            turn.move(TurnTrigger.CANCEL)
        for turn in unstarted:
            if turn.applies and not turn.is_successor:
                self._steering.put_back(turn)
        self.events += self._steering.drop_all(rejection)
        if rejection is not None:
            for turn in (*unstarted, *waiting):
                self.events += refusal_events(turn, rejection)
        for turn in self._lanes.running:
            self._cancel_running(turn)

    # Private.

    def _pin_parent(self, turn: Turn) -> None:
        parent_id = turn.previous_response_id
        if parent_id is None or turn.refusal is not None:
            return
        turn.parent = self.cache.find(parent_id, turn.lane)
        if turn.parent is None:
            turn.parent_turn = self.running_response(parent_id)

    def _start_ready(self) -> None:
        while (turn := self._lanes.pop_ready()) is not None:
            self._start(turn)

    def _start(self, turn: Turn) -> None:
        """Start a turn whose lane is its own now; one that was refused ends with that."""
        turn.move(TurnTrigger.START)
        if turn.refusal is None:
            if self._steering.waiting:
                self.events += self._steering.start(turn)
            self.to_start.append(turn)
            return
        turn.move(TurnTrigger.END)
        self._lanes.release(turn)
        self._evict_parent(turn)
        self._answer(turn, turn.refusal)

    def _answer(self, turn: Turn, rejection: Rejection) -> None:
        """Answer a create that never started."""
        event = rejection.event(turn.lane, turn.event_id)
        self.events.append(event)
        self.repeats.end(turn.event_id, event)

    def _evict_parent(self, turn: Turn) -> None:
        if turn.previous_response_id is not None:
            self.cache.evict(turn.previous_response_id, turn.lane)

    def _cancel_running(self, turn: Turn) -> None:
        if not turn.is_cancelled:
            self.to_cancel.append(turn)
        turn.move(TurnTrigger.CANCEL)

    def _cancel_waiting(self, turn: Turn) -> None:
        self._lanes.withdraw(turn)
        turn.move(TurnTrigger.CANCEL)
        self._answer(turn, _CANCELLED)
        self._start_ready()
