"""Compaction: the model sums its conversation up, and goes on from the sealed summary.

Three ways lead here: a create whose prompt has grown beyond its threshold, a create whose input
ends with a `compaction_trigger`, and the call `compact`. `docs/items.md` has the instruction and
the form in which a model sees a summary.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from turnwire.v1 import content_pb2, error_pb2, item_pb2
from turnwire_server.ports.engine import (
    EngineRequest,
    FinishReason,
    Generation,
    Sampling,
    TurnOutline,
)
from turnwire_server.ports.renderer import (
    CountsReasoning,
    OutputParser,
    Rendered,
    RenderRequest,
)
from turnwire_server.runtime.prepare import Ready, render
from turnwire_server.runtime.requests import hear_verdict
from turnwire_server.runtime.spent import Spent
from turnwire_server.session.conversation import Conversation, item_text
from turnwire_server.session.errors import Rejection
from turnwire_server.session.output import TextDelta
from turnwire_server.session.presence import number
from turnwire_server.session.sealed import Compacted
from turnwire_server.session.tools import NO_TOOLS

if TYPE_CHECKING:
    from turnwire_server.runtime.run import TurnRun
    from turnwire_server.runtime.services import Services
    from turnwire_server.runtime.settings import CompactionSettings
    from turnwire_server.runtime.validate import CheckedCreate

__all__ = [
    "INSTRUCTION",
    "CompactedTurn",
    "CompactionFailure",
    "CompactionPlan",
    "compact",
    "latest_request",
    "plan_compaction",
    "plan_summary",
    "write_summary",
]

INSTRUCTION: Final = (
    "The conversation above is about to be replaced by a summary, from which you will go on "
    "without it. Write that summary now. Keep what is needed to finish the work: the user's goals "
    "and constraints, decisions and their reasons, what was done with which result, exact names, "
    "paths, identifiers and values, what is still open, and the next step. Leave out what is no "
    "longer needed. Call no tool and answer nothing: write the summary only."
)
"""What the model is asked, as a message of the user behind the conversation."""


class CompactionFailure(Exception):
    """The model wrote no summary. `str()` is for the log."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """A summary that is to be written."""

    ready: Ready
    """The turn as it is without a compaction."""
    request: RenderRequest
    """The conversation and the instruction."""
    rendered: Rendered
    max_tokens: int
    """Bound on the summary."""
    allowance: int | None = None
    """Tokens of conversation that the threshold leaves to the turns that follow; None for any."""

    @property
    def checked(self) -> CheckedCreate:
        """The turn's create."""
        return self.ready.checked

    @property
    def is_all(self) -> bool:
        """Whether the turn does nothing else."""
        return self.checked.is_compaction

    def engine_request(self, request_id: str, session_hint: str, max_pending: int) -> EngineRequest:
        """Return what the engine gets."""
        create = self.checked.create
        return EngineRequest(
            request_id=request_id,
            ids=self.rendered.prompt.ids,
            sampling=Sampling(
                max_tokens=self.max_tokens,
                temperature=number(create, "temperature"),
                top_p=number(create, "top_p"),
            ),
            stop_ids=self.checked.model.renderer.stop_ids,
            session_hint=session_hint,
            max_pending_tokens=max_pending,
            outline=TurnOutline(
                tool_choice="none",
                last_user_text=self.checked.conversation.last_user_text,
                task="summary",
            ),
        )

    def parser(self) -> OutputParser:
        """Return a parser of the summary, which knows no tools."""
        request = replace(self.request, tools=NO_TOOLS)
        return self.checked.model.renderer.parser(request, self.rendered)


class CompactedTurn(NamedTuple):
    """How a turn goes on after its compaction."""

    checked: CheckedCreate
    request: RenderRequest
    rendered: Rendered
    finish: FinishReason | None = None
    """Not None when nothing is left to generate."""


@dataclass(slots=True)
class _Reader:
    """Reads what a model says of its conversation."""

    parser: OutputParser
    texts: list[str] = field(default_factory=list)
    output_tokens: int = 0

    def feed(self, ids: Sequence[int]) -> None:
        self.output_tokens += len(ids)
        self._take(self.parser.feed(ids))

    def finish(self, reason: FinishReason) -> str:
        self._take(self.parser.finish(reason))
        return "".join(self.texts).strip()

    def _take(self, pieces: Sequence[object]) -> None:
        self.texts += [piece.text for piece in pieces if isinstance(piece, TextDelta)]


def plan_compaction(
    ready: Ready, settings: CompactionSettings
) -> CompactionPlan | Rejection | None:
    """Return the compaction that a turn needs before it goes on, None when it needs none."""
    checked = ready.checked
    threshold, prompt = checked.compact_threshold, len(ready.rendered.prompt.ids)
    if checked.is_compaction and threshold is None:
        return plan_summary(ready, settings)
    if threshold is None or checked.is_warm_up:
        return None
    if prompt < threshold and not checked.is_compaction:
        return None
    head = _head_tokens(ready)
    allowance = _allowance(threshold, head, checked.model.engine.info.context_length)
    if prompt - head < allowance and not checked.is_compaction:
        return None
    return plan_summary(ready, settings, allowance=allowance)


def _head_tokens(ready: Ready) -> int:
    """Return the tokens of the prompt that no compaction removes: instructions and tools."""
    content = content_pb2.Content(text=".")  # some templates take no prompt without a message
    message = item_pb2.Item(message=item_pb2.MessageItem(role="user", content=content))
    head = replace(
        ready.request,
        new_items=[message],
        history=list,
        previous=None,
        force=None,
        text_format=None,
        generate=False,
    )
    rendered = render(ready.checked, head)
    return 0 if isinstance(rendered, Rejection) else len(rendered.prompt.ids)


def _allowance(threshold: int, head: int, context: int) -> int:
    """Return how many tokens of conversation call for a compaction.

    What the head leaves of the threshold; a head that leaves little would have it compact at
    every turn, so it is half of the threshold then, where the context has room for that.
    """
    return max(threshold - head, min(threshold // 2, (context - head) // 2))


def plan_summary(
    ready: Ready, settings: CompactionSettings, *, allowance: int | None = None
) -> CompactionPlan | Rejection:
    """Return how a conversation is summed up; refuse one that leaves no room for it.

    The head, tools included, stays as it is, so that the engine finds the conversation in its
    prefix cache. A summary has at most half of `allowance`, see `CompactionPlan`.
    """
    checked = ready.checked
    part = content_pb2.ContentPart(input_text=content_pb2.InputText(text=INSTRUCTION))
    content = content_pb2.Content(parts=content_pb2.ContentPartList(parts=[part]))
    asked = item_pb2.Item(message=item_pb2.MessageItem(role="user", content=content))
    request = replace(
        ready.request,
        new_items=[*ready.request.new_items, asked],
        force=None,
        text_format=None,
        generate=True,
    )
    rendered = render(checked, request)
    if isinstance(rendered, Rejection):
        return rendered
    context = checked.model.engine.info.context_length
    room = context - len(rendered.prompt.ids)
    if room < 1:
        return Rejection(
            error_pb2.ERROR_REASON_CONTEXT_LENGTH_EXCEEDED,
            f"The conversation leaves no room for its summary in the context of {context} tokens.",
            param="input",
        )
    most = min(room, settings.max_summary_tokens)
    if allowance is not None:
        most = min(most, max(allowance // 2, 1))
    return CompactionPlan(ready, request, rendered, most, allowance)


async def write_summary(
    generation: Generation,
    plan: CompactionPlan,
    spent: Spent,
    *,
    may_go_on: Callable[[], Awaitable[bool]],
) -> str | None:
    """Let the model write the summary.

    Args:
        generation: The generation of `plan`.
        plan: What is to be written.
        spent: Where its tokens are counted.
        may_go_on: Awaited once, when prefill is over; false ends the generation.

    Returns:
        The summary; None when the generation was cancelled.

    Raises:
        CompactionFailure: The model wrote nothing.
    """
    reader = _Reader(plan.parser())
    spent.input_tokens += len(plan.rendered.prompt.ids)
    finish: FinishReason = "cancelled"
    is_cleared = False
    try:
        async for step in generation:
            if step.cached_tokens is not None:
                spent.cached_tokens += step.cached_tokens
            if not is_cleared:
                is_cleared = await may_go_on()
                if not is_cleared:
                    return None
            if step.ids and not reader.parser.done:
                reader.feed(step.ids)
                if reader.parser.done:
                    generation.cancel()
            if step.finish is not None:
                finish = step.finish
                break
        if reader.parser.done:
            finish = "stop"
        if finish in ("cancelled", "overrun"):
            return None
        summary = reader.finish(finish)
    finally:
        generation.cancel()
        spent.output_tokens += reader.output_tokens
        if isinstance(reader.parser, CountsReasoning):
            spent.reasoning_tokens += reader.parser.reasoning_tokens
    if not summary:
        raise CompactionFailure("the model wrote no summary")
    return summary


def latest_request(conversation: Conversation, limit: int) -> str:
    """Return the text of the last user message, cut to `limit` characters; "" when it is gone."""
    for item in reversed(conversation.items()):
        if item.WhichOneof("item") == "message" and item.message.role == "user":
            text = item_text(item.message.content)
            return text if len(text) <= limit else f"{text[:limit]}…"
    return ""


def _kept_request(plan: CompactionPlan, limit: int) -> str:
    """Return what is kept of the latest request: with a threshold, a quarter of the allowance.

    What is kept must not call for the next compaction.
    """
    if plan.allowance is None:
        return latest_request(plan.checked.conversation, limit)
    tokens, text = plan.allowance // 4, latest_request(plan.checked.conversation, limit)
    while (used := plan.checked.model.renderer.count(text)) > tokens and limit:
        limit = min(limit, len(text)) * tokens // used
        text = latest_request(plan.checked.conversation, limit)
    return text


async def compact(run: TurnRun, plan: CompactionPlan) -> CompactedTurn:
    """Compact the conversation of a turn that has begun, and say how it goes on.

    A turn that is cancelled or refused meanwhile ends with the conversation as it was.

    Raises:
        CompactionFailure: The model wrote no summary.
    """
    services, checked = run.services, plan.checked

    async def may_go_on() -> bool:
        run.stages.mark("prefill")
        await hear_verdict(run)
        return run.is_cleared and not run.turn.is_cancelled

    request = plan.engine_request(
        f"{run.turn.response_id}-summary", run.session.id, services.settings.max_pending_tokens
    )
    run.unread_tokens = run.input_tokens  # unless the turn goes on from the summary
    run.start(checked.model.engine.generate(request))
    summary = await write_summary(run.generation, plan, run.spent, may_go_on=may_go_on)
    run.stages.mark("decode")
    if summary is None or run.turn.is_cancelled:
        ready = plan.ready
        return CompactedTurn(ready.checked, ready.request, ready.rendered, "cancelled")
    request_text = _kept_request(plan, services.settings.compaction.max_request_chars)
    compacted = Compacted(summary, request_text, covers=not plan.is_all)
    run.send(run.assembler.add_compaction(services.seal_compaction(compacted)))
    if checked.conversation.configuration:
        run.send(run.assembler.add_whole(_configuration(checked, services)))
    turn = _goes_on(plan, list(run.assembler.response.output))
    run.compacted(turn.rendered, is_read=turn.finish is None)
    run.stages.mark("render")
    return turn


def _configuration(checked: CheckedCreate, services: Services) -> item_pb2.Item:
    """Return a fresh item with the configuration in effect, for clients that drop the others."""
    update = item_pb2.ConfigurationUpdateItem.FromString(checked.conversation.configuration)
    update.id = services.new_id("cfg_")
    return item_pb2.Item(configuration_update=update)


def _goes_on(plan: CompactionPlan, output: Sequence[item_pb2.Item]) -> CompactedTurn:
    """Return the turn behind its compaction: the summary stands in the place of everything."""
    checked = plan.checked
    request = replace(
        plan.request,
        new_items=checked.shown(output),
        history=list,
        previous=None,
        force=None if plan.is_all else checked.force,
        text_format=None if plan.is_all else checked.text_format,
        generate=not plan.is_all,
    )
    rendered = checked.model.renderer.render(request)
    return CompactedTurn(
        replace(
            checked,
            conversation=checked.conversation.replaced_by(output),
            covered=None,
            compact_threshold=None,
        ),
        request,
        replace(rendered, rerender_reason="compaction"),
        "stop" if plan.is_all else None,
    )
