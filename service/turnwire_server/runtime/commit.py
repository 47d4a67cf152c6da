"""Commit: how a turn ends, what is kept of it, and the usage record."""

from __future__ import annotations

import logging
from dataclasses import replace

from turnwire.v1 import error_pb2, response_pb2
from turnwire_server.ports.engine import FinishReason
from turnwire_server.ports.ledger import UsageRecord
from turnwire_server.ports.renderer import Rendered
from turnwire_server.ports.store import StoredResponse
from turnwire_server.runtime.run import TurnRun, terminal_response
from turnwire_server.runtime.validate import CheckedCreate
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.errors import error_code
from turnwire_server.session.events import Outgoing
from turnwire_server.session.responses import usage_of

__all__ = ["close_record", "commit", "usage"]

_log = logging.getLogger("turnwire.runtime")

_NOT_KEPT = "The server could not keep the response."
_FLAGGED = "The input was refused by a safety check."
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
        except Exception:  # whatever keeps it from being kept: its client must hear of it
            _log.exception("commit failed %s", run.log_ids)
            code = error_code(error_pb2.ERROR_REASON_SERVER_ERROR)
            events[-1] = run.assembler.fail_instead(code, _NOT_KEPT)
    run.stages.mark("commit")
    if checked.wants_timing:
        timing = run.stages.timing(rendered, cached=run.cached_tokens, output=len(run.sampled))
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
    # A refusal is not what the engine has seen: what follows it is rendered afresh.
    prompt = (
        None if run.is_refused else checked.model.renderer.sampled(rendered, run.sampled, finish)
    )
    conversation = _screened(run, checked).extended(response.output)
    if checked.is_stored:
        await services.store.put(
            StoredResponse(
                response_id=turn.response_id,
                tenant=run.tenant,
                response=response.SerializeToString(),
                input_items=tuple(item.SerializeToString() for item in checked.items),
                conversation=conversation,
                prompt=prompt,
                created_at=response.created_at.seconds,
                expires_at=services.clock.wall() + services.settings.response_ttl_s,
            )
        )
    return CachedResponse(
        response_id=turn.response_id,
        conversation=conversation,
        prompt=prompt,
        lane=turn.lane,
        warm_up=checked.is_warm_up,
    )


def _screened(run: TurnRun, checked: CheckedCreate) -> Conversation:
    """Return the turn's conversation with what the screen must see again."""
    conversation = checked.conversation
    if run.verdict is not None:
        return replace(conversation, screen_state=run.verdict.state, unscreened=())
    if run.screening is None:
        return conversation
    # Cancelled before the verdict: what continues it must not carry the input past the screen.
    unread = tuple(item.SerializeToString() for item in checked.items)
    return replace(conversation, unscreened=conversation.unscreened + unread)


def usage(run: TurnRun) -> response_pb2.Usage:
    """Return what the turn used so far."""
    reasoning = "".join(run.reasoning)
    output_tokens = len(run.sampled)
    return usage_of(
        input_tokens=run.input_tokens,
        cached_tokens=run.cached_tokens,
        output_tokens=output_tokens,
        # Counted as text: a token may hold the end of a thought and the start of the answer.
        reasoning_tokens=min(run.renderer.count(reasoning), output_tokens) if reasoning else 0,
    )


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
        return assembler.fail(code, run.verdict.refusal or _FLAGGED, used)
    if run.turn.is_cancelled:
        return assembler.cancelled(used)
    match finish:
        case "stop" if checked.is_warm_up:
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
    return run.verdict.refusal or _FLAGGED


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
