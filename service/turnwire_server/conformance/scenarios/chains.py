"""Continuing, the cache of a connection, eviction, forks and warm-ups."""

from __future__ import annotations

from typing import Final

from turnwire_server.conformance.checks import PERSISTENT, Collector, Failure, Json, bounded
from turnwire_server.conformance.clients.persistent import PersistentConnection
from turnwire_server.conformance.clients.turn import Turn
from turnwire_server.conformance.context import TOOL, WHOLE_CALL, Context

__all__ = ["SCENARIO", "warm_up"]

SCENARIO: Final = Collector("5")

NOT_FOUND: Final = "previous_response_not_found"
_MISSING: Final = "resp_conformance_missing"
_ORPHAN: Final = [
    {"type": "function_call_output", "call_id": "call_conformance_missing", "output": "x"}
]
_TURNWIRE: Final = ("turnwire",)


async def _begin(context: Context, connection: PersistentConnection, **more: object) -> Turn:
    return (await connection.turn(context.create(store=False, **more))).finished()


@SCENARIO(
    "chain.unstored",
    "With `store: false` a connection's newest response is continued, with all its context.",
    transports=PERSISTENT,
)
async def _unstored(context: Context) -> None:
    connection = await context.session()
    tokens, parent = 0, None
    for text in ("My name is Ada.", "And I like tea.", "What do I like?"):
        create = context.create(text, store=False, previous_response_id=parent)
        turn = (await connection.turn(create)).finished()
        if turn.input_tokens <= tokens:
            reason = "a continuation counts no more input tokens than its parent"
            raise Failure(reason, turn.response)
        if (turn.response or {}).get("previous_response_id") != parent:
            raise Failure("`previous_response_id` is not shown", turn.response)
        tokens, parent = turn.input_tokens, turn.id


@SCENARIO("chain.stored", "A stored response is continued on another connection.")
async def _stored(context: Context) -> None:
    first = (await context.turn("My name is Ada.", store=True)).finished()
    second = await context.turn("What is my name?", previous_response_id=first.id)
    if second.finished().input_tokens <= first.input_tokens:
        raise Failure("the parent's context is not there", second.response)


@SCENARIO("chain.missing", "An unknown parent is 400 `previous_response_not_found`.")
async def _missing(context: Context) -> None:
    turn = await context.turn(previous_response_id=_MISSING)
    turn.refused(NOT_FOUND, param="previous_response_id")


@SCENARIO(
    "chain.missing_evicts_nothing",
    "After `previous_response_not_found` the newest response is still there.",
    transports=PERSISTENT,
)
async def _missing_evicts_nothing(context: Context) -> None:
    connection = await context.session()
    first = await _begin(context, connection)
    missing = context.create(store=False, previous_response_id=_MISSING)
    (await connection.turn(missing)).refused(status=None)
    again = context.create(store=False, previous_response_id=first.id)
    (await connection.turn(again)).finished()


@SCENARIO(
    "chain.reconnect",
    "What was not stored is not found on another connection.",
    transports=PERSISTENT,
)
async def _reconnect(context: Context) -> None:
    first = await _begin(context, await context.session())
    other = await context.session()
    create = context.create(store=False, previous_response_id=first.id)
    (await other.turn(create)).refused(NOT_FOUND, status=None)
    (await other.turn(context.create(store=False))).finished()


@SCENARIO(
    "chain.older",
    "An older response that was not stored is not found, unless the server keeps several.",
    transports=PERSISTENT,
)
async def _older(context: Context) -> None:
    connection = await context.session()
    first = await _begin(context, connection)
    await _begin(context, connection, previous_response_id=first.id)
    turn = await connection.turn(context.create(store=False, previous_response_id=first.id))
    context.skip_unless(turn.refusal is not None, "it keeps older responses too, as it may")
    turn.refused(NOT_FOUND, status=None)


@SCENARIO(
    "chain.settings",
    "Instructions and tools are not inherited.",
    transports=PERSISTENT,
)
async def _settings(context: Context) -> None:
    connection = await context.session()
    first = await _begin(
        context, connection, instructions="Be brief.", tools=[TOOL], tool_choice="none"
    )
    second = await _begin(context, connection, previous_response_id=first.id)
    shown = second.response or {}
    if shown.get("instructions") is not None or shown.get("tools"):
        raise Failure("instructions or tools of the parent are shown", shown)


@SCENARIO("chain.conversation", "A parent and a conversation together are refused.", source="3.1")
async def _conversation(context: Context) -> None:
    first = (await context.turn(store=True)).finished()
    turn = await context.turn(previous_response_id=first.id, conversation="conv_conformance")
    turn.refused()


@SCENARIO("call.output", "A call is answered by its output, and the model goes on.")
async def _output(context: Context) -> None:
    exchange = await context.connect()
    first, call = await _call(context, exchange)
    output = {"type": "function_call_output", "call_id": call.get("call_id"), "output": "sunny"}
    second = await exchange.turn(
        context.create([output], tools=[TOOL], previous_response_id=first.id, **_storing(context))
    )
    if second.finished().input_tokens <= first.input_tokens:
        raise Failure("the context of the call is not there", second.response)


@SCENARIO("call.unanswered", "Going on without a call's output is a 400.")
async def _unanswered(context: Context) -> None:
    exchange = await context.connect()
    first, _ = await _call(context, exchange)
    create = context.create("Go on.", previous_response_id=first.id, **_storing(context))
    (await exchange.turn(create)).refused()


@SCENARIO("call.unknown", "An output for a call that nobody made is a 400.")
async def _unknown(context: Context) -> None:
    exchange = await context.connect()
    first = (await exchange.turn(context.create(**_storing(context)))).finished()
    create = context.create(_ORPHAN, previous_response_id=first.id, **_storing(context))
    (await exchange.turn(create)).refused()


def _storing(context: Context) -> Json:
    return {"store": not context.is_persistent}


async def _call(context: Context, exchange: object) -> tuple[Turn, Json]:
    create = context.create(
        "What is the weather in Paris?",
        tools=[TOOL],
        tool_choice="required",
        metadata={},
        max_output_tokens=WHOLE_CALL,
        **_storing(context),
    )
    turn: Turn = await exchange.turn(create)  # type: ignore[attr-defined]  # Any exchange.
    context.skip_unless(turn.finished().status == "completed", "the call was cut")
    calls = turn.of_type("function_call")
    context.skip_unless(calls, "nothing is called, see sequence.function_call")
    return turn, calls[0]


# Eviction and forks.


@SCENARIO(
    "evict.failed_continuation",
    "A failed continuation on its lane evicts its parent.",
    transports=PERSISTENT,
)
async def _evicted(context: Context) -> None:
    connection = await context.session()
    first = await _begin(context, connection)
    failing = context.create(_ORPHAN, store=False, previous_response_id=first.id)
    turn = await connection.turn(failing)
    context.skip_unless(turn.refusal or turn.status == "failed", "it did not fail")
    again = await connection.turn(context.create(store=False, previous_response_id=first.id))
    again.refused(NOT_FOUND, status=None)


@SCENARIO(
    "evict.not_without_parent",
    "A refused create without a parent evicts nothing.",
    transports=PERSISTENT,
)
async def _not_without_parent(context: Context) -> None:
    connection = await context.session()
    first = await _begin(context, connection)
    turn = await connection.turn(context.create(store=False, temperature=9))
    context.skip_unless(turn.refusal, "a temperature of 9 is accepted")
    (await connection.turn(context.create(store=False, previous_response_id=first.id))).finished()


@SCENARIO(
    "evict.stored",
    "A stored parent is found again after a failed continuation.",
    transports=PERSISTENT,
)
async def _evicted_stored(context: Context) -> None:
    connection = await context.session()
    first = (await connection.turn(context.create(store=True))).finished()
    await connection.turn(context.create(_ORPHAN, previous_response_id=first.id))
    (await connection.turn(context.create(previous_response_id=first.id))).finished()


@SCENARIO(
    "fork.other_lane",
    "A fork copies another lane's newest response and leaves that lane alone.",
    transports=PERSISTENT,
    profiles=_TURNWIRE,
)
async def _fork(context: Context) -> None:
    connection, first = await _source(context)
    fork = context.create(store=False, previous_response_id=first.id, stream_id="fork")
    if (await connection.turn(fork)).finished().input_tokens <= first.input_tokens:
        raise Failure("the fork does not have its parent's context")
    on = context.create(store=False, previous_response_id=first.id, stream_id="source")
    (await connection.turn(on)).finished()


@SCENARIO(
    "fork.failed",
    "A failed fork leaves the parent to its own lane.",
    transports=PERSISTENT,
    profiles=_TURNWIRE,
)
async def _fork_failed(context: Context) -> None:
    connection, first = await _source(context)
    fork = context.create(_ORPHAN, store=False, previous_response_id=first.id, stream_id="fork")
    turn = await connection.turn(fork)
    context.skip_unless(turn.refusal or turn.status == "failed", "it did not fail")
    on = context.create(store=False, previous_response_id=first.id, stream_id="source")
    (await connection.turn(on)).finished()


async def _source(context: Context) -> tuple[PersistentConnection, Turn]:
    connection = await context.session()
    turn = await connection.turn(context.create(store=False, stream_id="source"))
    context.skip_unless(not turn.is_unsupported("stream_id"), "the server has no lanes")
    return connection, turn.finished()


# Warm-ups.


async def warm_up(context: Context, connection: PersistentConnection, **more: object) -> Turn:
    """Run a warm-up; skip the check where there are none."""
    turn = await connection.turn(context.create(store=False, generate=False, **more))
    context.skip_unless(not turn.is_unsupported("generate"), "the server has no warm-ups")
    return turn.completed()


@SCENARIO(
    "warm_up.empty",
    "A warm-up is a completed response without output that counts its input.",
    source="3.1",
    transports=PERSISTENT,
    profiles=_TURNWIRE,
)
async def _warm_up(context: Context) -> None:
    turn = await warm_up(context, await context.session())
    if (turn.response or {}).get("output") != []:
        raise Failure("a warm-up has output", turn.response)
    if turn.output_tokens or not turn.input_tokens:
        raise Failure("its usage is not that of input alone", turn.response)
    kinds = [event["type"] for event in turn.events if event["type"] != "keepalive"]
    if kinds != ["response.created", "response.in_progress", "response.completed"]:
        raise Failure(f"its events are {bounded(kinds)}")


@SCENARIO(
    "warm_up.continue",
    "A warm-up is continued, with and without input.",
    source="3.1",
    transports=PERSISTENT,
    profiles=_TURNWIRE,
)
async def _warm_up_continue(context: Context) -> None:
    connection = await context.session()
    first = await warm_up(context, connection)
    second = await _begin(context, connection, previous_response_id=first.id)
    if second.input_tokens <= first.input_tokens:
        raise Failure("the warm-up's input is not there", second.response)
    third = await warm_up(context, connection, previous_response_id=second.id)
    create = context.create([], store=False, previous_response_id=third.id)
    (await connection.turn(create)).finished()


@SCENARIO(
    "warm_up.later",
    "A warm-up may be continued in a later turn too.",
    source="3.1",
    transports=PERSISTENT,
    profiles=_TURNWIRE,
)
async def _warm_up_later(context: Context) -> None:
    connection = await context.session()
    first = await warm_up(context, connection)
    await _begin(context, connection)
    await _begin(context, connection, previous_response_id=first.id)
