"""Creates on their way: which may be sent, in which order."""

from __future__ import annotations

from turnwire._book import TurnBook
from turnwire._delivery import cancel_event
from turnwire._lineage import Lineage
from turnwire._link import Link
from turnwire._turn_state import TurnState

__all__ = ["Backlog"]


class Backlog:
    """The turns of a session that were not sent, or may have to be sent once more.

    A lane keeps its order: a create does not overtake one that is held, nor one of which it is not
    known yet whether the server has its parent.
    """

    def __init__(self, book: TurnBook, lineage: Lineage) -> None:
        self._book = book
        self._lineage = lineage
        self.is_there = False
        """Whether there may be such turns: a new one then has to look at those before it."""

    def send(self, link: Link, state: TurnState) -> None:
        """Send a create."""
        state.delivery.is_sent = True
        link.send(self._lineage.address(state), state)
        if state.delivery.is_tentative:
            self.is_there = True

    def pump(self, link: Link) -> None:
        """Send what can be sent."""
        blocked = set()
        for state in self._book:
            delivery = state.delivery
            if not delivery.is_sent:
                if (
                    state.stream_id in blocked
                    or delivery.is_held
                    or self._lineage.waits(state, self._book)
                ):
                    blocked.add(state.stream_id)
                    continue
                self.send(link, state)
            if delivery.is_tentative and state.response_id is None:
                blocked.add(state.stream_id)
        self.is_there = bool(blocked)

    def say_again(self, link: Link) -> None:
        """Send once more what a session that goes on may not have heard: it runs nothing twice."""
        for state in self._book:
            delivery = state.delivery
            if not delivery.is_sent:
                continue
            if delivery.create is not None and state.response_id is None:
                link.send(self._lineage.address(state), state)
            if state.append is not None:
                link.send(state.append, state)
            if state.cancel_asked or state.outcome is not None:
                link.send(cancel_event(state))
