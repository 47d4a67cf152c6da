"""The turns of a session: by id, by lane, in the order in which they were asked for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from turnwire._turn_state import TurnState
from turnwire.v1.client_event_pb2 import LastSeen

__all__ = ["TurnBook"]

_MAX_FORMER = 512


@dataclass(slots=True)
class _Lane:
    turns: deque[TurnState] = field(default_factory=deque)
    last_event: float = 0.0


class TurnBook:
    """Turns that are not over, and what must be known of those that are.

    Watches over silence: `on_silence` is called with the first turn of a lane that waits when
    nothing was heard on the lane for the bound. All lanes share one timer, which no event moves
    and the end of a turn does not stop: when it is due, it looks when it should have been.
    """

    def __init__(self, silence_timeout_s: float, on_silence: Callable[[TurnState], None]) -> None:
        self._silence_timeout_s = silence_timeout_s
        self._on_silence = on_silence
        self._loop = asyncio.get_running_loop()
        self._turns: dict[str, TurnState] = {}
        self._lanes: dict[str | None, _Lane] = {}
        self._seen: dict[str | None, tuple[str, int]] = {}
        """Lane -> response and number of the last event of its last turn that is over."""
        self._former: OrderedDict[str, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self.idle_since = self._loop.time()
        """When the last turn was over, on the loop's clock."""

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[TurnState]:
        """Return the turns in the order in which they were asked for; may change meanwhile."""
        return iter(list(self._turns.values()))

    def find(self, event_id: str) -> TurnState | None:
        """Return the turn of a create; None when it is over or none of ours."""
        return self._turns.get(event_id)

    def head(self, stream_id: str | None) -> TurnState | None:
        """Return the first turn of a lane: the one that its events are of."""
        lane = self._lanes.get(stream_id)
        return None if lane is None else lane.turns[0]

    def is_former(self, event_id: str) -> bool:
        """Return whether a client event of this id was answered."""
        return event_id in self._former

    def has_ended(self, response_id: str, state: TurnState | None) -> bool:
        """Return whether a response is over and not that of the turn that is first on its lane."""
        is_of_turn = state is not None and state.response_id == response_id
        return response_id in self._former and not is_of_turn

    def add(self, state: TurnState, *, first: bool = False) -> None:
        """Take a turn, behind those of its lane, or in front of them."""
        self._turns[state.event_id] = state
        lane = self._lanes.get(state.stream_id)
        if lane is None:
            lane = self._lanes[state.stream_id] = _Lane()
        if first:
            lane.turns.appendleft(state)
        else:
            lane.turns.append(state)
        if first or len(lane.turns) == 1:
            lane.last_event = self._loop.time()
        self._watch(lane.last_event)

    def remove(self, state: TurnState) -> None:
        """Take a turn out that is over."""
        del self._turns[state.event_id]
        self.answered(state.event_id)
        if state.response_id is not None:
            self.answered(state.response_id)
        self._keep_place(state)
        lane = self._lanes[state.stream_id]
        lane.turns.remove(state)
        if not lane.turns:
            del self._lanes[state.stream_id]
            if not self._turns:
                self.idle_since = self._loop.time()

    def rename(self, state: TurnState, event_id: str) -> None:
        """Give a turn's create another id: the server knows the old one as a request of its own."""
        self.answered(state.event_id)
        turns = [(event_id if one is state else key, one) for key, one in self._turns.items()]
        self._turns = dict(turns)
        state.event_id = event_id

    def answered(self, name: str) -> None:
        """Note that a client event was answered, or that a response is over.

        A server that does not know what came says so again, and it means nothing.
        """
        self._former[name] = None
        if len(self._former) > _MAX_FORMER:
            self._former.popitem(last=False)

    def hear(self, stream_id: str | None) -> TurnState | None:
        """Note that something was heard on a lane, and return its first turn."""
        lane = self._lanes.get(stream_id)
        if lane is None:
            return None
        lane.last_event = self._loop.time()
        return lane.turns[0]

    def heard(self, stream_id: str | None) -> None:
        """Note that something was heard on a lane that has turns."""
        self._lanes[stream_id].last_event = self._loop.time()

    def heard_all(self) -> None:
        """Begin to wait anew on every lane."""
        for lane in self._lanes.values():
            lane.last_event = self._loop.time()

    def close(self) -> None:
        """Let go of the timer; there are no turns any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Places: what was seen last on each lane.

    def last_seen(self) -> list[LastSeen]:
        """Return the last event that was seen on each lane of this session."""
        for lane in self._lanes.values():
            self._keep_place(lane.turns[0])
        return [
            LastSeen(stream_id=lane, response_id=response_id, sequence_number=number)
            for lane, (response_id, number) in self._seen.items()
        ]

    def forget_places(self) -> None:
        """Note that another session begins."""
        self._seen.clear()

    # Private.

    def _keep_place(self, state: TurnState) -> None:
        if state.response_id is not None and state.last_sequence_number >= 0:
            self._seen[state.stream_id] = (state.response_id, state.last_sequence_number)

    def _watch(self, last_event: float) -> None:
        """Look again when the bound is over for a lane."""
        due = last_event + self._silence_timeout_s
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._check)

    def _check(self) -> None:
        self._timer = None
        for lane in list(self._lanes.values()):
            waiting = next((state for state in lane.turns if state.outcome is None), None)
            if waiting is None:
                continue
            now = self._loop.time()
            if waiting.waits_for_user:
                lane.last_event = now
            if now >= lane.last_event + self._silence_timeout_s:
                lane.last_event = now
                self._on_silence(waiting)
            self._watch(lane.last_event)
