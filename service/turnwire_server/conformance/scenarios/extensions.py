"""What not every server has: cancelling, event ids, sessions, steering, rollouts, timing."""

from __future__ import annotations

import time
from typing import Any, Final

from turnwire_server.conformance.checks import PERSISTENT, Collector, Failure, Json, bounded
from turnwire_server.conformance.clients.persistent import PersistentConnection
from turnwire_server.conformance.clients.turn import Turn
from turnwire_server.conformance.context import TOOL, WHOLE_CALL, Context, hint
from turnwire_server.conformance.scenarios.lanes import long_turn

__all__ = ["SCENARIO"]

SCENARIO: Final = Collector("21")

_AT_ONCE_S: Final = 1.0
"""A turn that goes on for longer was not cancelled."""
_OPTIONS: Final[dict[str, Any]] = {"transports": PERSISTENT, "profiles": ("turnwire",)}


# Cancelling.


async def _cancelled(context: Context, connection: PersistentConnection) -> Turn:
    """Run a long turn and cancel it amid its text."""
    await connection.send(long_turn(context))
    first = await connection.until("response.output_text.delta", "response.completed")
    context.skip_unless(first["type"] == "response.output_text.delta", "there was no delta")
    sent = time.perf_counter()
    await connection.send({"type": "response.cancel"})
    turn = await connection.finish()
    context.skip_unless(not turn.is_unsupported(), "the server does not cancel")
    went_on = time.perf_counter() - sent > _AT_ONCE_S
    context.skip_unless(turn.status != "completed" or went_on, "the turn was over first")
    return turn


@SCENARIO(
    "cancel.running",
    "A cancelled turn ends with one `response.incomplete`, status `cancelled`, and its usage.",
    **_OPTIONS,
)
async def _running(context: Context) -> None:
    connection = await context.session()
    turn = await _cancelled(context, connection)
    if turn.refusal is not None:
        raise Failure("the cancel is answered by an error", turn.refusal)
    if turn.status == "completed":
        raise Failure("the turn goes on to its own end")
    if turn.events[-1]["type"] != "response.incomplete" or turn.status != "cancelled":
        raise Failure(f"the turn ends with status {bounded(turn.status)}", turn.events[-1])
    if (turn.response or {}).get("incomplete_details") is not None:
        raise Failure("`incomplete_details` is not null", turn.response)
    output = (turn.response or {}).get("output") or []
    if output and output[-1].get("status") != "incomplete":
        raise Failure("the open item does not end incomplete", turn.response)
    (await connection.turn(context.create(store=False))).finished()


@SCENARIO("cancel.continue", "A cancelled response is the head of its lane.", **_OPTIONS)
async def _continued(context: Context) -> None:
    connection = await context.session()
    turn = await _cancelled(context, connection)
    context.skip_unless(turn.status == "cancelled", "nothing was cancelled, see cancel.running")
    create = context.create(store=False, previous_response_id=turn.id)
    (await connection.turn(create)).finished()


@SCENARIO(
    "cancel.queued",
    "A queued create that is named by its `event_id` ends with `request_cancelled`.",
    **_OPTIONS,
)
async def _queued(context: Context) -> None:
    connection = await context.session()
    await connection.send(long_turn(context))
    await connection.until("response.in_progress")
    await connection.send(context.create(store=False, event_id="conformance_queued"))
    await connection.send({"type": "response.cancel", "event_id": "conformance_queued"})
    # The long turn goes on meanwhile; the error comes first on this lane.
    event = await connection.until("response.completed", "response.incomplete")
    context.skip_unless(event["type"] == "error", "the long turn was over first")
    refusal = Turn([event], refusal=event)
    context.skip_unless(not refusal.is_unsupported(), "the server does not cancel")
    refusal.refused("request_cancelled")


@SCENARIO("cancel.nothing", "With nothing to cancel there is no answer.", **_OPTIONS)
async def _nothing(context: Context) -> None:
    connection = await context.session()
    await connection.send({"type": "response.cancel"})
    turn = await connection.turn(context.create(store=False))
    context.skip_unless(not turn.is_unsupported(), "the server does not cancel")
    if turn.refusal is not None:
        raise Failure("there is an answer", turn.refusal)


# Event ids and sessions.


@SCENARIO(
    "event_id.echo",
    "An `event_id` comes back in `response.created` and on errors.",
    **_OPTIONS,
)
async def _echo(context: Context) -> None:
    connection = await context.session()
    turn = (await connection.turn(context.create(store=False, event_id="e1"))).finished()
    created = turn.events[0].get("response") or {}
    extension = created.get("turnwire") or {}
    context.skip_unless(extension, "the server does not echo it")
    if extension.get("event_id") != "e1":
        raise Failure("`response.turnwire.event_id` is another", created)
    bad = await connection.turn(context.create(store=False, event_id="e2", temperature=9))
    if (bad.refused().refusal or {}).get("event_id") != "e2":
        raise Failure("the error does not carry it", bad.refusal)


@SCENARIO(
    "event_id.once",
    "A repeated `event_id` is never run twice; what ended the first may be said again.",
    **_OPTIONS,
)
async def _once(context: Context) -> None:
    connection = await context.session()
    create = context.create(store=False, event_id="e1")
    first = (await connection.turn(create)).finished()
    known = (first.events[0].get("response") or {}).get("turnwire") is not None
    context.skip_unless(known, "the server does not know event ids")
    await connection.send_again(create)
    second = (await connection.turn(context.create(store=False, event_id="e2"))).finished()
    shown = (second.events[0].get("response") or {}).get("turnwire") or {}
    if shown.get("event_id") != "e2":
        raise Failure("the repeated create ran", second.events[0])


@SCENARIO("session.start", "A session is started first and answered with its id.", **_OPTIONS)
async def _session(context: Context) -> None:
    connection = await context.session()
    await connection.send({"type": "turnwire.session.start", "resume": False})
    event = await connection.until("turnwire.session.started")
    if event["type"] == "error":
        context.skip_unless(
            not Turn([event], refusal=event).is_unsupported(), "the server has no sessions"
        )
        raise Failure("it is answered by an error", event)
    if not event.get("session_id"):
        raise Failure("there is no `session_id`", event)
    (await connection.turn(context.create(store=False))).finished()


@SCENARIO(
    "timing.members",
    "`turnwire.timing` is there when it is asked for, and only then.",
    **_OPTIONS,
)
async def _timing(context: Context) -> None:
    connection = await context.session()
    create = context.create(store=False, include=["turnwire.timing"])
    turn = await connection.turn(create)
    context.skip_unless(turn.refusal is None, "the server has no timing")
    timing = ((turn.finished().response or {}).get("turnwire") or {}).get("timing") or {}
    context.skip_unless(timing, "the server has no timing")
    for name in ("queue_ms", "render_ms", "prefill_ms", "decode_ms", "overhead_ms"):
        if not isinstance(timing.get(name), int | float):
            raise Failure(f"`{name}` is missing", timing)
    tokens = timing.get("tokens") or {}
    if tokens.get("input") != turn.input_tokens:
        raise Failure("`tokens.input` is not `usage.input_tokens`", timing)
    other = (await connection.turn(context.create(store=False))).finished()
    if ((other.response or {}).get("turnwire") or {}).get("timing") is not None:
        raise Failure("it is there without being asked for", other.response)


# Steering and rollouts.


@SCENARIO(
    "steer.successor",
    "A steered turn ends, and a successor that continues it has the steer as input.",
    source="11",
    **_OPTIONS,
)
async def _steered(context: Context) -> None:
    connection = await context.session()
    # A steered response ends with the item that the model is writing, so not too long a one.
    await connection.send(long_turn(context, tokens=80))
    created = await connection.until("response.created")
    target = str((created.get("response") or {}).get("id"))
    await connection.until("response.output_text.delta", "response.completed")
    await connection.send(
        {"type": "response.steer", "previous_response_id": target, "input": "Stop counting."}
    )
    answer = await connection.until("response.steer.accepted", "response.steer.failed")
    context.skip_unless(answer["type"] != "error", "the server does not steer")
    if answer["type"] == "response.steer.failed":
        code = (answer.get("error") or {}).get("code")
        over = {"steering_not_supported", "response_already_completed", "response_not_active"}
        context.skip_unless(code not in over, f"it is not steered: {code}")
        raise Failure(f"the steer failed: {bounded(code)}", answer)
    end = await connection.until("response.incomplete", "response.completed")
    details = (end.get("response") or {}).get("incomplete_details") or {}
    if end["type"] == "response.incomplete" and details.get("reason") != "steered":
        raise Failure(f"it ends with reason {bounded(details.get('reason'))}", end)
    successor = await connection.until("response.created")
    if (successor.get("response") or {}).get("previous_response_id") != target:
        raise Failure("the successor does not continue the steered response", successor)
    await connection.send({"type": "response.cancel"})
    turn = await connection.finish()
    if turn.refusal is not None:
        raise Failure("the successor was refused", turn.refusal)


@SCENARIO(
    "rollout.pause",
    "A rollout pauses with `response.done`, takes what is appended, and is one response.",
    **_OPTIONS,
)
async def _rollout(context: Context) -> None:
    connection = await context.session()
    call = {"name": TOOL["name"], "arguments": {"city": "Paris"}}
    await connection.send(
        context.create(
            "What is the weather in Paris?",
            store=False,
            rollout=True,
            tools=[TOOL],
            tool_choice="required",
            metadata=hint(calls=[call], after="It is sunny."),
            max_output_tokens=4 * WHOLE_CALL,
        )
    )
    done = await connection.until("response.done", "response.completed", "response.incomplete")
    if done["type"] == "error":
        context.skip_unless(
            not Turn([done], refusal=done).is_unsupported(), "the server has no rollouts"
        )
        raise Failure("it is refused", done)
    context.skip_unless(done["type"] == "response.done", "the server does not pause")
    required = done.get("required_input")
    if not isinstance(required, list) or not required:
        raise Failure("`required_input` names no call", done)
    if not isinstance(done.get("usage"), dict):
        raise Failure("`response.done` has no usage", done)
    outputs: list[Json] = [
        {"type": stub.get("type"), "call_id": stub.get("call_id"), "output": "sunny"}
        for stub in required
    ]
    await connection.send(
        {"type": "response.append", "response_id": done.get("response_id"), "input": outputs}
    )
    while (event := await connection.until("response.done", *_ENDS))["type"] == "response.done":
        await connection.send({"type": "response.cancel"})
    if event["type"] == "error" or (event.get("response") or {}).get("id") != done["response_id"]:
        raise Failure("the rollout does not end as the response that it began as", event)


_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
