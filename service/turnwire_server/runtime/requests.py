"""What a turn asks of its renderer, its engine and the screen."""

from __future__ import annotations

import logging

from turnwire.v1 import error_pb2, item_pb2
from turnwire_server.ports.engine import EngineRequest, Sampling
from turnwire_server.ports.renderer import OutputParser, Rendered, RenderFailure, RenderRequest
from turnwire_server.runtime.run import TurnRun
from turnwire_server.runtime.screening import Screening
from turnwire_server.runtime.validate import CheckedCreate
from turnwire_server.session.errors import Rejection

__all__ = ["begin_generation", "begin_screening", "hear_verdict", "render"]

_log = logging.getLogger("turnwire.runtime")


def render(run: TurnRun, checked: CheckedCreate, request: RenderRequest) -> Rendered | Rejection:
    """Render what is new; refuse what leaves no room to answer."""
    try:
        rendered = checked.model.renderer.render(request)
    except RenderFailure as failure:
        return Rejection(error_pb2.ERROR_REASON_INVALID_PROMPT, str(failure), param="input")
    run.stages.mark("render")
    context = checked.context_length
    if len(rendered.prompt.ids) < context:
        return rendered
    return Rejection(
        error_pb2.ERROR_REASON_CONTEXT_LENGTH_EXCEEDED,
        f"The input is {len(rendered.prompt.ids)} tokens; the model's context is {context}.",
        param="input",
    )


def begin_screening(run: TurnRun, checked: CheckedCreate, *, instructions: str) -> None:
    """Let the screen look at the new input, if there is a screen."""
    screen = run.services.screen
    if screen is None:
        return
    conversation = checked.conversation
    unscreened = [item_pb2.Item.FromString(encoded) for encoded in conversation.unscreened]
    check = screen.check(
        conversation.screen_state,
        checked.shown((*unscreened, *checked.items)),
        instructions=instructions,
    )
    run.verdict = None
    run.screening = Screening(check, on_refusal=run.stop_engine)


async def hear_verdict(run: TurnRun) -> None:
    """Wait for what the screen says of the newest input, if there is a screen."""
    if run.screening is None or run.verdict is not None:
        return
    run.verdict = await run.screening.verdict()
    run.stages.mark("screen")
    if run.verdict is not None and run.verdict.categories:
        # Which categories it found, never what.
        _log.info(
            "screen found categories=%s allowed=%s %s",
            ",".join(run.verdict.categories),
            run.verdict.allowed,
            run.log_ids,
        )


def begin_generation(
    run: TurnRun, checked: CheckedCreate, rendered: Rendered, request: RenderRequest
) -> OutputParser:
    """Let the engine generate; return what reads it."""
    room = checked.context_length - len(rendered.prompt.ids)
    wanted = checked.create.max_output_tokens
    max_tokens = min(wanted - run.sampled_before, room) if wanted else room
    engine_request = EngineRequest(
        request_id=run.turn.response_id,
        ids=rendered.prompt.ids,
        sampling=Sampling(0 if checked.is_warm_up else max_tokens, *checked.settings.sampling),
        stop_ids=checked.model.renderer.stop_ids,
        constraint=rendered.constraint,
        session_hint=run.session.id,
        prefill_only=checked.is_warm_up,
        max_pending_tokens=run.services.settings.max_pending_tokens,
        outline=checked.outline(),
    )
    run.start(checked.model.engine.generate(engine_request))
    parser = checked.model.renderer.parser(checked.parser_request(request), rendered)
    run.read_with(parser)
    return parser
