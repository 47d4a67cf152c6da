"""A turn that hears its model: from the ids of an engine's step to events on their way."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from turnwire_server.ports.engine import Generation
from turnwire_server.ports.renderer import OutputParser
from turnwire_server.runtime.outbox import Outlet
from turnwire_server.session.assembly import ResponseAssembler
from turnwire_server.session.events import Outgoing
from turnwire_server.session.output import OutputPiece, ReasoningDelta, TextDelta
from turnwire_server.session.session import Session
from turnwire_server.session.turns import Turn

__all__ = ["Hearing"]


class Hearing:
    """What a token touches of its turn, and what happens to it."""

    # The members of a class stand together in memory, and those of its heirs behind them.
    __slots__ = (
        *("_assembler", "_generation", "_monotonic", "_parser", "cut_reason", "is_exact"),
        *("last_event_at", "outlet", "parsers", "reasoning", "sampled", "session", "turn"),
    )

    def __init__(
        self, turn: Turn, session: Session, outlet: Outlet, monotonic: Callable[[], float]
    ) -> None:
        """Hear nothing yet.

        Args:
            turn: The turn.
            session: The session that it came from.
            outlet: Where its events go.
            monotonic: Returns seconds since an arbitrary start.
        """
        self.turn = turn
        self.session = session
        self.outlet = outlet
        self._monotonic = monotonic
        self.last_event_at = monotonic()
        """Seconds on the clock of the newest event."""
        self.sampled: array[int] = array("I")
        """Ids that the model sampled since the newest input, in order."""
        self.is_exact = True
        """Whether the sampled ids are what was said, no more and no less."""
        self.cut_reason: str | None = None
        """Why the response ends incomplete, if it was cut off."""
        self.parsers: list[OutputParser] = []
        """What read the output, one per generation."""
        self.reasoning: list[str] = []
        """Deltas of reasoning."""
        self._assembler: ResponseAssembler | None = None
        self._parser: OutputParser | None = None
        self._generation: Generation | None = None

    @property
    def assembler(self) -> ResponseAssembler:
        """The assembler; there is one once the response has begun."""
        assert self._assembler is not None
        return self._assembler

    @property
    def is_alone(self) -> bool:
        """Whether its session runs nothing else: what it says need not wait for company."""
        return self.session.in_flight == 1

    def stop_engine(self) -> None:
        """Tell the engine to stop, in this very call. Idempotent."""
        if self._generation is not None:
            self._generation.cancel()

    def read_with(self, parser: OutputParser) -> None:
        """Let `parser` read what the model says from here on."""
        self._parser = parser
        self.parsers.append(parser)

    def hear(self, ids: Sequence[int], *, is_last: bool = False) -> bool:
        """Take what the model sampled; return whether there is room for more events.

        A turn that was steered is heard to the end of the item that the model is writing. When
        another one begins, the turn is cut off.
        """
        if self.turn.steers:
            self.assembler.end_after_item()
        parser = self._parser
        assert parser is not None
        if len(ids) == 1:
            token = ids[0]
            self.sampled.append(token)
            if (text := parser.more_text(token)) is not None:
                return self._say_more(text, is_last=is_last)
        else:
            self.sampled.extend(ids)
        pieces = parser.feed(ids)
        has_room = self.say(pieces, is_last=is_last) if pieces else True
        if parser.ending is not None:
            # The engine's step went on behind it: nobody is shown that, and nothing counts it.
            del self.sampled[parser.ending.ids :]
            self.is_exact = self.is_exact and parser.ending.is_exact
            self.stop_engine()
        return has_room

    def _say_more(self, text: str, *, is_last: bool) -> bool:
        """Queue the event of more text of a message, see `say`: most tokens are that."""
        assembler = self._assembler
        assert assembler is not None
        delta = assembler.delta_of_text(text)
        if delta is None:
            return self.say([TextDelta(text)], is_last=is_last)
        self.last_event_at = self._monotonic()  # as `send` does
        return self.outlet.send(delta)

    def say(self, pieces: Sequence[OutputPiece], *, is_last: bool = False) -> bool:
        """Queue the events of what the model said; return whether there is room for more.

        Args:
            pieces: What it said.
            is_last: Whether the end comes next: both leave in one write then.
        """
        assembler = self._assembler
        assert assembler is not None
        if len(pieces) == 1 and (delta := assembler.delta_of(pieces[0])) is not None:
            self.last_event_at = self._monotonic()  # as `send` does
            return self.outlet.send(delta)
        for piece in pieces:
            if isinstance(piece, ReasoningDelta):
                self.reasoning.append(piece.text)
        has_room = self.send(assembler.add(pieces), is_last=is_last)
        if assembler.has_dropped:
            self.is_exact = False
            self.cut_reason = "steered"
            self.stop_engine()
        return has_room

    def send(self, events: Sequence[Outgoing], *, is_last: bool = False) -> bool:
        """Queue events, see `say`; return whether there is room for more."""
        if not events:
            return True
        self.last_event_at = self._monotonic()
        if len(events) == 1:
            return self.outlet.send(events[0])
        return self.outlet.send_all(events, at_once=not is_last and self.is_alone)
