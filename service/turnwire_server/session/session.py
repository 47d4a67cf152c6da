"""The session: lanes, cache and queue of one client. Pure and synchronous.

The driver feeds it (`receive`, `refuse`, `end_turn` and the rest) and after each call pulls what
came of it: `events_to_send()`, `turns_to_start()`, `turns_to_wake()`, `turns_to_cancel()`. A
peer's fault is answered with an event; only a driver's fault raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from turnwire.v1 import client_event_pb2, error_pb2, item_pb2, server_event_pb2
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.errors import Rejection
from turnwire_server.session.item_rules import ItemRules
from turnwire_server.session.lanes import check_lane_name
from turnwire_server.session.lifecycle import TurnTrigger
from turnwire_server.session.opening import NOT_FIRST, check_start
from turnwire_server.session.rollout import Appended, take_append
from turnwire_server.session.schedule import Schedule
from turnwire_server.session.settings import SessionSettings
from turnwire_server.session.steering import Steering, inject_failed, steer_malformed
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

    __slots__ = (
        "__weakref__",
        "_new_id",
        "_received",
        "_resume_grace_s",
        "_rules",
        "_schedule",
        "_steering",
        "id",
        "resume_token",
        "wants_session_events",
    )

    def __init__(
        self,
        settings: SessionSettings,
        *,
        new_id: Callable[[str], str],
        resume_grace_s: float = 0.0,
    ) -> None:
        """Make an empty session.

        Args:
            settings: Its limits.
            new_id: Returns a new id with the given prefix, for example `resp_`. Nobody may be
                able to guess one.
            resume_grace_s: How long the driver lets the session outlive a lost connection when
                its client asks for that; 0 when it does not.
        """
        self.id = new_id("sess_")
        self._new_id = new_id
        self._resume_grace_s = resume_grace_s
        self._rules = ItemRules(
            new_id, lambda _: None, ToolCatalogue(), is_strict=settings.strict_content
        )
        """For messages and outputs that come without a create."""
        self._steering = Steering(settings, self._rules, new_id=new_id)
        self._schedule = Schedule(settings, self._steering, new_id=new_id)
        self._received = 0
        self.wants_session_events = False
        """Whether the client opened the session explicitly, so that it knows our extensions."""
        self.resume_token: str | None = None
        """What its client must show to resume it; None when it ends with its connection."""

    # Output.

    def events_to_send(self) -> list[ServerEvent]:
        """Return and forget the events that wait to be sent. They must be sent in order."""
        events, self._schedule.events = self._schedule.events, []
        return events

    def turns_to_start(self) -> list[Turn]:
        """Return and forget the turns to start. Each must come back by `end_turn`."""
        turns, self._schedule.to_start = self._schedule.to_start, []
        return turns

    def turns_to_wake(self) -> list[Turn]:
        """Return and forget the paused turns that go on, with `turn.appended`."""
        turns, self._schedule.to_wake = self._schedule.to_wake, []
        return turns

    def turns_to_cancel(self) -> list[Turn]:
        """Return and forget the running turns that must be ended now."""
        turns, self._schedule.to_cancel = self._schedule.to_cancel, []
        return turns

    @property
    def is_fresh(self) -> bool:
        """Whether nothing came yet but a start: in its place another session may be resumed."""
        return self._received == 0 or (self._received == 1 and self.wants_session_events)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self._schedule.is_idle

    @property
    def running(self) -> list[Turn]:
        """The turns in flight."""
        return self._schedule.running

    @property
    def in_flight(self) -> int:
        """How many turns are in flight."""
        return self._schedule.in_flight

    @property
    def queued(self) -> int:
        """How many turns wait."""
        return self._schedule.queued

    @property
    def cached(self) -> list[CachedResponse]:
        """The cached responses."""
        return self._schedule.cache.entries()

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
                self._schedule.create(
                    event.response_create,
                    stream_id=stream_id,
                    event_id=event_id,
                    size=size,
                    now=now,
                    refusal=None,
                )
            case "response_cancel":
                self._schedule.cancel(event.response_cancel, stream_id, event_id)
            case "response_steer":
                self._steer(event.response_steer, event_id, now)
            case "response_inject":
                self._inject(event.response_inject, stream_id, None)
            case "response_append":
                self._append(event.response_append, stream_id, event_id)
            case "turnwire_session_start":
                self._start(event.turnwire_session_start, event_id)
            case "turnwire_session_resume":
                self._schedule.reject(NOT_FIRST, None, event_id)
            case _:  # None
                self._schedule.reject(_UNKNOWN_EVENT, stream_id, event_id)

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
            self._schedule.create(
                event.response_create,
                stream_id=lane,
                event_id=event_id or None,
                size=size,
                now=now,
                refusal=rejection,
            )

    def end_turn(
        self, turn: Turn, outcome: CachedResponse | None, answer: ServerEvent | None = None
    ) -> None:
        """Take back a turn that the driver ran, with its terminal event.

        Args:
            turn: A turn from `turns_to_start`.
            outcome: What continues it; None when it failed or was refused: then its parent is
                evicted if it was on the same lane. Creates that wait for this turn get it as
                their parent, pinned; without one they will not find their parent.
            answer: The terminal event, for a create that is sent again.
        """
        self._schedule.end_turn(turn, outcome, answer)

    def pause_turn(self, turn: Turn, conversation: Conversation) -> None:
        """Note that a running rollout waits for the outputs of the calls in `conversation`.

        `turns_to_wake` says when it goes on. It is cancelled when nothing can come any more.
        """
        self._schedule.pause_turn(turn, conversation)

    def end_pause(self, turn: Turn) -> None:
        """Note that a paused turn waits no longer, though nothing was appended."""
        turn.move(TurnTrigger.RESUME)

    def take_back(self, turn: Turn, appended: Appended) -> None:
        """Note that what was appended cannot be used: the turn waits as before."""
        self._schedule.take_back(turn, appended)

    def close_input(self) -> None:
        """Note that no client event can come any more: what is paused is cancelled."""
        self._schedule.close_input()

    def close_to_creates(self, rejection: Rejection) -> None:
        """Answer every further create with `rejection`, in its lane's order."""
        self._schedule.close_to_creates(rejection)

    def reopen(self) -> None:
        """Take creates and all other events again: the session goes on on a new connection."""
        self._schedule.reopen()

    def cancel_all(self, rejection: Rejection | None = None) -> None:
        """End everything that runs, and withdraw what waits.

        Args:
            rejection: The answer to the creates that wait; None when the peer is gone, so that
                there is nobody to answer.
        """
        self._schedule.cancel_all(rejection)

    def forget(self) -> None:
        """Give the cache back. The session must be idle."""
        self._schedule.cache.clear()

    def rest(self) -> Iterator[None]:
        """Compress what continues the session until it is needed: nothing came for a while.

        Each step takes some milliseconds at most.
        """
        for entry in self._schedule.cache.entries():
            yield from entry.conversation.pack()
            if entry.prompt is not None:
                entry.prompt.ids.pack()
                yield

    def find_item(self, item_id: str) -> item_pb2.Item | None:
        """Return an item of any cached conversation, None when there is none with this id."""
        for entry in self._schedule.cache.entries():
            item = entry.conversation.find_item(item_id)
            if item is not None:
                return item
        return None

    # Private: one method per event.

    def _steer(
        self, steer: client_event_pb2.ResponseSteer, event_id: str | None, now: float
    ) -> None:
        if event_id in self._schedule.repeats:
            return
        target = self._schedule.running_response(steer.previous_response_id)
        answer = self._steering.take(steer, target, now=now)
        self._schedule.events.append(answer)
        if answer.HasField("response_steer_accepted"):
            self._schedule.repeats.add(event_id)

    def _inject(
        self,
        inject: client_event_pb2.ResponseInject,
        stream_id: str | None,
        malformed: Rejection | None,
    ) -> None:
        target = self._schedule.running_response(inject.response_id)
        lane = target.lane if target is not None else stream_id
        self._schedule.events.append(inject_failed(inject, lane, malformed))

    def _append(
        self,
        append: client_event_pb2.ResponseAppend,
        stream_id: str | None,
        event_id: str | None,
    ) -> None:
        if event_id in self._schedule.repeats:
            return
        turn = self._schedule.running_response(append.response_id)
        rejection = take_append(append, turn, self._rules, stream_id, event_id)
        if rejection is not None:
            self._schedule.reject(rejection, stream_id, event_id)
            return
        assert turn is not None  # or it would have been refused
        self._schedule.to_wake.append(turn)
        self._schedule.repeats.add(event_id)

    def _start(self, start: client_event_pb2.TurnwireSessionStart, event_id: str | None) -> None:
        rejection = check_start(
            start, is_first=self._received == 1, can_resume=self._resume_grace_s > 0
        )
        if rejection is not None:
            self._schedule.reject(rejection, None, event_id)
            return
        self.wants_session_events = True
        started = server_event_pb2.TurnwireSessionStarted(session_id=self.id)
        if start.resume:
            self.resume_token = self._new_id("ticket_")
            started.resume_token = self.resume_token
            started.resume_grace_s = self._resume_grace_s
        self._schedule.events.append(ServerEvent(turnwire_session_started=started))

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
            target = self._schedule.running_response(steer.previous_response_id)
            self._schedule.events.append(steer_malformed(steer, target, rejection))
        elif event is not None and event.HasField("response_inject"):
            self._inject(event.response_inject, stream_id, rejection)
        else:
            self._schedule.reject(rejection, stream_id, event_id)


def _valid(stream_id: str | None) -> str | None:
    """Return a lane's name as it may be shown: None when it is none."""
    return stream_id if stream_id is None or check_lane_name(stream_id) is None else None
