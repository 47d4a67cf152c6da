"""Commit: how a turn ends, what is kept of it, and the usage record."""

from __future__ import annotations

from turnwire.v1 import error_pb2, response_pb2
from turnwire_server.ports.engine import FinishReason
from turnwire_server.ports.ledger import UsageRecord
from turnwire_server.ports.renderer import Rendered
from turnwire_server.ports.store import StoredResponse
from turnwire_server.runtime.run import TurnRun, terminal_response
from turnwire_server.runtime.validate import CheckedCreate
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.errors import error_code
from turnwire_server.session.events import Outgoing
from turnwire_server.session.responses import usage_of

__all__ = ["commit"]

_FLAGGED = "The input was refused by a safety check."
_SLOW = "The client did not read the events of this turn fast enough."


async def commit(
    run: TurnRun, checked: CheckedCreate, rendered: Rendered, finish: FinishReason
) -> None:
    """End a turn whose generation is over: keep it, then send the terminal event."""
    services, turn = run.services, run.turn
    usage = usage_of(
        input_tokens=len(rendered.prompt.ids),
        cached_tokens=run.cached_tokens,
        output_tokens=len(run.sampled),
    )
    events = _terminal(run, checked, finish, usage)
    response = run.assembler.response
    failed = response.status == response_pb2.RESPONSE_STATUS_FAILED
    outcome = None
    if not failed:
        prompt = checked.model.renderer.sampled(rendered, run.sampled, finish)
        outcome = CachedResponse(
            response_id=turn.response_id,
            conversation=checked.conversation.extended(response.output),
            prompt=prompt,
            lane=turn.lane,
            warm_up=checked.is_warm_up,
        )
        if checked.is_stored:
            await services.store.put(
                StoredResponse(
                    response_id=turn.response_id,
                    tenant=run.tenant,
                    response=response.SerializeToString(),
                    input_items=tuple(item.SerializeToString() for item in checked.items),
                    conversation=outcome.conversation,
                    prompt=prompt,
                    created_at=response.created_at.seconds,
                    expires_at=services.clock.wall() + services.settings.response_ttl_s,
                )
            )
    run.stages.mark("commit")
    if checked.wants_timing:
        timing = run.stages.timing(rendered, cached=run.cached_tokens, output=len(run.sampled))
        shown = terminal_response(events[-1])
        assert shown is not None  # the last event is terminal
        shown.turnwire.timing.CopyFrom(timing)
    run.end(outcome, events)
    record = _usage_record(run, response)
    services.afterwork.add(
        lambda: services.ledger.close_record(record), response_id=turn.response_id
    )


def _terminal(
    run: TurnRun, checked: CheckedCreate, finish: FinishReason, usage: response_pb2.Usage
) -> list[Outgoing]:
    """Return the last events, the terminal one included."""
    assembler, now = run.assembler, run.services.clock.wall()
    if run.flagged is not None:
        code = error_code(error_pb2.ERROR_REASON_INVALID_PROMPT)
        return assembler.fail(code, run.flagged.refusal or _FLAGGED, usage)
    if run.turn.is_cancelled:
        return assembler.cancelled(usage)
    match finish:
        case "stop" if checked.is_warm_up:
            return assembler.complete_warm_up(usage, completed_at=now)
        case "stop":
            return assembler.complete(usage, completed_at=now)
        case "length":
            return assembler.incomplete("max_output_tokens", usage)
        case "overrun":
            code = error_code(error_pb2.ERROR_REASON_SLOW_CONSUMER)
            return assembler.fail(code, _SLOW, usage)
        case "cancelled":  # by nobody we know: the engine gave up
            code = error_code(error_pb2.ERROR_REASON_SERVER_ERROR)
            return assembler.fail(code, "The engine stopped the generation.", usage)


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
