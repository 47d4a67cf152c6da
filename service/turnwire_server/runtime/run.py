"""A turn while it runs: what its story, its connection and the outside may touch."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from turnwire.v1 import response_pb2, server_event_pb2
from turnwire_server.ports.engine import Generation
from turnwire_server.ports.renderer import Rendered, Renderer
from turnwire_server.ports.screen import Verdict
from turnwire_server.runtime.outbox import Outbox
from turnwire_server.runtime.screening import Screening
from turnwire_server.runtime.stages import Stages
from turnwire_server.session.assembly import ResponseAssembler
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Outgoing
from turnwire_server.session.output import OutputPiece, ReasoningDelta
from turnwire_server.session.session import Session
from turnwire_server.session.turns import Turn

if TYPE_CHECKING:
    from turnwire_server.runtime.services import Services

__all__ = ["TurnRun", "terminal_response"]


class TurnRun:
    """One running turn."""

    def __init__(
        self,
        turn: Turn,
        *,
        session: Session,
        outbox: Outbox,
        services: Services,
        tenant: str,
        is_persistent: bool,
        on_over: Callable[[TurnRun], None],
    ) -> None:
        """Make the run of a turn that the session has started.

        Args:
            turn: The turn.
            session: The session that it came from.
            outbox: Where its events go.
            services: What all connections share.
            tenant: Whose turn it is.
            is_persistent: Whether the wire outlives the turn.
            on_over: Called once, after the terminal event was queued.
        """
        self.turn = turn
        self.session = session
        self.outbox = outbox
        self.services = services
        self.tenant = tenant
        self.is_persistent = is_persistent
        self._on_over = on_over
        self.stages = Stages(services.clock, turn.received_at)
        self.sampled: array[int] = array("I")
        """Ids that the model sampled, in order."""
        self.reasoning: list[str] = []
        """Deltas of reasoning."""
        self.cached_tokens = 0
        """Prompt tokens that the engine had cached."""
        self.screening: Screening | None = None
        """The check of the input, None without a screen."""
        self.verdict: Verdict | None = None
        """What the screen said; None before that, and without a screen."""
        self.last_event_at = services.clock.monotonic()
        """Seconds on the clock of the newest event."""
        self.is_over = False
        self.over: asyncio.Future[response_pb2.Response | None] = (
            asyncio.get_running_loop().create_future()
        )
        """Resolved with the final response when the turn is over, with None when refused."""
        self._assembler: ResponseAssembler | None = None
        self._renderer: Renderer | None = None
        self._rendered: Rendered | None = None
        self._generation: Generation | None = None

    @property
    def log_ids(self) -> str:
        """Ids for the log; never content."""
        return f"session_id={self.session.id} response_id={self.turn.response_id}"

    @property
    def is_cleared(self) -> bool:
        """Whether output may leave."""
        if self.screening is None:
            return True
        return self.verdict is not None and self.verdict.allowed

    @property
    def is_refused(self) -> bool:
        """Whether the turn is answered with a refusal; there is none to a warm-up or a cancel."""
        verdict = self.verdict
        if verdict is None or verdict.allowed or verdict.ending != "refuse":
            return False
        return not self.turn.is_warm_up and not self.turn.is_cancelled

    @property
    def has_begun(self) -> bool:
        """Whether `response.created` was queued."""
        return self._assembler is not None

    @property
    def assembler(self) -> ResponseAssembler:
        """The assembler; there is one after `begin`."""
        assert self._assembler is not None
        return self._assembler

    @property
    def generation(self) -> Generation:
        """The generation; there is one after `start`."""
        assert self._generation is not None
        return self._generation

    @property
    def renderer(self) -> Renderer:
        """The renderer; there is one after `begin`."""
        assert self._renderer is not None
        return self._renderer

    @property
    def input_tokens(self) -> int:
        """Tokens of the prompt, which there is after `begin`."""
        assert self._rendered is not None
        return len(self._rendered.prompt.ids)

    def begin(
        self, response: response_pb2.Response, renderer: Renderer, rendered: Rendered
    ) -> None:
        """Queue the first events of the response, whose prompt is `rendered`."""
        self._renderer, self._rendered = renderer, rendered
        self._assembler = ResponseAssembler(
            response, stream_id=self.turn.lane, new_id=self.services.new_id
        )
        self.send(self._assembler.begin())

    def start(self, generation: Generation) -> None:
        """Take the generation; a turn that was cancelled meanwhile cancels it at once."""
        self._generation = generation
        if self.turn.is_cancelled:
            generation.cancel()

    def stop_engine(self) -> None:
        """Tell the engine to stop, in this very call. Idempotent."""
        if self._generation is not None:
            self._generation.cancel()

    def stop(self) -> None:
        """End the engine's and the screen's work: nobody wants it any more. Idempotent."""
        self.stop_engine()
        if self.screening is not None:
            self.screening.stop()

    def say(self, pieces: Sequence[OutputPiece]) -> bool:
        """Queue the events of what the model said; return whether there is room for more."""
        for piece in pieces:
            if isinstance(piece, ReasoningDelta):
                self.reasoning.append(piece.text)
        return self.send(self.assembler.add(pieces))

    def send(self, events: Sequence[Outgoing]) -> bool:
        """Queue events; return whether there is room for more."""
        has_room = True
        for event in events:
            has_room = self.outbox.send(event)
        if events:
            self.last_event_at = self.services.clock.monotonic()
        return has_room

    def refuse(self, rejection: Rejection) -> None:
        """End the turn by an `error` event: nothing began."""
        error = rejection.event(self.turn.lane, self.turn.event_id)
        self._finish(None, [error], None)

    def end(self, outcome: CachedResponse | None, events: Sequence[Outgoing]) -> None:
        """End the turn.

        Args:
            outcome: What continues it, None when it failed.
            events: The last events; the last of them is the terminal event.
        """
        self._finish(outcome, events, self.assembler.response)

    def _finish(
        self,
        outcome: CachedResponse | None,
        events: Sequence[Outgoing],
        response: response_pb2.Response | None,
    ) -> None:
        self.is_over = True
        # The session moves first, so that a create that follows the terminal event finds it.
        self.session.end_turn(self.turn, outcome)
        try:
            self.send(events)
        finally:  # a lane must not stand still for an event that cannot be encoded
            self.over.set_result(response)
            self._on_over(self)

    def keepalive(self, *, as_in_progress: bool) -> None:
        """Queue a sign of life, if the response is open."""
        if self._assembler is not None and self._assembler.is_open and not self.is_over:
            self.send(self._assembler.keepalive(as_in_progress=as_in_progress))


def terminal_response(event: Outgoing) -> response_pb2.Response | None:
    """Return the response inside a terminal event, None for any other."""
    if not isinstance(event, server_event_pb2.ServerEvent):
        return None
    match event.WhichOneof("event"):
        case "response_completed":
            return event.response_completed.response
        case "response_incomplete":
            return event.response_incomplete.response
        case "response_failed":
            return event.response_failed.response
        case _:
            return None
