"""Commit: how a turn ends, what is kept of it, and its usage record."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from turnwire.v1 import error_pb2, response_pb2
from turnwire_server.ports.conversations import ConversationConflict
from turnwire_server.ports.engine import FinishReason
from turnwire_server.ports.ledger import UsageRecord
from turnwire_server.ports.renderer import CountsReasoning, Rendered
from turnwire_server.runtime.keeping import (
    Outcome,
    keep_failed,
    no_outcome,
    status_of,
    stored_response,
)
from turnwire_server.runtime.reports import log_bug
from turnwire_server.runtime.run import TurnRun, terminal_response
from turnwire_server.runtime.validate import CheckedCreate
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.errors import error_code
from turnwire_server.session.events import Outgoing
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.responses import usage_of

__all__ = [
    "FLAGGED",
    "abandon",
    "commit",
    "conversation_of",
    "end",
    "note_progress",
    "prompt_of",
    "usage",
]

_log = logging.getLogger("turnwire.runtime")

_NOT_KEPT = "The server could not keep the response."
_CHANGED = "The conversation was changed while the response ran: nothing was added to it."
FLAGGED = "The input was refused by a safety check."
"""What a client is told when the screen does not say it better."""
_INTERRUPTED = "The server was stopped while it worked on the response."
_REPEATED = "The model said the same over and over; its engine ended the answer."
_SLOW = "The client did not read the events of this turn fast enough."


async def commit(
    run: TurnRun, checked: CheckedCreate, rendered: Rendered, finish: FinishReason
) -> None:
    """End a turn whose generation is over: keep it, then send the terminal event."""
    events = _terminal(run, checked, finish)
    response, settings = run.assembler.response, checked.settings
    if settings.is_stored:
        # From here on it may be fetched, also if we die before it is settled.
        note_progress(run, response.usage)
    outcome: Outcome = no_outcome
    is_continuable = response.status != response_pb2.RESPONSE_STATUS_FAILED
    if is_continuable and not settings.is_stored and run.record is None:
        # Only its own session will ask for it, and not before the terminal event has left.
        outcome = partial(_continuation, run, checked, rendered, finish)
    elif is_continuable:
        try:
            kept = await _keep(run, checked, rendered, finish)
            outcome = partial(_itself, kept)
        except ConversationConflict:  # another server process was faster
            code = error_code(error_pb2.ERROR_REASON_CONVERSATION_LOCKED)
            events[-1] = run.assembler.fail_instead(code, _CHANGED)
        except Exception as bug:  # whatever keeps it from being kept: its client must hear of it
            log_bug(_log, f"commit failed {run.log_ids}", bug)
            code = error_code(error_pb2.ERROR_REASON_SERVER_ERROR)
            events[-1] = run.assembler.fail_instead(code, _NOT_KEPT)
    if response.status == response_pb2.RESPONSE_STATUS_FAILED:
        await keep_failed(run)
    run.stages.mark("commit")
    if settings.wants_timing:
        shown = terminal_response(events[-1])
        assert shown is not None  # the last event is terminal
        run.stages.write(
            shown.turnwire.timing,
            run.whole_prompt,
            cached=run.cached_tokens,
            output=run.output_tokens,
            own=0 if run.is_first_round else len(rendered.prompt.ids) - run.input_tokens,
        )
    end(run, outcome, events)


def end(run: TurnRun, outcome: Outcome, events: Sequence[Outgoing]) -> None:
    """End a turn that has begun; its usage is settled before its last events leave.

    Args:
        run: The turn, whose response is as its client will see it.
        outcome: Returns what continues it.
        events: The last events; the last of them is the terminal event.
    """
    response = run.assembler.response
    record = run.settled = _usage_record(run, response, status_of(response), response.usage)
    run.services.ledger.settle(record)
    try:
        run.end(outcome, events)
    finally:
        _close_later(run, record)


def abandon(run: TurnRun) -> None:
    """Settle the usage of a turn that was cut off before its end: nobody will see one."""
    if run.has_begun and not run.is_over:
        record = _usage_record(run, run.assembler.response, "cancelled", usage(run))
        run.services.ledger.settle(record)
        _close_later(run, record)


def note_progress(run: TurnRun, used: response_pb2.Usage) -> None:
    """Note what a turn used until now, before its client is told so."""
    response = run.assembler.response
    run.services.ledger.progress(_usage_record(run, response, "in_progress", used))


async def _keep(
    run: TurnRun, checked: CheckedCreate, rendered: Rendered, finish: FinishReason
) -> CachedResponse:
    """Return what continues the turn; it is in the store if it shall outlive the session."""
    services, turn, response = run.services, run.turn, run.assembler.response
    outcome = _cached(run, checked, rendered, finish)
    prompt, conversation = outcome.prompt, outcome.conversation
    if checked.is_stored:
        await services.store.put(stored_response(run, response, conversation, prompt))
    if run.record is not None:
        try:
            await services.conversations.add(run.record, run.said(), conversation, prompt)
        except Exception:
            if checked.is_stored:  # its client hears that it failed
                await services.store.delete(turn.response_id, tenant=run.tenant)
            raise
    return outcome


def _itself(kept: CachedResponse) -> CachedResponse:
    return kept


def _continuation(
    run: TurnRun, checked: CheckedCreate, rendered: Rendered, finish: FinishReason
) -> CachedResponse | None:
    """Return what continues a turn whose client was told of its end already."""
    try:
        return _cached(run, checked, rendered, finish)
    except Exception as bug:  # its lane must go on; what continues the turn will not find it
        log_bug(_log, f"not cached {run.log_ids}", bug)
        return None


def _cached(
    run: TurnRun, checked: CheckedCreate, rendered: Rendered, finish: FinishReason
) -> CachedResponse:
    return CachedResponse(
        response_id=run.turn.response_id,
        conversation=conversation_of(run, checked),
        prompt=prompt_of(run, checked, rendered, finish),
        lane=run.turn.lane,
        warm_up=checked.is_warm_up,
    )


def prompt_of(
    run: TurnRun, checked: CheckedCreate, rendered: Rendered, finish: FinishReason
) -> Prompt | None:
    """Return the ids of everything so far, None where they are not what was said.

    A refusal is not what the engine has seen, and a turn that was cut off may have sampled more
    than it said: what follows is rendered afresh.
    """
    if run.is_refused or not run.is_exact:
        return None
    if checked.is_warm_up or (checked.is_compaction and finish == "stop"):
        return rendered.prompt  # it opens no answer, so there is none to close
    return checked.model.renderer.sampled(rendered, run.sampled, finish)


def conversation_of(run: TurnRun, checked: CheckedCreate) -> Conversation:
    """Return the conversation with the output since the newest input."""
    return _screened(run, checked).extended(run.assembler.round_output)


def _screened(run: TurnRun, checked: CheckedCreate) -> Conversation:
    """Return the turn's conversation with what the screen must see again."""
    conversation = checked.conversation
    if run.verdict is not None:
        return replace(conversation, screen_state=run.verdict.state, unscreened=())
    if run.screening is None:
        return conversation
    # Cancelled before the verdict: what continues it must not carry the input past the screen.
    return conversation.to_be_screened(checked.items)


def usage(run: TurnRun) -> response_pb2.Usage:
    """Return what the turn used so far."""
    output_tokens, spent = run.output_tokens, run.spent
    reasoning_tokens = _reasoning_tokens(run, output_tokens) if run.reasoning else 0
    return usage_of(
        input_tokens=run.input_tokens - run.unread_tokens + spent.input_tokens,
        cached_tokens=run.cached_tokens + spent.cached_tokens,
        output_tokens=output_tokens + spent.output_tokens,
        reasoning_tokens=reasoning_tokens + spent.reasoning_tokens,
    )


def _reasoning_tokens(run: TurnRun, output_tokens: int) -> int:
    """Return how many of the sampled ids were reasoning; an estimate where no parser counts."""
    counts = [each.reasoning_tokens for each in run.parsers if isinstance(each, CountsReasoning)]
    count = sum(counts) if counts else run.renderer.count("".join(run.reasoning))
    return min(count, output_tokens)


def _close_later(run: TurnRun, record: UsageRecord) -> None:
    """Let a settled record be closed, after everything else."""
    close = partial(run.services.ledger.close_record, record)
    run.services.afterwork.soon(close, response_id=run.turn.response_id)


def _terminal(run: TurnRun, checked: CheckedCreate, finish: FinishReason) -> list[Outgoing]:
    """Return the last events, the terminal one included."""
    assembler, used, now = run.assembler, usage(run), run.services.clock.wall()
    if run.verdict is not None and not run.verdict.allowed:
        refusal = run.verdict.refusal or FLAGGED
        if run.is_refused:
            return assembler.refuse(refusal, used, completed_at=now)
        return assembler.fail(error_code(error_pb2.ERROR_REASON_INVALID_PROMPT), refusal, used)
    if run.turn.is_cancelled:
        if not run.is_interrupted:
            return assembler.cancelled(used)
        return assembler.fail(error_code(error_pb2.ERROR_REASON_SERVER_ERROR), _INTERRUPTED, used)
    if run.cut_reason is not None:
        return assembler.incomplete(run.cut_reason, used)
    match finish:
        case "stop" if checked.is_warm_up or checked.is_compaction:
            return assembler.complete_warm_up(used, completed_at=now)
        case "stop":
            return assembler.complete(used, completed_at=now)
        case "repeated":
            assembler.response.warnings.add(code="repetition_stopped", message=_REPEATED)
            return assembler.complete(used, completed_at=now)
        case "length":
            return assembler.incomplete("max_output_tokens", used)
        case "overrun":
            code = error_code(error_pb2.ERROR_REASON_SLOW_CONSUMER)
            return assembler.fail(code, _SLOW, used)
        case "cancelled":  # by nobody we know: the engine gave up
            code = error_code(error_pb2.ERROR_REASON_SERVER_ERROR)
            return assembler.fail(code, "The engine stopped the generation.", used)


def _usage_record(
    run: TurnRun, response: response_pb2.Response, status: str, used: response_pb2.Usage
) -> UsageRecord:
    return UsageRecord(
        response_id=response.id,
        tenant=run.tenant,
        model=response.model,
        status=status,
        input_tokens=used.input_tokens,
        cached_tokens=used.input_tokens_details.cached_tokens,
        output_tokens=used.output_tokens,
        reasoning_tokens=used.output_tokens_details.reasoning_tokens,
        created_at=response.created_at.seconds,
        closed_at=run.services.clock.wall(),
    )
