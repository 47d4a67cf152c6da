"""What a session knows of one turn."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from turnwire._create import Create
from turnwire._delivery import Delivery
from turnwire._event import DELTA_ARMS, TERMINAL_ARMS, Event
from turnwire._news import News
from turnwire._rejections import rejection, rejection_from_body
from turnwire._response import Response
from turnwire._stats import Clock, TurnStats, stats_of
from turnwire._steer import STEER_ARMS
from turnwire.errors import ProtocolViolation, TurnFailed, TurnwireError
from turnwire.v1 import response_pb2
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.item_pb2 import Item
from turnwire.v1.server_event_pb2 import ServerEvent

__all__ = ["TurnState", "ghost_of"]

# Events of a paused turn that do not mean that it goes on.
_WHILE_PAUSED = STEER_ARMS | {"keepalive", "response_in_progress"}
# Events that show nothing of what the model wrote.
_SILENT = STEER_ARMS | {"keepalive", "response_in_progress", "response_queued"}


class TurnState:
    """What the session knows of a turn. Lives on the session's event loop."""

    def __init__(
        self,
        event_id: str,
        stream_id: str | None,
        input_items: int,
        max_events: int,
        create: ClientEvent | Create | None = None,
        *,
        is_exact: bool = False,
    ) -> None:
        self.event_id = event_id
        self.stream_id = stream_id
        self.delivery = Delivery(create, is_exact=is_exact)
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
        self.append: ClientEvent | None = None
        """Outputs that are on their way."""
        self.append_error: TurnwireError | None = None
        """Why the last append was refused."""
        self.last_sequence_number = -1
        self._input_items = input_items
        self._max_events = max_events
        self.events: deque[Event] = deque()
        """What the user did not take yet."""
        self._discard = False
        self._first_event: Event | None = None
        self._first_output: Event | None = None
        """The first event, and the first with output, that was kept for the user."""
        self._has_shown = (False, False)
        """Whether the user took the one and the other, as of the moment of `discard`."""
        self._is_resumed = False
        """Its events go on without a gap on another connection."""
        self._done: list[Event] = []
        """The events of items that are whole."""
        self._told: list[Item] = []
        """Of a rollout: the rounds that are over, with what answered them."""
        self._steered: list[Item] = []
        """Of a rollout: messages that go in front of what will be appended."""
        self._round_start = 0
        self._paused_at = 0.0
        self._paused_s = 0.0
        self._bytes_down = 0
        self._first_delta: float | None = None
        self._ended = self.started
        self.news = News()
        self.is_full = False
        """Whether the user should read before more is taken in."""
        self._room: asyncio.Event | None = None
        """While that is so: set when there is room again."""

    # What comes in.

    def feed(self, event: Event) -> None:
        """Take one event of this turn."""
        self._bytes_down += event.size
        arm = event.arm
        number = event.number
        if self.outcome is not None:
            self.is_over = arm in TERMINAL_ARMS
            if number >= 0:
                self.last_sequence_number = number
            return
        if number >= 0:
            if number != self.last_sequence_number + 1 and not self._takes(number):
                return
            self.last_sequence_number = number
        if arm == "response_done":
            self._pause()
        elif self.is_paused and arm not in _WHILE_PAUSED:
            self._go_on()
        outcome = None
        if arm in DELTA_ARMS:
            if self._first_delta is None:
                self._first_delta = time.perf_counter()
                self._note_output(event)
        elif arm in TERMINAL_ARMS:
            self.is_over = True
            outcome = self._outcome_of(event)
            if arm == "error":
                self.end(outcome)
                return
        elif arm == "response_created":
            self.response_id = event.whole.response_created.response.id
            self.delivery.tried_until = None
            if not self._discard:
                self._first_event = event
        elif arm == "response_in_progress":
            self.has_begun = True
        else:
            if arm == "response_output_item_done":
                self._done.append(event)
            if self._first_output is None and arm not in _SILENT:
                self._note_output(event)
        if not self._discard:
            self.events.append(event)
            if self._room is None and len(self.events) >= self._max_events:
                self._room = asyncio.Event()
                self.is_full = True
        if outcome is not None:
            self.end(outcome)
        elif self.news.waiters:
            self.news.tell()

    def end(self, outcome: Response | TurnwireError) -> None:
        """End the turn for the user; only the first end counts."""
        if self.outcome is None:
            self.outcome = outcome
            self._ended = time.perf_counter()
            self.news.tell()

    def lose(self, error: TurnwireError) -> None:
        """End the turn for good: no more events will come."""
        self.is_over = True
        self._make_room()
        self.end(error)

    def complete(self, event: Event) -> None:
        """End the turn with a terminal event that was fetched: what came between is left out."""
        self.is_paused = False
        self.feed(event)

    @property
    def waits_for_user(self) -> bool:
        """Whether it is paused and nothing is on its way."""
        return self.is_paused and self.append is None

    @property
    def is_appending(self) -> bool:
        """Whether outputs are on their way."""
        return self.append is not None

    def begin_append(self, event: ClientEvent) -> None:
        """Note that outputs are sent: the time is the server's again."""
        self.append_error = None
        self.append = event
        self._paused_s += time.perf_counter() - self._paused_at

    def refuse_append(self, error: TurnwireError) -> None:
        """Note that the server refused what was appended: the turn still waits."""
        self.append_error = error
        self.append = None
        self._paused_at = time.perf_counter()
        self.news.tell()

    def steer_round(self, items: Sequence[Item]) -> None:
        """Note messages that go into a paused rollout in front of what will be appended."""
        self._steered += items

    def round_items(self) -> list[Item]:
        """Return the items of the newest round of a rollout, in order."""
        return [item for index, item in _placed(self._done) if index >= self._round_start]

    def items(self) -> list[Item]:
        """Return the items that are whole, in order."""
        return [item for _, item in _placed(self._done)]

    def story(self, response: response_pb2.Response) -> list[Item]:
        """Return what the turn added after its input: output and, of a rollout, what answered."""
        if not self._told:
            return list(response.output)
        return [*self._told, *response.output[self._round_start :]]

    def discard(self) -> None:
        """Drop what was not read and what will come; only the outcome matters from now on."""
        self._has_shown = self.has_shown_anything, self.has_shown_output
        self._first_event = self._first_output = None
        self._discard = True
        self.events.clear()
        self._make_room()

    def keep_all(self) -> None:
        """Stop holding up the connection: somebody waits for the end without reading."""
        self._max_events = sys.maxsize
        self._make_room()

    async def room(self) -> None:
        """Wait until the user has read enough for more to be kept."""
        if self._room is not None:
            await self._room.wait()

    # What a lost connection asks.

    @property
    def has_shown_anything(self) -> bool:
        """Whether the user took an event."""
        return self._has_shown[0] or self._was_taken(self._first_event)

    @property
    def has_shown_output(self) -> bool:
        """Whether the user took something of what the model wrote, or may have acted on it."""
        return self._has_shown[1] or self._was_taken(self._first_output)

    def resume(self) -> None:
        """Note that its events go on, without a gap, on another connection."""
        self._is_resumed = True

    def restart(self) -> None:
        """Forget what came: the turn begins again. What was not read is taken back."""
        delivery = self.delivery
        if self.response_id is not None:
            delivery.former_ids.append(self.response_id)
        delivery.is_sent = delivery.is_held = False
        delivery.is_tentative = delivery.needs_history = False
        self.response_id = None
        self.has_begun = self._is_resumed = False
        self.last_sequence_number = -1
        self._first_event = self._first_output = None
        self._first_delta = None
        self._done.clear()
        self.events.clear()
        self._make_room()

    # What the user takes.

    async def next_events(self) -> list[Event]:
        """Wait for events and return all that are there; none when the turn is over.

        Raises:
            TurnwireError: The turn is over, and not well.
        """
        while not self.events and self.outcome is None:
            await self.news.wait()
        events = list(self.events)
        self.events.clear()
        self._make_room()
        if not events and isinstance(self.outcome, TurnwireError):
            raise self.outcome
        return events

    def take(self) -> Event:
        """Return the next event, which is there."""
        event = self.events.popleft()
        if self._room is not None and len(self.events) < self._max_events:
            self._make_room()
        return event

    async def result(self) -> Response:
        """Wait for the end, dropping events; raises as above."""
        if self.events or self.outcome is None:
            self.discard()
        while self.outcome is None:
            await self.news.wait()
        if isinstance(self.outcome, TurnwireError):
            raise self.outcome
        return self.outcome

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds or the turn is over."""
        while self.outcome is None and not condition():
            await self.news.wait()

    def stats(self) -> TurnStats | None:
        """Return what the turn cost; None until it is over."""
        if self.outcome is None:
            return None
        paused_s = self._paused_s + (self._ended - self._paused_at if self.waits_for_user else 0.0)
        return stats_of(
            self.outcome,
            Clock(self.started, self._first_delta, self._ended, paused_s),
            response_id=self.response_id,
            input_items=self._input_items,
            bytes_up=self.bytes_up,
            bytes_down=self._bytes_down,
            resends=self.delivery.resends,
        )

    # Private.

    def _takes(self, number: int) -> bool:
        """Return whether an event is fed that is not the next one."""
        if number > self.last_sequence_number:
            if not self._is_resumed:
                return True  # Other servers leave numbers out.
            self.end(ProtocolViolation(f"events before number {number} are missing after resuming"))
        elif not self._is_resumed:
            self.end(ProtocolViolation(f"sequence number {number} came twice or late"))
        return False

    def _was_taken(self, event: Event | None) -> bool:
        return event is not None and all(one is not event for one in self.events)

    def _note_output(self, event: Event) -> None:
        if self._first_output is None and not self._discard:
            self._first_output = event

    def _pause(self) -> None:
        self.is_paused = True
        # From here on the user may have seen the calls and run their tools.
        self._has_shown = (True, True)
        self._paused_at = time.perf_counter()

    def _go_on(self) -> None:
        if self.waits_for_user:
            self._paused_s += time.perf_counter() - self._paused_at
        if self.append is not None:
            appended = self.append.response_append.input.items.items
            self._told += [*self.round_items(), *self._steered, *appended]
            self._steered.clear()
        self.is_paused = False
        self.append = None
        self._round_start = len(_placed(self._done))

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None
            self.is_full = False

    def _outcome_of(self, event: Event) -> Response | TurnwireError:
        """Take a terminal event; return what it makes of the turn."""
        if event.arm == "error":
            body = event.whole.error
            return rejection_from_body(body.status, body.error)
        self.response_id = event.response_id or self.response_id
        self.has_begun = True
        event.amend(partial(_complete, event.arm, self._done))
        response = Response.late(lambda: getattr(event.whole, event.arm).response)
        return TurnFailed(response) if event.arm == "response_failed" else response


def _placed(done: Iterable[Event]) -> list[tuple[int, Item]]:
    """Return the items that are whole with their places, in order."""
    bodies: list[Any] = [event.message for event in done]
    return sorted({body.output_index: body.item for body in bodies}.items())


def _complete(arm: str, done: Iterable[Event], event: ServerEvent) -> None:
    """Put into the response of a terminal event what other servers leave out."""
    response = getattr(event, arm).response
    if not response.output:  # Every item was sent before.
        response.output.extend(item for _, item in _placed(done))
    if response.status == response_pb2.RESPONSE_STATUS_UNSPECIFIED:
        response.status = _STATUS_OF_ARM[arm]


def ghost_of(event_id: str, stream_id: str | None, response_id: str) -> TurnState:
    """Return the turn of a create that runs at the server and is over here: it is to be ended.

    A create that was refused is sent again when the refusal was lost with a connection. Should it
    be told once more, but after that, the create runs though nobody waits for it.
    """
    ghost = TurnState(event_id, stream_id, 0, sys.maxsize)
    ghost.response_id = response_id
    ghost.delivery.is_sent = ghost.cancel_asked = True
    ghost.discard()
    ghost.end(rejection("request_cancelled", "It was refused before.", status=400))
    return ghost


_STATUS_OF_ARM = {
    "response_completed": response_pb2.RESPONSE_STATUS_COMPLETED,
    "response_incomplete": response_pb2.RESPONSE_STATUS_INCOMPLETE,
    "response_failed": response_pb2.RESPONSE_STATUS_FAILED,
}
