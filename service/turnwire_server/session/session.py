"""The session: lanes, cache and queue of one connection. Pure and synchronous.

The driver feeds it (`receive`, `refuse`, `end_turn` and the rest) and after each call pulls what
came of it: `events_to_send()`, `turns_to_start()`, `turns_to_wake()`, `turns_to_cancel()`. A
peer's fault is answered with an event; only a driver's fault raises.
"""

from __future__ import annotations

from collections.abc import Callable

from turnwire.v1 import client_event_pb2, error_pb2, item_pb2, server_event_pb2
from turnwire_server.session.cache import CachedResponse, ResponseCache
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.errors import Rejection
from turnwire_server.session.item_rules import ItemRules
from turnwire_server.session.lanes import Lanes, check_lane_name
from turnwire_server.session.lifecycle import TurnTrigger
from turnwire_server.session.opening import NOT_RESUMED, check_start
from turnwire_server.session.recent_ids import RecentIds
from turnwire_server.session.rollout import Appended, take_append
from turnwire_server.session.settings import SessionSettings
from turnwire_server.session.steering import (
    Steering,
    inject_failed,
    refusal_events,
    steer_malformed,
)
from turnwire_server.session.tool_rules import ToolCatalogue
from turnwire_server.session.turns import Turn

__all__ = ["Session"]

_MAX_EVENT_ID_CHARS = 256
"""An `event_id` comes back in answers, which are bounded; a longer one is refused."""

_UNKNOWN_EVENT = Rejection(
    error_pb2.ERROR_REASON_UNKNOWN_EVENT_TYPE,
    "The event has no arm that this server knows.",
    param="type",
)

ServerEvent = server_event_pb2.ServerEvent


class Session:
    """Decides what happens to each client event; runs nothing."""

    def __init__(self, settings: SessionSettings, *, new_id: Callable[[str], str]) -> None:
        """Make an empty session.

        Args:
            settings: Its limits.
            new_id: Returns a new id with the given prefix, for example `resp_`.
        """
        self.id = new_id("sess_")
        self._settings = settings
        self._new_id = new_id
        self._lanes = Lanes(settings)
        self._cache = ResponseCache(settings.max_warm_ups)
        self._rules = ItemRules(
            new_id, lambda _: None, ToolCatalogue(), is_strict=settings.strict_content
        )
        """For messages and outputs that come without a create."""
        self._steering = Steering(settings, self._rules, new_id=new_id)
        self._event_ids = RecentIds(settings.max_event_ids)
        """Of accepted events: one that was turned away may be sent again as it was."""
        self._received = 0
        self._turns = 0
        self._closed_to_creates: Rejection | None = None
        self._events: list[ServerEvent] = []
        self._to_start: list[Turn] = []
        self._to_wake: list[Turn] = []
        self._to_cancel: list[Turn] = []
        self._is_input_closed = False
        self.wants_session_events = False
        """Whether the client opened the session explicitly, so that it knows our extensions."""

    # Output.

    def events_to_send(self) -> list[ServerEvent]:
        """Return and forget the events that wait to be sent. They must be sent in order."""
        events, self._events = self._events, []
        return events

    def turns_to_start(self) -> list[Turn]:
        """Return and forget the turns to start. Each must come back by `end_turn`."""
        turns, self._to_start = self._to_start, []
        return turns

    def turns_to_wake(self) -> list[Turn]:
        """Return and forget the paused turns that go on, with `turn.appended`."""
        turns, self._to_wake = self._to_wake, []
        return turns

    def turns_to_cancel(self) -> list[Turn]:
        """Return and forget the running turns that must be ended now."""
        turns, self._to_cancel = self._to_cancel, []
        return turns

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self._lanes.is_idle

    @property
    def running(self) -> list[Turn]:
        """The turns in flight."""
        return self._lanes.running

    @property
    def queued(self) -> int:
        """How many turns wait."""
        return self._lanes.queued

    @property
    def cached(self) -> list[CachedResponse]:
        """The cached responses."""
        return self._cache.entries()

    # Input.

    def receive(self, event: client_event_pb2.ClientEvent, *, size: int, now: float) -> None:
        """Take one client event.

        Args:
            event: The event; it belongs to the session from now on.
            size: Its bytes on the wire.
            now: Seconds on the driver's monotonic clock.
        """
        self._received += 1
        arm = event.WhichOneof("event")
        if arm == "response_processed":
            return  # not even its faults are answered: the client would blame its next turn
        event_id = event.event_id or None
        stream_id = event.stream_id if event.HasField("stream_id") else None
        if event_id is not None and len(event_id) > _MAX_EVENT_ID_CHARS:
            rejection = Rejection(
                error_pb2.ERROR_REASON_INVALID_VALUE,
                f"event_id may have at most {_MAX_EVENT_ID_CHARS} characters.",
                param="event_id",
            )
            self._reject_event(event, rejection, _valid(stream_id), None)
            return
        if stream_id is not None and (misnamed := check_lane_name(stream_id)) is not None:
            self._reject_event(event, misnamed, None, event_id)
            return
        match arm:
            case "response_create":
                self._create(event.response_create, stream_id, event_id, size, now, None)
            case "response_cancel":
                self._cancel(event.response_cancel, stream_id, event_id)
            case "response_steer":
                self._steer(event.response_steer, event_id, now)
            case "response_inject":
                self._inject(event.response_inject, stream_id, None)
            case "response_append":
                self._append(event.response_append, stream_id, event_id)
            case "turnwire_session_start":
                self._start(event.turnwire_session_start, event_id)
            case "turnwire_session_resume":
                self._reject(NOT_RESUMED, None, event_id)
            case _:  # None
                self._reject(_UNKNOWN_EVENT, stream_id, event_id)

    def refuse(
        self,
        rejection: Rejection,
        *,
        event: client_event_pb2.ClientEvent | None,
        stream_id: str | None,
        event_id: str | None,
        size: int,
        now: float,
    ) -> None:
        """Take an event that the edge could not decode.

        Args:
            rejection: Why.
            event: What could be read of it; None when not even its kind could. A create is
                answered in its lane's order and counts as a failed continuation of its parent,
                one whose lane is not known at once. A steer and an inject are answered by their
                own failures.
            stream_id: The lane, if it could be read.
            event_id: The event's id, if it could be read.
            size: Bytes on the wire.
            now: Seconds on the driver's monotonic clock.
        """
        self._received += 1
        if event_id is not None and len(event_id) > _MAX_EVENT_ID_CHARS:
            event_id = None
        lane = _valid(stream_id)
        if (
            event is None
            or not event.HasField("response_create")
            or lane != stream_id
            or rejection.reason == error_pb2.ERROR_REASON_INVALID_STREAM_ID
        ):
            self._reject_event(event, rejection, lane, event_id)
        else:
            create = event.response_create
            self._create(create, lane, event_id or None, size, now, rejection)

    def end_turn(self, turn: Turn, outcome: CachedResponse | None) -> None:
        """Take back a turn that the driver ran, before its terminal event is sent.

        Args:
            turn: A turn from `turns_to_start`.
            outcome: What continues it; None when it failed or was refused: then its parent is
                evicted if it was on the same lane. Creates that wait for this turn get it as
                their parent, pinned; without one they will not find their parent.
        """
        successor, answers = self._steering.end(turn, outcome, closed=self._closed_to_creates)
        self._events += answers
        turn.move(TurnTrigger.END)
        self._lanes.release(turn)
        if outcome is not None:
            self._cache.put(outcome)
        elif turn.has_begun or not turn.is_successor:
            self._evict_parent(turn)
        for waiting in self._lanes.waiting():
            if waiting.parent_turn is turn:
                waiting.parent_turn = None
                waiting.parent = outcome
        if successor is not None:
            self._lanes.enqueue_first(successor)
        self._start_ready()
        self._events += self._steering.announce()

    def pause_turn(self, turn: Turn, conversation: Conversation) -> None:
        """Note that a running rollout waits for the outputs of the calls in `conversation`.

        `turns_to_wake` says when it goes on. It is cancelled when nothing can come any more.
        """
        turn.move(TurnTrigger.PAUSE)
        turn.paused_at = conversation
        if self._is_input_closed:
            self._cancel_running(turn)

    def end_pause(self, turn: Turn) -> None:
        """Note that a paused turn waits no longer, though nothing was appended."""
        turn.move(TurnTrigger.RESUME)

    def take_back(self, turn: Turn, appended: Appended) -> None:
        """Note that what was appended cannot be used: the turn waits as before."""
        turn.move(TurnTrigger.PAUSE)
        turn.steers = appended.steers + turn.steers
        self._event_ids.discard(appended.event_id)
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
        self._closed_to_creates = rejection

    def cancel_all(self, rejection: Rejection | None = None) -> None:
        """End everything that runs, and withdraw what waits.

        Args:
            rejection: The answer to the creates that wait; None when the peer is gone, so that
                there is nobody to answer.
        """
        unstarted, self._to_start = self._to_start, []
        for turn in unstarted:
            self._lanes.release(turn)
            turn.move(TurnTrigger.END)
        self._to_cancel = [turn for turn in self._to_cancel if turn not in unstarted]
        waiting = self._lanes.waiting()
        for turn in waiting:
            self._lanes.withdraw(turn)
            turn.move(TurnTrigger.CANCEL)
        for turn in unstarted:
            if turn.applies and not turn.is_successor:
                self._steering.put_back(turn)
        self._events += self._steering.drop_all(rejection)
        if rejection is not None:
            for turn in (*unstarted, *waiting):
                self._events += refusal_events(turn, rejection)
        for turn in self._lanes.running:
            self._cancel_running(turn)

    def forget(self) -> None:
        """Give the cache back. The session must be idle."""
        self._cache.clear()

    def find_item(self, item_id: str) -> item_pb2.Item | None:
        """Return an item of any cached conversation, None when there is none with this id."""
        for entry in self._cache.entries():
            item = entry.conversation.find_item(item_id)
            if item is not None:
                return item
        return None

    # Private: one method per event.

    def _create(
        self,
        create: client_event_pb2.ResponseCreate,
        stream_id: str | None,
        event_id: str | None,
        size: int,
        now: float,
        refusal: Rejection | None,
    ) -> None:
        if event_id in self._event_ids:
            return
        rejection = self._lanes.admit(stream_id)
        if rejection is not None:
            self._reject(rejection, stream_id, event_id)
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
            refusal=refusal or self._closed_to_creates,
        )
        self._pin_parent(turn)
        rejection = self._lanes.enqueue(turn)
        if rejection is not None:
            self._reject(rejection, stream_id, event_id)
            return
        self._event_ids.add(event_id)
        self._start_ready()

    def _pin_parent(self, turn: Turn) -> None:
        parent_id = turn.previous_response_id
        if parent_id is None or turn.refusal is not None:
            return
        turn.parent = self._cache.find(parent_id, turn.lane)
        if turn.parent is None:
            turn.parent_turn = self._running_response(parent_id)

    def _start_ready(self) -> None:
        while (turn := self._lanes.pop_ready()) is not None:
            turn.move(TurnTrigger.START)
            if turn.refusal is None:
                self._events += self._steering.start(turn)
                self._to_start.append(turn)
                continue
            turn.move(TurnTrigger.END)
            self._lanes.release(turn)
            self._evict_parent(turn)
            self._reject(turn.refusal, turn.lane, turn.event_id)

    def _evict_parent(self, turn: Turn) -> None:
        if turn.previous_response_id is not None:
            self._cache.evict(turn.previous_response_id, turn.lane)

    def _cancel(
        self,
        cancel: client_event_pb2.ResponseCancel,
        stream_id: str | None,
        event_id: str | None,
    ) -> None:
        if cancel.response_id:
            target = self._running_response(cancel.response_id)
        elif event_id in self._event_ids:
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

    def _cancel_running(self, turn: Turn) -> None:
        if not turn.is_cancelled:
            self._to_cancel.append(turn)
        turn.move(TurnTrigger.CANCEL)

    def _cancel_waiting(self, turn: Turn) -> None:
        self._lanes.withdraw(turn)
        turn.move(TurnTrigger.CANCEL)
        rejection = Rejection(
            error_pb2.ERROR_REASON_REQUEST_CANCELLED,
            "The create was cancelled before it started.",
        )
        self._reject(rejection, turn.lane, turn.event_id)
        self._start_ready()

    def _steer(
        self, steer: client_event_pb2.ResponseSteer, event_id: str | None, now: float
    ) -> None:
        if event_id in self._event_ids:
            return
        target = self._running_response(steer.previous_response_id)
        answer = self._steering.take(steer, target, now=now)
        self._events.append(answer)
        if answer.HasField("response_steer_accepted"):
            self._event_ids.add(event_id)

    def _inject(
        self,
        inject: client_event_pb2.ResponseInject,
        stream_id: str | None,
        malformed: Rejection | None,
    ) -> None:
        target = self._running_response(inject.response_id)
        lane = target.lane if target is not None else stream_id
        self._events.append(inject_failed(inject, lane, malformed))

    def _append(
        self,
        append: client_event_pb2.ResponseAppend,
        stream_id: str | None,
        event_id: str | None,
    ) -> None:
        if event_id in self._event_ids:
            return
        turn = self._running_response(append.response_id)
        rejection = take_append(append, turn, self._rules, stream_id, event_id)
        if rejection is not None:
            self._reject(rejection, stream_id, event_id)
            return
        assert turn is not None  # or it would have been refused
        self._to_wake.append(turn)
        self._event_ids.add(event_id)

    def _start(self, start: client_event_pb2.TurnwireSessionStart, event_id: str | None) -> None:
        rejection = check_start(start, is_first=self._received == 1)
        if rejection is not None:
            self._reject(rejection, None, event_id)
            return
        self.wants_session_events = True
        started = server_event_pb2.TurnwireSessionStarted(session_id=self.id)
        self._events.append(ServerEvent(turnwire_session_started=started))

    def _running_response(self, response_id: str) -> Turn | None:
        for turn in self._lanes.running:
            if turn.response_id == response_id:
                return turn
        return None

    def _reject_event(
        self,
        event: client_event_pb2.ClientEvent | None,
        rejection: Rejection,
        stream_id: str | None,
        event_id: str | None,
    ) -> None:
        """Answer a malformed event: clients take an `error` for the end of the turn that runs."""
        if event is not None and event.HasField("response_steer"):
            steer = event.response_steer
            target = self._running_response(steer.previous_response_id)
            self._events.append(steer_malformed(steer, target, rejection))
        elif event is not None and event.HasField("response_inject"):
            self._inject(event.response_inject, stream_id, rejection)
        else:
            self._reject(rejection, stream_id, event_id)

    def _reject(self, rejection: Rejection, stream_id: str | None, event_id: str | None) -> None:
        self._events.append(rejection.event(stream_id, event_id))


def _valid(stream_id: str | None) -> str | None:
    """Return a lane's name as it may be shown: None when it is none."""
    return stream_id if stream_id is None or check_lane_name(stream_id) is None else None
