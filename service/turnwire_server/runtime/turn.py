"""The story of a turn, top to bottom. Read this first.

resolve the parent      lane head -> connection cache -> store -> previous_response_not_found
validate and extend     only what is new; tools and settings are known by fingerprint
render                  ids so far + the new items; nothing is rendered twice
screen beside prefill   no output leaves before the verdict
generate                ids -> detokenizer and parser -> assembler -> events
commit                  kept in store and cache before the terminal event leaves
after work              the usage record is closed; never delays the next turn
"""

from __future__ import annotations

import logging

from turnwire.v1 import error_pb2, item_pb2
from turnwire_server.ports.engine import EngineFailure, EngineRequest, FinishReason, Sampling
from turnwire_server.ports.renderer import OutputParser, Rendered, RenderFailure
from turnwire_server.ports.screen import ScreenFailure
from turnwire_server.runtime.commit import close_record, commit, usage
from turnwire_server.runtime.resolve import resolve_parent
from turnwire_server.runtime.run import TurnRun
from turnwire_server.runtime.screening import Screening
from turnwire_server.runtime.validate import CheckedCreate
from turnwire_server.session.errors import Rejection, error_code
from turnwire_server.session.presence import number
from turnwire_server.session.responses import new_response

__all__ = ["run_turn"]

_log = logging.getLogger("turnwire.runtime")

_BROKEN = "The server had an error while processing your request."


async def run_turn(run: TurnRun) -> None:
    """Run one turn: from its create to exactly one terminal event, whatever happens."""
    try:
        await _story(run)
    except ScreenFailure as failure:
        _log.error("screen failed error=%s %s", failure, run.log_ids)
        await _end_broken(run)
    except EngineFailure:
        _log.exception("engine failed %s", run.log_ids)
        await _end_broken(run)
    except Exception:  # outermost frame of the turn: the client must get its terminal event
        _log.exception("turn failed %s", run.log_ids)
        await _end_broken(run)


async def _story(run: TurnRun) -> None:
    turn, services, stages = run.turn, run.services, run.stages

    parent = await resolve_parent(turn, services.store, run.tenant)
    stages.mark("resolve")
    if isinstance(parent, Rejection):
        return run.refuse(parent)

    checked = services.validator.check(
        turn.create,
        parent,
        find_item=run.session.find_item,
        stream_id=turn.lane,
        is_persistent=run.is_persistent,
        is_warm_up=turn.is_warm_up,
    )
    stages.mark("validate")
    if isinstance(checked, Rejection):
        return run.refuse(checked)

    request = checked.render_request(parent)
    try:
        rendered = checked.model.renderer.render(request)
    except RenderFailure as failure:
        return run.refuse(
            Rejection(error_pb2.ERROR_REASON_INVALID_PROMPT, str(failure), param="input")
        )
    stages.mark("render")
    max_tokens = _room(checked, rendered)
    if isinstance(max_tokens, Rejection):
        return run.refuse(max_tokens)

    run.begin(
        new_response(
            turn.create,
            response_id=turn.response_id,
            created_at=services.clock.wall(),
            tools=checked.echo,
            warnings=checked.warnings,
            event_id=turn.event_id,
        ),
        checked.model.renderer,
        rendered,
    )
    run.screening = _start_screening(run, checked)
    services.ledger.open(turn.response_id, run.tenant, turn.create.model, services.clock.wall())

    parser = checked.model.renderer.parser(checked.parser_request(request), rendered)
    run.start(checked.model.engine.generate(_engine_request(run, checked, rendered, max_tokens)))
    finish = await _generate(run, parser)

    await commit(run, checked, rendered, finish)


def _room(checked: CheckedCreate, rendered: Rendered) -> int | Rejection:
    """Return how many tokens may be generated."""
    context = checked.model.engine.info.context_length
    room = context - len(rendered.prompt.ids)
    if room < 1:
        return Rejection(
            error_pb2.ERROR_REASON_CONTEXT_LENGTH_EXCEEDED,
            f"The input is {len(rendered.prompt.ids)} tokens; the model's context is {context}.",
            param="input",
        )
    wanted = checked.create.max_output_tokens
    return min(wanted, room) if wanted else room


def _engine_request(
    run: TurnRun, checked: CheckedCreate, rendered: Rendered, max_tokens: int
) -> EngineRequest:
    create = checked.create
    return EngineRequest(
        request_id=run.turn.response_id,
        ids=rendered.prompt.ids,
        sampling=Sampling(
            max_tokens=0 if checked.is_warm_up else max_tokens,
            temperature=number(create, "temperature"),
            top_p=number(create, "top_p"),
            presence_penalty=number(create, "presence_penalty"),
            frequency_penalty=number(create, "frequency_penalty"),
        ),
        stop_ids=checked.model.renderer.stop_ids,
        constraint=rendered.constraint,
        session_hint=run.session.id,
        prefill_only=checked.is_warm_up,
        max_pending_tokens=run.services.settings.max_pending_tokens,
        outline=checked.outline(),
    )


def _start_screening(run: TurnRun, checked: CheckedCreate) -> Screening | None:
    screen = run.services.screen
    if screen is None:
        return None
    conversation = checked.conversation
    unscreened = [item_pb2.Item.FromString(encoded) for encoded in conversation.unscreened]
    check = screen.check(
        conversation.screen_state,
        (*unscreened, *checked.items),
        instructions=checked.create.instructions,
    )
    return Screening(check, on_refusal=run.stop_engine)


def _log_found(run: TurnRun) -> None:
    """Tell the operator which categories the screen found, never what."""
    verdict = run.verdict
    if verdict is not None and verdict.categories:
        _log.info(
            "screen found categories=%s allowed=%s %s",
            ",".join(verdict.categories),
            verdict.allowed,
            run.log_ids,
        )


async def _generate(run: TurnRun, parser: OutputParser) -> FinishReason:
    """Send what the model says; return why it stopped. The one loop that runs per token."""
    finish: FinishReason = "cancelled"
    is_first = True
    async for step in run.generation:
        if is_first:
            is_first = False
            run.stages.mark("prefill")
            run.cached_tokens = step.cached_tokens or 0
            if run.screening is not None:
                run.verdict = await run.screening.verdict()
                run.stages.mark("screen")
                _log_found(run)
        if step.finish is not None:
            finish = step.finish
        if step.ids and not parser.done and run.is_cleared:
            run.sampled.extend(step.ids)
            if not run.say(parser.feed(step.ids)):
                await run.outbox.drain()
            if parser.done:
                run.generation.cancel()
    if parser.done:
        finish = "stop"
    if run.is_cleared:
        run.say(parser.finish(finish))
    run.stages.mark("decode")
    return finish


async def _end_broken(run: TurnRun) -> None:
    """End a turn that broke: before `response.created` by an error event, else by failing it."""
    if run.is_over:
        return
    run.stop()
    if run.has_begun:
        code = error_code(error_pb2.ERROR_REASON_SERVER_ERROR)
        run.end(None, run.assembler.fail(code, _BROKEN, usage(run)))
        close_record(run)
    else:
        run.refuse(Rejection(error_pb2.ERROR_REASON_SERVER_ERROR, _BROKEN))
