"""Rollouts: a turn pauses for the outputs of its calls and goes on inside the same response.

What is done once per turn stays done: settings and tools are validated, the screen is set up,
the response is stored and the usage record written once. Each round renders, screens and
prefills only what was appended.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from turnwire.v1 import item_pb2
from turnwire_server.ports.engine import FinishReason
from turnwire_server.ports.renderer import Rendered, RenderRequest
from turnwire_server.runtime.commit import conversation_of, note_progress, prompt_of, usage
from turnwire_server.runtime.requests import render
from turnwire_server.runtime.resolve import Parent
from turnwire_server.runtime.run import TurnRun
from turnwire_server.runtime.validate import CheckedCreate
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.errors import Rejection
from turnwire_server.session.rollout import Appended
from turnwire_server.session.tool_choice import CheckedChoice

__all__ = ["next_round"]


async def next_round(
    run: TurnRun, checked: CheckedCreate, rendered: Rendered, finish: FinishReason
) -> tuple[CheckedCreate, Rendered, RenderRequest] | None:
    """Pause a rollout if its model waits for outputs; return what goes on with them.

    Args:
        run: The turn, whose generation is over.
        checked: What the generation answered.
        rendered: Its prompt.
        finish: Why it stopped.

    Returns:
        None when the response ends here: nothing to wait for, or nothing came.
    """
    if not _pauses(run, checked, finish):
        return None
    run.cut_reason = None
    used = usage(run)
    note_progress(run, used)
    run.send(run.assembler.pause(used))
    conversation = conversation_of(run, checked)
    run.session.pause_turn(run.turn, conversation)
    deadline = run.services.clock.monotonic() + run.services.settings.append_timeout_s
    parent: Parent | None = None
    while (appended := await _appended(run, deadline)) is not None:
        parent = parent or Parent(conversation, prompt_of(run, checked, rendered, finish))
        following = _following(checked, conversation, appended.items)
        request = following.render_request(parent)
        fresh = render(run, following, request)
        if not isinstance(fresh, Rejection):
            run.go_on(fresh, appended.items)
            return following, fresh, request
        if run.turn.is_cancelled:
            break
        run.send([appended.error(fresh)])
        run.session.take_back(run.turn, appended)
    return None


def _pauses(run: TurnRun, checked: CheckedCreate, finish: FinishReason) -> bool:
    if run.turn.is_cancelled or not run.is_cleared:
        return False
    if finish != "stop" and run.cut_reason is None:
        return False
    if not run.assembler.waits_for_outputs:
        return False
    wanted = checked.create.max_output_tokens
    if wanted and run.output_tokens >= wanted:
        run.cut_reason = "max_output_tokens"  # outputs could not be answered
        return False
    return True


async def _appended(run: TurnRun, deadline: float) -> Appended | None:
    """Wait for input; None when the turn was cancelled or nothing came in time."""
    turn, clock = run.turn, run.services.clock
    if not turn.is_cancelled:
        left = deadline - clock.monotonic()
        timer = asyncio.get_running_loop().create_task(clock.sleep(left))
        timer.add_done_callback(lambda done: None if done.cancelled() else run.wake())
        try:
            await run.woken()
        finally:
            timer.cancel()
    run.stages.skip()
    appended, turn.appended = turn.appended, None
    if appended is None and turn.is_paused:
        run.session.end_pause(turn)
        run.cut_reason = "append_timeout"
    return appended


def _following(
    checked: CheckedCreate, conversation: Conversation, items: tuple[item_pb2.Item, ...]
) -> CheckedCreate:
    """Return the checked create of the round that answers `items`.

    A choice of tools that forces a call is for the first round: the model could never answer.
    """
    choice, may_call = checked.choice, checked.callable_tools
    if choice.mode == "required":
        choice = replace(choice, mode="auto")
        if checked.create.tool_choice.WhichOneof("choice") != "allowed_tools":
            choice, may_call = CheckedChoice(), checked.tools
    return replace(
        checked,
        conversation=conversation.extended(items),
        items=items,
        choice=choice,
        callable_tools=may_call,
        covered=None,
        is_compaction=False,
        compact_threshold=None,
    )
