"""Commit: how a turn ends, what is kept of it, and the usage record."""

from __future__ import annotations

import logging
from dataclasses import replace

from turnwire.v1 import error_pb2, response_pb2
from turnwire_server.ports.engine import FinishReason
from turnwire_server.ports.ledger import UsageRecord
from turnwire_server.ports.renderer import CountsReasoning, Rendered
from turnwire_server.ports.store import StoredResponse
from turnwire_server.runtime.paging import item_id
from turnwire_server.runtime.reports import log_bug
from turnwire_server.runtime.run import TurnRun, terminal_response
from turnwire_server.runtime.validate import CheckedCreate
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.errors import error_code
from turnwire_server.session.events import Outgoing
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.responses import usage_of

__all__ = ["FLAGGED", "close_record", "commit", "conversation_of", "prompt_of", "usage"]

_log = logging.getLogger("turnwire.runtime")

_NOT_KEPT = "The server could not keep the response."
FLAGGED = "The input was refused by a safety check."
"""What a client is told when the screen does not say it better."""
_SLOW = "The client did not read the events of this turn fast enough."


async def commit(
    run: TurnRun, checked: CheckedCreate, rendered: Rendered, finish: FinishReason
) -> None:
    """End a turn whose generation is over: keep it, then send the terminal event."""
    events = _terminal(run, checked, finish)
    outcome = None
    if run.assembler.response.status != response_pb2.RESPONSE_STATUS_FAILED:
        try:
            outcome = await _keep(run, checked, rendered, finish)
        except Exception as bug:  # whatever keeps it from being kept: its client must hear of it
            log_bug(_log, f"commit failed {run.log_ids}", bug)
            code = error_code(error_pb2.ERROR_REASON_SERVER_ERROR)
            events[-1] = run.assembler.fail_instead(code, _NOT_KEPT)
    run.stages.mark("commit")
    if checked.wants_timing:
        timing = run.stages.timing(
            run.whole_prompt,
            cached=run.cached_tokens,
            output=run.output_tokens,
            own=len(rendered.prompt.ids) - run.input_tokens,
        )
        shown = terminal_response(events[-1])
        assert shown is not None  # the last event is terminal
        shown.turnwire.timing.CopyFrom(timing)
    run.end(outcome, events)
    close_record(run)


async def _keep(
    run: TurnRun, checked: CheckedCreate, rendered: Rendered, finish: FinishReason
) -> CachedResponse:
    """Return what continues the turn; it is in the store if it shall outlive the session."""
    services, turn, response = run.services, run.turn, run.assembler.response
    prompt = prompt_of(run, checked, rendered, finish)
    conversation = conversation_of(run, checked)
    if checked.is_stored:
        await services.store.put(
            StoredResponse(
                response_id=turn.response_id,
                tenant=run.tenant,
                response=response.SerializeToString(),
                input_items=tuple(item.SerializeToString() for item in run.given),
                conversation=conversation,
                prompt=prompt,
                created_at=response.created_at.seconds,
                expires_at=services.clock.wall() + services.settings.response_ttl_s,
                item_ids=tuple(map(item_id, (*run.given, *response.output))),
            )
        )
    if run.record is not None:
        await services.conversations.add(run.record, run.said(), conversation, prompt)
    return CachedResponse(
        response_id=turn.response_id,
        conversation=conversation,
        prompt=prompt,
        lane=turn.lane,
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
    return usage_of(
        input_tokens=run.input_tokens - run.unread_tokens + spent.input_tokens,
        cached_tokens=run.cached_tokens + spent.cached_tokens,
        output_tokens=output_tokens + spent.output_tokens,
        reasoning_tokens=min(_reasoning_tokens(run), output_tokens) + spent.reasoning_tokens,
    )


def _reasoning_tokens(run: TurnRun) -> int:
    """Return how many of the sampled ids were reasoning; an estimate where no parser counts."""
    if not run.reasoning:
        return 0
    counts = [each.reasoning_tokens for each in run.parsers if isinstance(each, CountsReasoning)]
    return sum(counts) if counts else run.renderer.count("".join(run.reasoning))


def close_record(run: TurnRun) -> None:
    """Let the usage record of a turn that is over be closed, after everything else."""
    record = _usage_record(run, run.assembler.response)
    run.services.afterwork.add(
        lambda: run.services.ledger.close_record(record), response_id=run.turn.response_id
    )


def _terminal(run: TurnRun, checked: CheckedCreate, finish: FinishReason) -> list[Outgoing]:
    """Return the last events, the terminal one included."""
    assembler, used, now = run.assembler, usage(run), run.services.clock.wall()
    if run.is_refused:
        return assembler.refuse(_refusal(run), used, completed_at=now)
    if run.verdict is not None and not run.verdict.allowed:
        code = error_code(error_pb2.ERROR_REASON_INVALID_PROMPT)
        return assembler.fail(code, run.verdict.refusal or FLAGGED, used)
    if run.turn.is_cancelled:
        return assembler.cancelled(used)
    if run.cut_reason is not None:
        return assembler.incomplete(run.cut_reason, used)
    match finish:
        case "stop" if checked.is_warm_up or checked.is_compaction:
            return assembler.complete_warm_up(used, completed_at=now)
        case "stop":
            return assembler.complete(used, completed_at=now)
        case "length":
            return assembler.incomplete("max_output_tokens", used)
        case "overrun":
            code = error_code(error_pb2.ERROR_REASON_SLOW_CONSUMER)
            return assembler.fail(code, _SLOW, used)
        case "cancelled":  # by nobody we know: the engine gave up
            code = error_code(error_pb2.ERROR_REASON_SERVER_ERROR)
            return assembler.fail(code, "The engine stopped the generation.", used)


def _refusal(run: TurnRun) -> str:
    assert run.verdict is not None  # it refused
    return run.verdict.refusal or FLAGGED


def _usage_record(run: TurnRun, response: response_pb2.Response) -> UsageRecord:
    name = response_pb2.ResponseStatus.Name(response.status)
    return UsageRecord(
        response_id=response.id,
        tenant=run.tenant,
        model=response.model,
        status=name.removeprefix("RESPONSE_STATUS_").lower(),
        input_tokens=response.usage.input_tokens,
        cached_tokens=response.usage.input_tokens_details.cached_tokens,
        output_tokens=response.usage.output_tokens,
        reasoning_tokens=response.usage.output_tokens_details.reasoning_tokens,
        created_at=response.created_at.seconds,
    )
