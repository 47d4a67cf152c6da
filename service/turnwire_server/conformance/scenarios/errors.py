"""Refusals: what they look like, and that the connection lives on."""

from __future__ import annotations

from typing import Any, Final

from turnwire_server.conformance.checks import PERSISTENT, Collector, Failure, Transport, bounded
from turnwire_server.conformance.clients.turn import Turn
from turnwire_server.conformance.context import TOOL, Context

__all__ = ["SCENARIO"]

SCENARIO: Final = Collector("10")

_WEBSOCKET: Final[tuple[Transport, ...]] = ("websocket",)
_BODIES: Final[tuple[Transport, ...]] = ("http", "sse")
_TURNWIRE: Final = ("turnwire",)


@SCENARIO("error.setting", "A setting out of its range is a 400 that names it.")
async def _setting(context: Context) -> None:
    (await context.turn(temperature=9)).refused(param="temperature")


@SCENARIO(
    "error.type",
    "A member of the wrong JSON type is a 400 that names it.",
    transports=("http", "sse", "websocket"),
)
async def _type(context: Context) -> None:
    (await context.turn(temperature="hot")).refused(param="temperature")


@SCENARIO("error.model_missing", "A create without a model is a 400, unless there is a default.")
async def _model_missing(context: Context) -> None:
    turn = await context.turn(model=None)
    context.skip_unless(turn.refusal is not None, "the server has a default model")
    turn.refused(param="model")


@SCENARIO("error.model_unknown", "An unknown model is a 400 or 404 that names it.")
async def _model_unknown(context: Context) -> None:
    turn = await context.turn(model="conformance-no-such-model")
    context.skip_unless(turn.refusal is not None, "the server answers to any model")
    turn.refused(status=None, param="model")
    if turn.refused_status not in (400, 404):
        raise Failure(f"the status is {bounded(turn.refused_status)}", turn.refusal)


@SCENARIO("error.item", "A bad item is a 400 with the path of what is wrong.")
async def _item(context: Context) -> None:
    turn = await context.turn([{"type": "function_call_output", "output": "x"}])
    turn.refused()
    if not str(turn.param or "").startswith("input"):
        raise Failure(f"`param` is {bounded(turn.param)}, not a path in `input`", turn.refusal)


@SCENARIO("error.tool_choice", "A `tool_choice` of a tool that is not there is a 400.", source="13")
async def _tool_choice(context: Context) -> None:
    choice = {"type": "function", "name": "no_such_tool"}
    (await context.turn(tools=[TOOL], tool_choice=choice)).refused()


@SCENARIO(
    "error.background",
    "`background: true` is refused on a persistent connection.",
    source="3.1",
    transports=PERSISTENT,
)
async def _background(context: Context) -> None:
    (await context.turn(background=True)).refused()


@SCENARIO(
    "error.socket_open",
    "After a refusal the connection serves the next turn.",
    transports=PERSISTENT,
)
async def _socket_open(context: Context) -> None:
    connection = await context.session()
    for bad in ({"temperature": 9}, {"previous_response_id": "resp_conformance_missing"}):
        turn = await connection.turn(context.create(store=False, **bad))
        context.skip_unless(turn.refusal is not None, "nothing was refused")
    (await connection.turn(context.create(store=False))).finished()


# Frames that are no create.

_FRAMES: Final[dict[str, tuple[str, str, object]]] = {
    "error.json": ('{"type": "response.create", ', "invalid_json", None),
    "error.not_object": ("[1, 2]", "", None),
    "error.type_missing": ('{"model": "m"}', "missing_required_parameter", "type"),
    "error.type_unknown": ('{"type": "response.conformance"}', "unknown_event_type", "type"),
}


async def _frame(context: Context, name: str) -> None:
    text, code, param = _FRAMES[name]
    connection = await context.websocket()
    await connection.send_text(text)
    turn = await connection.finish()
    # Codes of these are the profile's own; elsewhere any will do.
    if context.server.settings.profile == "turnwire":
        turn.refused(code or None)
        if param is not None and turn.param != param:
            raise Failure(f"`param` is {bounded(turn.param)}, not {param}", turn.refusal)
    else:
        turn.refused()
    (await connection.turn(context.create(store=False))).finished()


@SCENARIO("error.json", "A frame that is not JSON is a 400.", source="3.4", transports=_WEBSOCKET)
async def _json(context: Context) -> None:
    await _frame(context, "error.json")


@SCENARIO(
    "error.not_object", "A frame that is no object is a 400.", source="3.4", transports=_WEBSOCKET
)
async def _not_object(context: Context) -> None:
    await _frame(context, "error.not_object")


@SCENARIO(
    "error.type_missing",
    "An event without a type is a 400.",
    source="3.4",
    transports=_WEBSOCKET,
)
async def _type_missing(context: Context) -> None:
    await _frame(context, "error.type_missing")


@SCENARIO(
    "error.type_unknown",
    "An event of an unknown type is a 400.",
    source="3.4",
    transports=_WEBSOCKET,
)
async def _type_unknown(context: Context) -> None:
    await _frame(context, "error.type_unknown")


@SCENARIO(
    "error.nested_create",
    "A create inside `response` is refused, or run; either way once.",
    source="3.4",
    transports=_WEBSOCKET,
)
async def _nested(context: Context) -> None:
    connection = await context.websocket()
    create = context.create(store=False)
    await connection.send({"type": create.pop("type"), "response": create})
    turn = await connection.finish()
    if turn.refusal is not None:
        turn.refused()
    (await connection.turn(context.create(store=False))).finished()


@SCENARIO(
    "events.processed",
    "`response.processed` is never answered.",
    source="3.4",
    transports=PERSISTENT,
    profiles=_TURNWIRE,
)
async def _processed(context: Context) -> None:
    connection = await context.session()
    turn = (await connection.turn(context.create(store=False))).finished()
    await connection.send({"type": "response.processed", "response_id": turn.id})
    again = await connection.turn(context.create(store=False))
    if again.refusal is not None:
        raise Failure("it is answered by an error event", again.refusal)


@SCENARIO(
    "events.append",
    "A `response.append` that nothing waits for is one error event.",
    source="3.4",
    transports=PERSISTENT,
    profiles=_TURNWIRE,
)
async def _append(context: Context) -> None:
    event = {"type": "response.append", "response_id": "resp_conformance_missing", "input": []}
    connection = await context.session()
    await connection.send(event)
    (await connection.finish()).refused(status=None)
    (await connection.turn(context.create(store=False))).finished()


async def _aside(context: Context, event: dict[str, Any], kind: str, codes: set[str]) -> None:
    connection = await context.session()
    await connection.send(event)
    answer = await connection.until(kind)
    if answer["type"] == "error":
        turn = Turn([answer], refusal=answer)
        context.skip_unless(not turn.is_unsupported(), f"no {event['type']} here")
        raise Failure("it is answered by an error event", answer)
    error = answer.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if code not in codes:
        raise Failure(f"the code is {bounded(code)}", answer)
    (await connection.turn(context.create(store=False))).finished()


@SCENARIO(
    "events.steer",
    "A steer that cannot be applied is answered by its own failure, never by an error event.",
    source="11",
    transports=PERSISTENT,
    profiles=_TURNWIRE,
)
async def _steer(context: Context) -> None:
    missing = "resp_conformance_missing"
    event = {"type": "response.steer", "previous_response_id": missing, "input": "Stop."}
    codes = {"response_not_found", "steering_not_supported", "response_not_active"}
    await _aside(context, event, "response.steer.failed", codes)


@SCENARIO(
    "events.inject",
    "An inject that cannot be applied is answered by its own failure, never by an error event.",
    source="12",
    transports=PERSISTENT,
    profiles=_TURNWIRE,
)
async def _inject(context: Context) -> None:
    output = {"type": "function_call_output", "call_id": "call_x", "output": "x"}
    missing = "resp_conformance_missing"
    event = {"type": "response.inject", "response_id": missing, "input": [output]}
    codes = {"response_not_found", "response_already_completed"}
    await _aside(context, event, "response.inject.failed", codes)


# Bodies of requests.


@SCENARIO(
    "http.lane_members",
    "`stream_id` and `generate` are refused over HTTP, by name.",
    source="6",
    transports=_BODIES,
    profiles=_TURNWIRE,
)
async def _lane_members(context: Context) -> None:
    (await context.turn(stream_id="main")).refused(param="stream_id")
    (await context.turn(generate=False)).refused(param="generate")


@SCENARIO("http.json", "A body that is not JSON is a 400.", source="10.2", transports=("http",))
async def _body(context: Context) -> None:
    answer = await context.request("POST", "/responses", data=b'{"model": ')
    error = answer.json.get("error") if isinstance(answer.json, dict) else None
    if answer.status != 400 or not isinstance(error, dict):
        raise Failure(f"it is answered with {answer.status}", answer.json)
