"""Which parent a create may name: on another session than its parent's, another, or none."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from turnwire._create import Create
from turnwire._event import Event
from turnwire._request import as_items
from turnwire._response import Response
from turnwire._transcript import Made, Transcript, as_made
from turnwire._turn_state import TurnState
from turnwire.v1 import response_pb2
from turnwire.v1.client_event_pb2 import ClientEvent, Input
from turnwire.v1.item_pb2 import Item

__all__ = ["Lineage"]

_CONTINUABLE = frozenset(
    {
        response_pb2.RESPONSE_STATUS_COMPLETED,
        response_pb2.RESPONSE_STATUS_INCOMPLETE,
        response_pb2.RESPONSE_STATUS_CANCELLED,
    }
)
_ELSEWHERE = -1


class _Over:
    """A turn that is over and not remembered yet."""

    __slots__ = ("end", "made", "response_id", "session", "state")

    def __init__(self, state: TurnState, end: Event | None, session: int) -> None:
        self.state = state
        self.end = end
        self.session = session
        self.response_id = ""
        self.made: Made | None = None
        """What it made, if that can be continued; as it was before the user had it."""

    def look(self, response: response_pb2.Response) -> None:
        """Keep what the user may change from now on."""
        self.response_id = response.id
        if response.status in _CONTINUABLE:
            self.made = as_made(self.state.story(response))


class Lineage:
    """Addresses creates, with what the transcript knows.

    A server that lost a session still has its stored responses, unless it lost its store too. Then,
    and for what was not stored, a create brings the whole conversation.
    """

    def __init__(self, transcript: Transcript, *, is_persistent: bool) -> None:
        self._transcript = transcript
        self._over: deque[_Over] = deque()
        """Turns that the transcript does not have yet."""
        self.session = 0
        """Number of the session that there is now; changes when the server may have lost one."""
        self._is_persistent = is_persistent

    @property
    def transcript(self) -> Transcript:
        """What is remembered, of all turns that are over."""
        if self._over:
            self._remember()
        return self._transcript

    def address(self, state: TurnState) -> ClientEvent | Create:
        """Return a turn's create as the session that there is now can take it."""
        delivery = state.delivery
        assert delivery.asked is not None  # What follows a steered turn is not sent.
        if self.session == 0 and not self._transcript.has_renamed:
            return delivery.asked  # Nothing was lost so far: the transcript need not be asked.
        asked = delivery.create
        assert asked is not None
        parent_id = asked.response_create.previous_response_id
        parent = self.transcript.find(parent_id) if parent_id else None
        if parent is None or parent.session == self.session:
            name = self.transcript.name(parent_id)
            if name == parent_id and state.event_id == asked.event_id:
                return asked
            event = _copy(asked, state.event_id)
            if parent_id:
                event.response_create.previous_response_id = name
            return event
        if not parent.is_stored and not self._is_persistent:
            return asked  # The server never had it: the user shall know.
        event = _copy(asked, state.event_id)
        if parent.is_stored and not delivery.needs_history:
            delivery.is_tentative = True
            event.response_create.previous_response_id = parent.response_id
            if parent.steers is not None:
                _put_before(event, parent.steers.items.items)
            return event
        event.response_create.ClearField("previous_response_id")
        whole = self.transcript.whole(parent)
        whole.items.items.extend(as_items(asked.response_create.input))
        event.response_create.input.CopyFrom(whole)
        return event

    def waits(self, state: TurnState, turns: Iterable[TurnState]) -> bool:
        """Return whether a turn continues a response that was lost and is being made again."""
        create = state.delivery.create
        parent_id = "" if create is None else create.response_create.previous_response_id
        return bool(parent_id) and any(parent_id in turn.delivery.former_ids for turn in turns)

    def brings_history(self, state: TurnState) -> bool:
        """Note that the server does not have a turn's parent; return whether we have it all."""
        delivery = state.delivery
        if not delivery.is_tentative or delivery.create is None:
            return False
        delivery.is_tentative = False
        delivery.needs_history = True
        return True

    def note(self, state: TurnState, end: Event | None = None, *, is_here: bool = True) -> None:
        """Remember a turn that is over.

        Who waits for the turn is woken before the most of it is done.

        Args:
            state: The turn.
            end: Its last event, when nobody can have looked into it so far.
            is_here: Whether it ended on the session that there is now.
        """
        response = state.outcome
        if not isinstance(response, Response):
            return
        if self._transcript.is_kept:
            over = _Over(state, end, self.session if is_here else _ELSEWHERE)
            # The message is the user's from the moment at which he asks for it.
            if end is None:
                over.look(response.message)
            else:
                arm = end.arm
                end.amend(lambda event: over.look(getattr(event, arm).response))
            self._over.append(over)
            asyncio.get_running_loop().call_soon(self._remember)
        if state.delivery.former_ids and response.message.status in _CONTINUABLE:
            self._transcript.rename(state.delivery.former_ids, response.id)

    def _remember(self) -> None:
        while self._over:
            over = self._over.popleft()
            if over.end is not None:
                _ = over.end.whole  # From here on it was looked at.
            state, response_id, made = over.state, over.response_id, over.made
            if made is None:
                continue
            delivery = state.delivery
            if delivery.create is not None:
                create = delivery.create.response_create
                parent_id = create.previous_response_id or None
                given = as_items(create.input)
                is_stored = delivery.may_be_stored
                is_warm_up = create.HasField("generate") and not create.generate
            elif delivery.succeeds is not None:
                parent_id, given = delivery.succeeds, delivery.steered
                target = self._transcript.find(parent_id)
                is_stored, is_warm_up = target is not None and target.is_stored, False
            else:
                continue
            self._transcript.add(
                response_id,
                parent_id=parent_id,
                lane=state.stream_id,
                given=given,
                made=made,
                is_stored=is_stored,
                session=over.session,
                is_warm_up=is_warm_up,
            )


def _copy(asked: ClientEvent, event_id: str) -> ClientEvent:
    event = ClientEvent()
    event.CopyFrom(asked)
    event.event_id = event_id
    return event


def _put_before(event: ClientEvent, items: Iterable[Item]) -> None:
    create = event.response_create
    own = as_items(create.input) if create.HasField("input") else []
    given = Input()
    given.items.items.extend(items)
    given.items.items.extend(own)
    create.input.CopyFrom(given)
