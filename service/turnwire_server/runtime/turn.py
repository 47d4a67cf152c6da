"""The story of a turn, top to bottom. Read this first.

resolve the parent      lane head -> connection cache -> store -> previous_response_not_found
and item references     parent -> connection -> stores -> item_not_found
validate and extend     only what is new; tools and settings are known by fingerprint
render                  ids so far + the new items; nothing is rendered twice
compact                 if it is due: the model sums up what is there, and goes on from that
screen beside prefill   no output leaves before the verdict
generate                ids -> detokenizer and parser -> assembler -> events
in a rollout            pause for the outputs of calls; render, screen and generate once more
commit                  kept in the store before the terminal event leaves, cached right behind it
after work              usage, metrics, an audit now and then; never delays the next turn
"""

from __future__ import annotations

import asyncio
import logging

from turnwire.v1 import error_pb2
from turnwire.v1.response_pb2 import Response
from turnwire_server.ports.engine import EngineFailure, FinishReason
from turnwire_server.ports.renderer import OutputParser
from turnwire_server.ports.screen import ScreenFailure
from turnwire_server.runtime.commit import abandon, commit, end, note_progress, usage
from turnwire_server.runtime.compaction import compact, plan_compaction
from turnwire_server.runtime.keeping import keep_begun, keep_failed, no_outcome
from turnwire_server.runtime.prepare import prepare
from turnwire_server.runtime.reports import log_bug
from turnwire_server.runtime.requests import begin_generation, begin_screening, hear_verdict
from turnwire_server.runtime.resolve import resolve_parent, resolve_references
from turnwire_server.runtime.rollout import next_round
from turnwire_server.runtime.run import TurnRun
from turnwire_server.runtime.validate import CheckedCreate
from turnwire_server.session.errors import Rejection, error_code
from turnwire_server.session.responses import new_response

__all__ = ["run_turn"]

_log = logging.getLogger("turnwire.runtime")

_BROKEN = "The server had an error while processing your request."


async def run_turn(run: TurnRun) -> None:
    """Run one turn: from its create to exactly one terminal event, whatever happens."""
    try:
        try:
            await _story(run)
        except ScreenFailure as failure:
            _log.error("screen failed error=%s %s", failure, run.log_ids)
            await _end_broken(run)
        except EngineFailure as failure:
            _log.error("engine failed error=%s %s", failure, run.log_ids)
            await _end_broken(run)
        except Exception as bug:  # outermost frame: the client must get its terminal event
            log_bug(_log, f"turn failed {run.log_ids}", bug)
            await _end_broken(run)
    except asyncio.CancelledError:  # also while it ends what broke
        abandon(run)
        raise


async def _story(run: TurnRun) -> None:
    turn, services, stages = run.turn, run.services, run.stages

    parent = await resolve_parent(turn, services.store, services.conversations, run.tenant)
    if isinstance(parent, Rejection):
        stages.mark("resolve")
        return run.refuse(parent)
    run.record = parent.record
    find_item = await resolve_references(
        turn.create.input,
        lambda item_id: parent.conversation.find_item(item_id) or run.session.find_item(item_id),
        services.store,
        services.conversations,
        run.tenant,
    )
    stages.mark("resolve")

    checked = services.validator.check(
        turn.create,
        parent,
        find_item=find_item,
        stream_id=turn.lane,
        is_persistent=run.is_persistent,
        is_warm_up=turn.is_warm_up,
        before=turn.steered_items,
    )
    stages.mark("validate")
    if isinstance(checked, Rejection):
        return run.refuse(checked)

    ready = prepare(checked, parent, wire_bytes=turn.size)
    if isinstance(ready, Rejection):
        return run.refuse(ready)
    compaction = plan_compaction(ready, services.settings.compaction)
    if isinstance(compaction, Rejection):
        return run.refuse(compaction)
    stages.mark("render")
    checked, request, rendered = ready.checked, ready.request, ready.rendered

    response: Response | None = None
    if run.keeping is not None:
        response = _response(run, checked)
        if (refusal := await keep_begun(run, response, checked)) is not None:
            return run.refuse(refusal)
        if run.is_kept:
            stages.mark("commit")
    parser: OutputParser | None = None
    try:
        begin_screening(run, checked, instructions=turn.create.instructions)
        if compaction is None:  # the engine goes first: what follows happens beside it
            parser = begin_generation(run, checked, rendered, request)
    finally:
        run.begin(response or _response(run, checked), checked, rendered)
        run.announce()
        services.ledger.open(turn.response_id, run.tenant, turn.create.model, services.clock.wall())

    finish: FinishReason | None = None
    if compaction is not None:
        checked, request, rendered, finish = await compact(run, compaction)
    if finish is None:
        parser = parser or begin_generation(run, checked, rendered, request)
        finish = await _generate(run, parser)

    while turn.create.rollout and (following := await next_round(run, checked, rendered, finish)):
        checked, rendered, request = following  # its calls were answered
        begin_screening(run, checked, instructions="")
        finish = await _generate(run, begin_generation(run, checked, rendered, request))

    await commit(run, checked, rendered, finish)
    services.auditor.consider(
        checked.model.renderer,
        request,
        rendered.prompt,
        model=checked.model.name,
        response_id=turn.response_id,
        log_ids=run.log_ids,
    )


def _response(run: TurnRun, checked: CheckedCreate) -> Response:
    """Return the response as it is when it begins."""
    turn = run.turn
    return new_response(
        turn.create,
        response_id=turn.response_id,
        created_at=run.services.clock.wall(),
        settings=checked.shown_settings,
        warnings=checked.warnings,
        event_id=turn.event_id,
    )


async def _generate(run: TurnRun, parser: OutputParser) -> FinishReason:
    """Send what the model says; return why it stopped."""
    finish: FinishReason = "cancelled"
    is_cleared: bool | None = None
    async for step in run.generation:
        has_room = True
        if is_cleared is None:
            run.stages.mark("prefill")
            if run.is_first_round:
                run.cached_tokens = step.cached_tokens or 0
            await hear_verdict(run)
            is_cleared = run.is_cleared
            if is_cleared:  # most tokens go from the engine to `hear` while this task sleeps
                run.generation.listen(run.hear)
        elif not step.ids and step.finish is None:
            has_room = False
        if step.ids and parser.ending is None and is_cleared and run.cut_reason is None:
            has_room = run.hear(step.ids, is_last=step.finish is not None)
        if not has_room:
            await run.outlet.drain()
        if step.finish is not None:
            finish = step.finish
            break  # An engine may take its time to close its stream.
    if parser.done:
        if finish != "stop" and parser.ending is None:
            run.is_exact = False  # cut amid the markup that closes its last call
        finish = "stop"
    if run.is_cleared and run.cut_reason is None and (rest := parser.finish(finish)):
        run.say(rest, is_last=True)
    run.stages.mark("decode")
    return finish


async def _end_broken(run: TurnRun) -> None:
    """End a turn that broke: before `response.created` by an error event, else by failing it."""
    if run.is_over:
        return
    run.stop()
    if run.has_begun:
        code = error_code(error_pb2.ERROR_REASON_SERVER_ERROR)
        used = usage(run)
        events = run.assembler.fail(code, _BROKEN, used)
        if run.is_kept:
            note_progress(run, used)
        await keep_failed(run)
        end(run, no_outcome, events)
    else:
        run.refuse(Rejection(error_pb2.ERROR_REASON_SERVER_ERROR, _BROKEN))
