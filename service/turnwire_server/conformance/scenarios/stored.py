"""Stored responses and the other calls beside the turns, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

from google.protobuf.message import Message

from turnwire import _codec
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.responses_service_pb2 import (
    CompactRequest,
    DeleteRequest,
    GetRequest,
    ListInputItemsRequest,
)
from turnwire_server.conformance.checks import Collector, Failure, Json, Transport, bounded
from turnwire_server.conformance.context import Context

__all__ = ["SCENARIO"]

SCENARIO: Final = Collector("14")

_CALLS: Final[dict[str, Any]] = {"transports": ("http", "grpc")}
_HTTP: Final[tuple[Transport, ...]] = ("http",)
_MISSING: Final = "resp_conformance_missing"
_UNSUPPORTED: Final = {404, 405, 501}
_OVER: Final = {"completed", "incomplete", "failed", "cancelled"}
_POLL_S: Final = 0.05
_GRPC_STATUS: Final = {
    "OK": 200,
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "NOT_FOUND": 404,
    "UNIMPLEMENTED": 501,
}


async def _call(
    context: Context, method: str, path: str, name: str, request: Message, body: object = None
) -> tuple[int, Json]:
    """Make a call on the context's transport; return an HTTP status and the answer's JSON."""
    if context.transport == "grpc":
        assert context.server.grpc is not None
        status, value = await context.server.grpc.unary(name, request, context.timeout_s)
        if status == "DEADLINE_EXCEEDED":
            raise Failure(f"no answer within {context.timeout_s:g} s")
        return _GRPC_STATUS.get(status, 500), value
    answer = await context.request(method, path, body)
    return answer.status, answer.json if isinstance(answer.json, dict) else {}


async def _get(context: Context, identifier: str) -> tuple[int, Json]:
    request = GetRequest(response_id=identifier)
    return await _call(context, "GET", f"/responses/{identifier}", "Get", request)


@SCENARIO("store.get", "A stored response is got as its turn showed it.", **_CALLS)
async def _stored(context: Context) -> None:
    turn = (await context.turn(store=True)).finished()
    status, shown = await _get(context, turn.id)
    if status != 200:
        raise Failure(f"it is answered with {status}", shown)
    for name in ("id", "status", "output", "usage", "model", "created_at", "metadata"):
        if shown.get(name) != (turn.response or {}).get(name):
            raise Failure(f"`{name}` is not what the turn showed", shown)


@SCENARIO("store.default", "Without `store` a response is stored.", source="3.1", **_CALLS)
async def _default(context: Context) -> None:
    turn = (await context.turn(store=None)).finished()
    status, shown = await _get(context, turn.id)
    if status != 200:
        raise Failure(f"it is answered with {status}", shown)


@SCENARIO("store.unstored", "With `store: false` a response cannot be got.", **_CALLS)
async def _unstored(context: Context) -> None:
    turn = (await context.turn(store=False)).finished()
    status, shown = await _get(context, turn.id)
    if status != 404:
        raise Failure(f"it is answered with {status}", shown)


@SCENARIO("store.unknown", "An unknown response is 404, for every call.", **_CALLS)
async def _unknown(context: Context) -> None:
    path = f"/responses/{_MISSING}"
    calls: tuple[tuple[str, str, str, Message], ...] = (
        ("GET", path, "Get", GetRequest(response_id=_MISSING)),
        ("DELETE", path, "Delete", DeleteRequest(response_id=_MISSING)),
        (
            "GET",
            f"{path}/input_items",
            "ListInputItems",
            ListInputItemsRequest(response_id=_MISSING),
        ),
    )
    for method, where, name, request in calls:
        status, shown = await _call(context, method, where, name, request)
        if status != 404:
            raise Failure(f"{name} is answered with {status}", shown)


@SCENARIO("store.delete", "A response that was deleted is gone.", **_CALLS)
async def _delete(context: Context) -> None:
    turn = (await context.turn(store=True)).finished()
    request = DeleteRequest(response_id=turn.id)
    status, shown = await _call(context, "DELETE", f"/responses/{turn.id}", "Delete", request)
    if status != 200 or shown.get("id") != turn.id or shown.get("deleted") is not True:
        raise Failure(f"it is answered with {status}", shown)
    status, shown = await _get(context, turn.id)
    if status != 404:
        raise Failure(f"afterwards it is answered with {status}", shown)


@SCENARIO(
    "store.background",
    "A background response is found while it runs, and polled until it is over.",
    source="3.1",
    transports=_HTTP,
)
async def _background(context: Context) -> None:
    create = context.create(background=True)
    del create["type"]
    answer = await context.request("POST", "/responses", create)
    context.skip_unless(answer.status == 200, f"it is answered with {answer.status}")
    shown = answer.json
    try:
        async with asyncio.timeout(context.timeout_s):
            while isinstance(shown, dict) and shown.get("status") in ("queued", "in_progress"):
                await asyncio.sleep(_POLL_S)
                status, shown = await _get(context, shown["id"])
                if status != 200:
                    raise Failure(f"it is answered with {status}", shown)
    except TimeoutError:
        raise Failure(f"it is not over after {context.timeout_s:g} s") from None
    if not isinstance(shown, dict) or shown.get("status") not in _OVER:
        raise Failure("it ends without a final status", shown)
    if not shown.get("background"):
        raise Failure("it does not say that it ran in the background", shown)


@SCENARIO(
    "store.idempotency",
    "A request with the same `Idempotency-Key` gets the same response.",
    transports=_HTTP,
    profiles=("turnwire",),
)
async def _idempotency(context: Context) -> None:
    create = context.create()
    del create["type"]
    headers = {"idempotency-key": f"conformance-{uuid.uuid4()}"}
    first = await context.request("POST", "/responses", create, headers=headers)
    again = await context.request("POST", "/responses", create, headers=headers)
    if first.status != 200 or again.status != 200:
        raise Failure(f"they are answered with {first.status} and {again.status}", again.json)
    if first.json.get("id") != again.json.get("id"):
        raise Failure("there are two responses", again.json)
    other = await context.request(
        "POST", "/responses", {**create, "input": "Say something else."}, headers=headers
    )
    if other.status not in (409, 422):
        raise Failure(f"another body is answered with {other.status}", other.json)


@SCENARIO("store.input_items", "The input of a stored response is listed, in pages.", **_CALLS)
async def _input_items(context: Context) -> None:
    items = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello, Ada."},
        {"role": "user", "content": "What is my name?"},
    ]
    turn = (await context.turn(items, store=True)).finished()
    whole = await _list(context, turn.id, "asc", 20)
    ids = [item.get("id") for item in whole["data"]]
    if len(ids) != len(items) or len(set(ids)) != len(items):
        raise Failure(f"{len(ids)} items are listed instead of {len(items)}", whole)
    if (whole.get("first_id"), whole.get("last_id"), whole.get("has_more")) != (
        ids[0],
        ids[-1],
        False,
    ):
        raise Failure("first_id, last_id or has_more do not fit the items", whole)
    first = await _list(context, turn.id, "desc", 2)
    if [item.get("id") for item in first["data"]] != [ids[2], ids[1]] or not first.get("has_more"):
        raise Failure("the first page of two, newest first, is another", first)
    second = await _list(context, turn.id, "desc", 2, str(first.get("last_id")))
    if [item.get("id") for item in second["data"]] != [ids[0]] or second.get("has_more"):
        raise Failure("the second page is another", second)


async def _list(
    context: Context, identifier: str, order: str, limit: int, after: str | None = None
) -> Json:
    request = ListInputItemsRequest(response_id=identifier, order=order, limit=limit, after=after)
    more = "" if after is None else f"&after={after}"
    path = f"/responses/{identifier}/input_items?order={order}&limit={limit}{more}"
    status, shown = await _call(context, "GET", path, "ListInputItems", request)
    if status != 200 or shown.get("object") != "list" or not isinstance(shown.get("data"), list):
        raise Failure(f"it is answered with {status}", shown)
    return shown


@SCENARIO("tokens.count", "An input counts as many tokens as its turn says.", **_CALLS)
async def _count(context: Context) -> None:
    create = context.create("How many tokens are these?", store=False)
    del create["type"]
    request = _codec.parse(ResponseCreate, create)
    path = "/responses/input_tokens"
    status, shown = await _call(context, "POST", path, "CountInputTokens", request, create)
    context.skip_unless(status not in _UNSUPPORTED, f"it is answered with {status}")
    turn = (await context.turn("How many tokens are these?", store=False)).finished()
    if status != 200 or shown.get("input_tokens") != turn.input_tokens:
        counted = bounded(shown.get("input_tokens"))
        raise Failure(f"counted {counted}, the turn says {turn.input_tokens}", shown)


@SCENARIO("models.list", "The models are listed.", transports=_HTTP)
async def _models(context: Context) -> None:
    answer = await context.request("GET", "/models")
    body = answer.json if isinstance(answer.json, dict) else {}
    models = body.get("data")
    if answer.status != 200 or body.get("object") != "list" or not isinstance(models, list):
        raise Failure(f"it is answered with {answer.status}", body)
    for model in models:
        if not isinstance(model, dict) or model.get("object") != "model" or not model.get("id"):
            raise Failure("a model without `id` or `object`", model)


_COMPACTED: Final = [
    {"role": "user", "content": [{"type": "input_text", "text": "My name is Ada."}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "Hello, Ada."}]},
    {"role": "user", "content": [{"type": "input_text", "text": "I like tea."}]},
]


@SCENARIO(
    "compact.standalone",
    "A conversation is compacted to its user messages and one compaction item.",
    source="8",
    **_CALLS,
)
async def _compact(context: Context) -> None:
    body = {"model": context.server.model, "input": _COMPACTED}
    request = _codec.parse(CompactRequest, body)
    status, shown = await _call(context, "POST", "/responses/compact", "Compact", request, body)
    context.skip_unless(status not in _UNSUPPORTED, f"it is answered with {status}")
    output = shown.get("output")
    if status != 200 or shown.get("object") != "response.compaction" or not output:
        raise Failure(f"it is answered with {status}", shown)
    kinds = [item.get("type") for item in output]
    if kinds.count("compaction") != 1 or not set(kinds) <= {"message", "compaction"}:
        raise Failure(f"the output is {bounded(kinds)}", shown)
    turn = await context.turn([*output, {"role": "user", "content": "Go on."}], store=False)
    turn.finished()


@SCENARIO(
    "compact.model_missing",
    "A compaction without a model is 400 or 422.",
    source="8",
    transports=_HTTP,
)
async def _compact_missing(context: Context) -> None:
    answer = await context.request("POST", "/responses/compact", {"input": _COMPACTED})
    context.skip_unless(answer.status not in _UNSUPPORTED, f"it is answered with {answer.status}")
    if answer.status not in (400, 422):
        raise Failure(f"it is answered with {answer.status}", answer.json)
