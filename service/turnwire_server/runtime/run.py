"""A turn while it runs: what its story, its connection and the outside may touch."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from turnwire.v1 import item_pb2, response_pb2, server_event_pb2
from turnwire_server.ports.conversations import StoredConversation
from turnwire_server.ports.engine import Generation
from turnwire_server.ports.ledger import UsageRecord
from turnwire_server.ports.renderer import Rendered, Renderer
from turnwire_server.ports.screen import Verdict
from turnwire_server.runtime.hearing import Hearing
from turnwire_server.runtime.keeping import Keeping, Outcome, no_outcome
from turnwire_server.runtime.outbox import Outlet
from turnwire_server.runtime.registry import Leases
from turnwire_server.runtime.screening import Screening
from turnwire_server.runtime.spent import Spent
from turnwire_server.runtime.stages import Stages
from turnwire_server.runtime.validate import CheckedCreate
from turnwire_server.session.assembly import ResponseAssembler
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Delta, Outgoing
from turnwire_server.session.session import Session
from turnwire_server.session.steering import refusal_events
from turnwire_server.session.turns import Turn

if TYPE_CHECKING:
    from turnwire_server.runtime.services import Services

__all__ = ["TurnRun", "terminal_response"]


class TurnRun(Hearing):
    """One running turn."""

    # More than 30 members would be a dictionary for each turn.
    __slots__ = (
        *("_first", "_leases", "_news", "_on_over", "_rendered", "_renderer", "_said"),
        *("_said_output", "cached_tokens", "given", "is_interrupted", "is_kept", "is_over"),
        *("is_persistent", "keeping", "model_name", "over", "record", "sampled_before"),
        *("screening", "services", "settled", "spent", "stages", "tenant", "unread_tokens"),
        *("verdict", "whole_prompt"),
    )

    def __init__(
        self,
        turn: Turn,
        *,
        session: Session,
        outlet: Outlet,
        services: Services,
        tenant: str,
        is_persistent: bool,
        on_over: Callable[[TurnRun], None],
    ) -> None:
        """Make the run of a turn that the session has started.

        Args:
            turn: The turn.
            session: The session that it came from.
            outlet: Where its events go.
            services: What all connections share.
            tenant: Whose turn it is.
            is_persistent: Whether the wire outlives the turn.
            on_over: Called once, after the terminal event was queued.
        """
        super().__init__(turn, session, outlet, services.clock.monotonic)
        self.services = services
        self.tenant = tenant
        self.is_persistent = is_persistent
        self._on_over = on_over
        self.stages = Stages(services.clock, turn.received_at)
        self.sampled_before = 0
        """How many it had sampled when a rollout was resumed last."""
        self.given: tuple[item_pb2.Item, ...] = ()
        """All input items, those that were appended too."""
        self._said: list[item_pb2.Item] = []
        self._said_output = 0
        self.settled: UsageRecord | None = None
        """What it used in all, from right before its terminal event on."""
        self.record: StoredConversation | None = None
        """The conversation that the turn has claimed."""
        self.spent = Spent()
        """What its compaction used."""
        self.unread_tokens = 0
        """Tokens of the prompt that no engine reads."""
        self.model_name = ""
        """Name of the served model, "" before `begin`."""
        self.cached_tokens = 0
        """Prompt tokens that the engine had cached."""
        self.screening: Screening | None = None
        """The check of the input, None without a screen."""
        self.verdict: Verdict | None = None
        """What the screen said; None before that, and without a screen."""
        self.keeping: Keeping | None = None
        """How it is kept from its beginning; None when it is stored at its end or not at all."""
        self.is_kept = False
        """Whether it is in the store though it is not over."""
        self.is_interrupted = False
        """Whether the server ends it, for its own reasons, though its client would wait."""
        self.is_over = False
        self.over: asyncio.Future[response_pb2.Response | None] = (
            asyncio.get_running_loop().create_future()
        )
        """Resolved with the final response when the turn is over, with None when refused."""
        self._leases: Leases | None = None
        self._renderer: Renderer | None = None
        self._first: Rendered | None = None
        self._rendered: Rendered | None = None
        self._news: asyncio.Future[None] | None = None
        """Resolved by `wake`; None while nobody waits for it."""

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
        """Whether it has a response; `response.created` is queued then, or about to be."""
        return self._assembler is not None

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
    def is_first_round(self) -> bool:
        """Whether nothing was appended yet."""
        return self._rendered is self._first

    @property
    def input_tokens(self) -> int:
        """Tokens of the newest prompt that the response did not sample itself; after `begin`."""
        rendered, first = self._rendered, self._first
        assert rendered is not None and first is not None
        if rendered is first:  # and nothing was sampled before
            return len(first.prompt.ids)
        given = len(rendered.prompt.ids) - self.sampled_before
        return max(given, len(first.prompt.ids))  # a template may drop what was sampled

    @property
    def output_tokens(self) -> int:
        """Tokens that the response sampled."""
        return self.sampled_before + len(self.sampled)

    def begin(
        self, response: response_pb2.Response, checked: CheckedCreate, rendered: Rendered
    ) -> None:
        """Begin the response, whose prompt is `rendered`; `announce` it before anything waits."""
        checked.model.leases.take()
        self._leases = checked.model.leases
        self._renderer, self.given = checked.model.renderer, checked.items
        self._said += checked.items
        self.model_name = checked.model.name
        self._first = self._rendered = self.whole_prompt = rendered
        self._assembler = ResponseAssembler(
            response,
            stream_id=self.turn.lane,
            new_id=self.services.new_id,
            seal_reasoning=self.services.seal_reasoning if checked.wants_sealed_reasoning else None,
            summarizes_reasoning=self.services.settings.compat.reasoning_events == "summary",
        )
        self.turn.begin(takes_steers=checked.takes_steers)

    def announce(self) -> None:
        """Queue the first events of the response; the first token may be there to go with them."""
        self.last_event_at = self.services.clock.monotonic()
        self.outlet.send_all(self.assembler.begin(), at_once=False)

    def compacted(self, rendered: Rendered, *, is_read: bool) -> None:
        """Let the response go on behind its compaction.

        Args:
            rendered: The prompt that stands in the place of the one it began with.
            is_read: Whether an engine will read it; else its tokens do not count.
        """
        self.unread_tokens = 0 if is_read else len(rendered.prompt.ids)
        self._first = self._rendered = rendered
        self.whole_prompt = replace(
            rendered, rendered_tokens=self.whole_prompt.rendered_tokens + rendered.rendered_tokens
        )

    def go_on(self, rendered: Rendered, items: tuple[item_pb2.Item, ...]) -> None:
        """Let the response go on behind `items`, which were appended; its prompt is `rendered`."""
        self._say_output()
        self._said += items
        self.assembler.resume()
        self.given += items
        self.sampled_before += len(self.sampled)
        self.sampled = array("I")
        self.is_exact = True
        self._rendered = rendered
        self.whole_prompt = replace(
            self.whole_prompt,
            prompt=rendered.prompt,
            rendered_tokens=self.whole_prompt.rendered_tokens + rendered.rendered_tokens,
            rerender_reason=self.whole_prompt.rerender_reason or rendered.rerender_reason,
        )

    def said(self) -> Sequence[item_pb2.Item]:
        """Return input and output so far, in order: each round's output behind its input."""
        self._say_output()
        return self._said

    def _say_output(self) -> None:
        output = self.assembler.response.output
        self._said += output[self._said_output :]
        self._said_output = len(output)

    def start(self, generation: Generation) -> None:
        """Take the generation; a turn that was cancelled meanwhile cancels it at once."""
        self._generation = generation
        if self.turn.is_cancelled:
            generation.cancel()

    def stop(self) -> None:
        """End the engine's and the screen's work: nobody wants it any more. Idempotent."""
        self.stop_engine()
        if self.screening is not None:
            self.screening.stop()
        self.wake()

    def wake(self) -> None:
        """Let the turn look whether it must wait any longer."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def woken(self) -> None:
        """Wait for `wake`."""
        self._news = asyncio.get_running_loop().create_future()
        await self._news

    def refuse(self, rejection: Rejection) -> None:
        """End the turn by its refusal, an `error` event mostly: nothing began."""
        self.end(no_outcome, refusal_events(self.turn, rejection))

    def end(self, outcome: Outcome, events: Sequence[Outgoing]) -> None:
        """End the turn.

        Args:
            outcome: Returns what continues it, None when it failed.
            events: The last events; the last of them is the terminal event, if it has begun.
        """
        self.is_over = True
        is_alone = self.is_alone
        last = events[-1] if events else None
        assert not isinstance(last, Delta)  # a turn does not end in the middle of a text
        try:
            # Its client waits for nothing but this: what else the end brings comes after it. A
            # create that follows the terminal event is not read before this call is over.
            self.outlet.send_all(events, at_once=is_alone)
        finally:  # a lane must not stand still for an event that cannot be encoded
            self.session.end_turn(self.turn, outcome(), last)
            self._release()
            if not self.over.done():  # whoever waited for it may have cancelled it
                self.over.set_result(self._assembler.response if self._assembler else None)
            self._on_over(self)

    def abandon(self) -> None:
        """Note that the turn will never end by itself: its task was cancelled."""
        self.is_over = True
        self._release()
        if not self.over.done():
            self.over.set_result(None)
        self._on_over(self)

    def _release(self) -> None:
        if self._leases is not None:
            self._leases.give_back()
            self._leases = None
        if self.record is not None:
            self.services.conversations.release(self.record)

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
