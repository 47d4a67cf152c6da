"""Lanes: `stream_id`, order, limits."""

from __future__ import annotations

from typing import Any, Final

from turnwire_server.conformance.checks import PERSISTENT, Collector, Failure, bounded
from turnwire_server.conformance.clients.persistent import PersistentConnection
from turnwire_server.conformance.context import Context, hint
from turnwire_server.conformance.stream import TERMINAL

__all__ = ["SCENARIO", "long_turn"]

SCENARIO: Final = Collector("6")

_OPTIONS: Final[dict[str, Any]] = {"transports": PERSISTENT, "profiles": ("turnwire",)}
_LIMIT: Final = 32
_LONG: Final = 600


def long_turn(context: Context, *, tokens: int = 400, **more: Any) -> dict[str, Any]:
    """Return a create whose turn takes some seconds unless it is ended.

    Args:
        context: The scenario's.
        tokens: How long a simulated engine makes it; 200 take a second.
        **more: Members to add.
    """
    return context.create(
        "Count from 1 to 500 in words, without a stop.",
        metadata=hint(tokens=tokens, tokens_per_second=200),
        store=False,
        max_output_tokens=_LONG,
        **more,
    )


async def _lanes(context: Context) -> PersistentConnection:
    """Return a connection of a server that has lanes."""
    connection = await context.session()
    turn = await connection.turn(context.create(store=False, stream_id="main"))
    context.skip_unless(not turn.is_unsupported("stream_id"), "the server has no lanes")
    turn.finished()
    return connection


@SCENARIO("lanes.together", "Turns of several lanes and of the default lane all end.", **_OPTIONS)
async def _together(context: Context) -> None:
    connection = await _lanes(context)
    lanes = (None, "main", "side.lane_1-x")
    for lane in lanes:
        await connection.send(context.create(store=False, stream_id=lane))
    for lane in lanes:
        (await connection.finish(lane)).finished()


@SCENARIO("lanes.parallel", "A short turn does not wait for another lane's long one.", **_OPTIONS)
async def _parallel(context: Context) -> None:
    connection = await _lanes(context)
    await connection.send(long_turn(context, stream_id="long"))
    first = await connection.until("response.in_progress", lane="long")
    if first["type"] == "error":
        raise Failure("the long turn was refused", first)
    (await connection.turn(context.create(store=False, stream_id="short"))).finished()
    order = connection.order
    ends = [order.index(("long", kind)) for kind in TERMINAL if ("long", kind) in order]
    context.skip_unless(("short", "response.created") in order, "see order.created_first")
    began = order.index(("short", "response.created"))
    if ends and ends[0] < began:
        long = await connection.finish("long")
        context.skip_unless(long.output_tokens > 100, "the long turn was too short")
        raise Failure("the short turn began when the long one was over")


@SCENARIO("lanes.fifo", "Creates of a lane run one after the other, in order.", **_OPTIONS)
async def _fifo(context: Context) -> None:
    connection = await _lanes(context)
    for lane in (None, "main"):
        for number in "123":
            metadata = {**hint(text="Hello."), "number": number}
            create = context.create(store=False, stream_id=lane, metadata=metadata)
            await connection.send(create)
    for lane in (None, "main"):
        turns = [(await connection.finish(lane)).finished() for _ in range(3)]
        numbers = [((turn.response or {}).get("metadata") or {}).get("number") for turn in turns]
        if numbers != ["1", "2", "3"]:
            raise Failure(f"creates 1, 2, 3 ran as {bounded(numbers)}")


@SCENARIO("lanes.fresh", "A lane orders and never continues: that is for the parent.", **_OPTIONS)
async def _fresh(context: Context) -> None:
    connection = await _lanes(context)
    create = context.create("Say hello.", store=False, stream_id="main")
    first = (await connection.turn(create)).finished()
    second = (await connection.turn(create)).finished()
    if second.input_tokens != first.input_tokens:
        raise Failure("a lane's second turn has the first one's context", second.response)


_NAMES: Final[tuple[Any, ...]] = ("", "a b", "a/b", "x" * 257, "é")
_JSON_NAMES: Final[tuple[Any, ...]] = (5, ["a"], True)


@SCENARIO(
    "lanes.names",
    "A bad `stream_id` is 400 `invalid_stream_id`, and the error names no lane.",
    **_OPTIONS,
)
async def _names(context: Context) -> None:
    connection = await _lanes(context)
    names = _NAMES if context.transport == "grpc" else _NAMES + _JSON_NAMES
    for name in names:
        await connection.send(context.create(store=False, stream_id=name))
        turn = await connection.finish()
        turn.refused("invalid_stream_id", param="stream_id")
        if "stream_id" in (turn.refusal or {}):
            raise Failure("the error carries the bad name", turn.refusal)
    (await connection.turn(context.create(store=False, stream_id="x" * 256))).finished()


@SCENARIO(
    "lanes.limit",
    "The 33rd name is refused on its lane; the 32 others stay usable.",
    **_OPTIONS,
)
async def _limit(context: Context) -> None:
    connection = await _lanes(context)
    names = [f"lane{index}" for index in range(1, _LIMIT)]
    for name in names:
        await connection.send(context.create(store=False, stream_id=name, generate=False))
    for name in names:
        turn = await connection.finish(name)
        if turn.is_unsupported("generate"):
            turn = await connection.turn(context.create(store=False, stream_id=name))
        if turn.refusal is not None:
            raise Failure(f"{name} of {_LIMIT} lanes was refused", turn.refusal)
    lane = f"lane{_LIMIT}"
    await connection.send(context.create(store=False, stream_id=lane))
    turn = await connection.finish(lane)
    turn.refused("websocket_stream_limit_reached")
    (await connection.turn(context.create(store=False, stream_id="lane1"))).finished()
    (await connection.turn(context.create(store=False))).finished()


@SCENARIO(
    "lanes.queue",
    "Creates beyond 16 in flight are accepted and wait.",
    **_OPTIONS,
)
async def _queue(context: Context) -> None:
    connection = await _lanes(context)
    lanes = [f"lane{index}" for index in range(20)]
    for lane in lanes:
        metadata = hint(tokens=20, tokens_per_second=200)
        await connection.send(context.create(store=False, stream_id=lane, metadata=metadata))
    for lane in lanes:
        (await connection.finish(lane)).finished()


@SCENARIO(
    "lanes.errors_apart",
    "A refused create does not disturb another lane, and its error names its own.",
    **_OPTIONS,
)
async def _errors_apart(context: Context) -> None:
    connection = await _lanes(context)
    metadata = hint(tokens=40, tokens_per_second=400)
    await connection.send(context.create(store=False, stream_id="main", metadata=metadata))
    missing = "resp_conformance_missing"
    bad = context.create(store=False, stream_id="bad", previous_response_id=missing)
    (await connection.turn(bad)).refused(status=None)
    (await connection.finish("main")).finished()
