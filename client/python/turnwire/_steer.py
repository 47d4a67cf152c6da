"""Steering: user messages for a response that runs, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from turnwire._event import Event
from turnwire._rejections import rejection_from_body
from turnwire._request import as_items
from turnwire.errors import TurnwireError
from turnwire.v1 import server_event_pb2
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.item_pb2 import Item

if TYPE_CHECKING:
    from turnwire._turn import Turn

__all__ = ["STEER_ARMS", "Steer", "SteerState", "Steers"]

STEER_ARMS = frozenset(
    {"response_steer_accepted", "response_steer_pending", "response_steer_failed"}
)
"""Arms that tell of a steer; they are of no turn."""

StartTurn = Callable[[list[Item]], "Turn"]
"""Makes the turn of a successor, given its input."""

TakeAlong = Callable[[str, list[Item]], None]
"""Told of a response and the messages that go in front of what continues it."""


class SteerState:
    """What the session knows of a steer. Lives on the session's event loop."""

    def __init__(self, event: ClientEvent) -> None:
        self.event = event
        """What was sent, to be sent again when nobody knows whether it came."""
        self.target_id = event.response_steer.previous_response_id
        self.id: str | None = None
        self.is_settled = False
        """Whether it is known what becomes of it: `successor` or `error`, or neither."""
        self.successor: Turn | None = None
        self.error: TurnwireError | None = None
        self._news = asyncio.Event()

    def accept(self, steer_id: str) -> None:
        """Note that the server has taken it."""
        self.id = steer_id
        self._news.set()

    def settle(self, *, successor: Turn | None = None, error: TurnwireError | None = None) -> None:
        """Note what becomes of it; the first word counts."""
        if not self.is_settled:
            self.is_settled = True
            self.successor, self.error = successor, error
            self._news.set()

    @property
    def items(self) -> list[Item]:
        """The messages."""
        return as_items(self.event.response_steer.input)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds or it is settled; then raise its error, if there is one.

        Raises:
            TurnwireError: It was not applied and never will be.
        """
        while not condition() and not self.is_settled:
            self._news.clear()
            await self._news.wait()
        if self.error is not None:
            raise self.error


class Steer:
    """A steer that the server has taken, made by `turn.steer`."""

    def __init__(self, state: SteerState) -> None:
        self._state = state

    @property
    def id(self) -> str:
        """Id, `steer_…`."""
        return self._state.id or ""

    @property
    def previous_response_id(self) -> str:
        """The response that it steers."""
        return self._state.target_id

    async def successor(self) -> Turn | None:
        """Wait until the response has ended and return the turn that follows it by itself.

        Several steers of one response have one successor.

        Returns:
            None when the response waits for the outputs of calls: the messages go in front of
            them, with the next create that continues the response on its lane, or with what is
            appended to a rollout.

        Raises:
            TurnwireError: It was not applied and never will be; `ResponseRejected` with the
                server's code, for example `response_not_active` when the response was cancelled.
        """
        await self._state.until(lambda: False)
        return self._state.successor

    def __repr__(self) -> str:
        return f"<Steer {self.id}>"


class Steers:
    """The steers of a session that are not settled."""

    def __init__(self, take_along: TakeAlong) -> None:
        """Make an empty collection.

        Args:
            take_along: Called when it shows that messages wait for what continues their target.
        """
        self._take_along = take_along
        self._asked: dict[str, deque[SteerState]] = {}
        """Target -> steers that were sent and not answered, in order."""
        self._taken: dict[str, list[SteerState]] = {}
        """Target -> steers that the server has taken."""

    def add(self, state: SteerState) -> None:
        """Note a steer that is sent."""
        self._asked.setdefault(state.target_id, deque()).append(state)

    def hear(self, event: Event, *, is_paused: bool) -> None:
        """Take what the server says of a steer.

        Args:
            event: One of `STEER_ARMS`.
            is_paused: Whether its target is a rollout that waits for outputs.
        """
        body = event.message
        assert isinstance(
            body,
            server_event_pb2.ResponseSteerAccepted
            | server_event_pb2.ResponseSteerPending
            | server_event_pb2.ResponseSteerFailed,
        )
        target_id = body.steer.previous_response_id
        asked = self._asked.get(target_id)
        if isinstance(body, server_event_pb2.ResponseSteerAccepted):
            if asked:
                state = asked.popleft()
                state.accept(body.steer.id)
                self._taken.setdefault(target_id, []).append(state)
                if is_paused:
                    self.release(target_id)
        elif isinstance(body, server_event_pb2.ResponseSteerPending):
            self._settle(target_id, body.steer.id)
        elif body.steer.HasField("id"):
            self._settle(target_id, body.steer.id, error=rejection_from_body(0, body.error))
        elif asked:
            asked.popleft().settle(error=rejection_from_body(0, body.error))
        if not asked:
            self._asked.pop(target_id, None)

    def release(self, target_id: str) -> None:
        """Note that a response waits for outputs: its steers go with them."""
        for state in self._taken.pop(target_id, ()):
            state.settle()
            self._take_along(target_id, state.items)

    def succeed(self, target_id: str, start: StartTurn) -> bool:
        """Note that a response has begun that no create asked for; return whether steers did."""
        states = self._taken.pop(target_id, None)
        if not states:
            return False
        turn = start([item for state in states for item in state.items])
        for state in states:
            state.settle(successor=turn)
        return True

    def unanswered(self) -> list[SteerState]:
        """Return the steers of which it is not known whether the server has them."""
        return [state for states in self._asked.values() for state in states]

    def has_taken(self, target_id: str | None) -> bool:
        """Return whether the server has taken steers of a response."""
        return target_id in self._taken

    def lose(self, error: TurnwireError) -> None:
        """Note that no more can be heard of them."""
        for states in (*self._asked.values(), *self._taken.values()):
            for state in states:
                state.settle(error=error)
        self._asked.clear()
        self._taken.clear()

    def _settle(self, target_id: str, steer_id: str, *, error: TurnwireError | None = None) -> None:
        states = self._taken.get(target_id, [])
        for state in [one for one in states if one.id == steer_id]:
            state.settle(error=error)
            states.remove(state)
            if error is None:
                self._take_along(target_id, state.items)
        if not states:
            self._taken.pop(target_id, None)
