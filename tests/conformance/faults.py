"""The seeded faults: each breaks one promise, and names the check that is meant for it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from harness.faulty_proxy import Fault, Json, Link

__all__ = ["FAULTS"]

_TERMINALS = ("response.completed", "response.incomplete", "response.failed")
_ORPHAN = "call_conformance_missing"

Change = Callable[[Json], Iterable[Json] | None]


def each(change: Change, *, renumbers: bool = True) -> Callable[[], Link]:
    """Return links that give every server event to `change`.

    It may change the event in place and return None, or return what takes its place.
    """

    class _Each(Link):
        def server(self, event: Json) -> Iterable[Json]:
            event = copy.deepcopy(event)
            changed = change(event)
            return [event] if changed is None else changed

    _Each.renumbers = renumbers
    return _Each


def on(*kinds: str) -> Callable[[Change], Change]:
    """Return a decorator: the change is made to events of these types only."""

    def decorate(change: Change) -> Change:
        return lambda event: change(event) if event["type"] in kinds else None

    return decorate


def put(kind: str | tuple[str, ...], **members: Any) -> Callable[[], Link]:
    """Return links that replace members of events; `a__b` is `b` inside `a`."""

    def change(event: Json) -> None:
        for path, value in members.items():
            *outer, name = path.split("__")
            place: Any = event
            for step in outer:
                place = place[step]
            place[name] = value

    return each(on(*([kind] if isinstance(kind, str) else kind))(change))


def drop(kind: str) -> Callable[[], Link]:
    """Return links that swallow events of a type."""
    return each(on(kind)(lambda event: []))


def in_response(change: Callable[[Json], None]) -> Callable[[], Link]:
    """Return links that change every response object."""

    def apply(event: Json) -> None:
        if isinstance(event.get("response"), dict):
            change(event["response"])

    return each(apply)


def in_items(change: Callable[[Json], None]) -> Callable[[], Link]:
    """Return links that change items alike where they are done and in the last event."""

    def apply(event: Json) -> None:
        if event["type"] == "response.output_item.done":
            change(event["item"])
        elif event["type"] in _TERMINALS:
            for item in event["response"]["output"]:
                change(item)

    return each(apply)


def error(code: str, lane: str | None = None) -> Json:
    """Return an error event as a server would send it."""
    body = {"type": "invalid_request_error", "code": code, "message": "No.", "param": None}
    frame: Json = {"type": "error", "status": 400, "error": body}
    return frame if lane is None else {**frame, "stream_id": lane}


# Changes that need more than a line.


def _shift(event: Json) -> None:
    if event.get("sequence_number", 0) >= 3:
        event["sequence_number"] += 1


def _from_one(event: Json) -> None:
    if "sequence_number" in event:
        event["sequence_number"] += 1


def _unnumbered(event: Json) -> None:
    if event["type"] == "response.output_text.delta":
        del event["sequence_number"]


def _without_penalty(response: Json) -> None:
    del response["presence_penalty"]


def _without_strict(response: Json) -> None:
    for tool in response["tools"]:
        tool.pop("strict", None)


def _later(response: Json) -> None:
    response["created_at"] += 0.5


def _say_more(item: Json) -> None:
    for part in item.get("content") or []:
        part["text"] = str(part.get("text")) + "!"


def _unfinished(item: Json) -> None:
    item["status"] = "in_progress"


def _cut(item: Json) -> None:
    item["status"] = "incomplete"


def _null_seal(item: Json) -> None:
    if item["type"] == "reasoning":
        item["encrypted_content"] = None


def _reused_index(event: Json) -> None:
    if event["type"] == "response.output_item.added" and event["output_index"] == 2:
        event["output_index"] = 1


def _one_message_id(event: Json) -> None:
    items = [*(event.get("response") or {}).get("output", [])[:1]]
    if event.get("output_index") == 0 and "item" in event:
        items.append(event["item"])
    for item in items:
        if item["type"] == "message":
            item["id"] = "msg_same"
    if str(event.get("item_id", "")).startswith("msg_") and event["output_index"] == 0:
        event["item_id"] = "msg_same"


def _lost_item(event: Json) -> None:
    if event["type"] in _TERMINALS:
        event["response"]["output"] = event["response"]["output"][:-1]


def _doubtful(event: Json) -> None:
    if event["type"] == "response.completed":
        usage = event["response"]["usage"]
        usage["input_tokens_details"]["cached_tokens"] = usage["input_tokens"] + 1


def _wrong_total(event: Json) -> None:
    if event["type"] in _TERMINALS:
        event["response"]["usage"]["total_tokens"] += 1


def _torn(event: Json) -> None:
    text = str
    for name in ("delta", "text"):
        if isinstance(event.get(name), text):
            event[name] = event[name].replace("世", "\ufffd")
    shown = [event.get("part"), event.get("item"), *(event.get("response") or {}).get("output", [])]
    for value in shown:
        for part in [value, *((value or {}).get("content") or [])]:
            if part and "text" in part:
                part["text"] = part["text"].replace("世", "\ufffd")


def _forgetful(response: Json) -> None:
    response["metadata"].pop("key", None)


def _inherited(response: Json) -> None:
    if response["previous_response_id"] and response["instructions"] is None:
        response["instructions"] = "Be brief."


def _untagged(event: Json) -> None:
    if event.get("stream_id") == "source":
        del event["stream_id"]


def _untagged_error(event: Json) -> None:
    if event["type"] == "error" and event.get("stream_id") == "bad":
        del event["stream_id"]


def _tagged(event: Json) -> None:
    if event["type"] != "error":
        event.setdefault("stream_id", "default")


def _code(old: str, new: str) -> Callable[[], Link]:
    def change(event: Json) -> None:
        if event["error"].get("code") == old:
            event["error"]["code"] = new

    return each(on("error")(change))


def _unqueued(event: Json) -> None:
    event.pop("event_id", None)


def _failing_steer(event: Json) -> Iterable[Json]:
    return [error("response_not_found")]


class _OutputOfWarmUp(Link):
    """Warm-ups have an output item."""

    def __init__(self) -> None:
        self._count = 0

    def server(self, event: Json) -> Iterable[Json]:
        shown = event.get("response") or {}
        if event["type"] != "response.completed" or shown["usage"]["output_tokens"]:
            return [event]
        self._count += 1
        item = {"type": "compaction", "id": f"cmp_{self._count}", "encrypted_content": "x"}
        about: Json = {"output_index": 0, "item": item, "sequence_number": 0}
        if "stream_id" in event:
            about["stream_id"] = event["stream_id"]
        return [
            {"type": "response.output_item.added", **about},
            {"type": "response.output_item.done", **about},
            {**event, "response": {**shown, "output": [item]}},
        ]


class _NoEviction(Link):
    """A failed continuation leaves its parent where it was: the server does not see it."""

    def client(self, event: Json) -> tuple[list[Json], list[Json]]:
        if event.get("previous_response_id") and _ORPHAN in str(event.get("input")):
            lane = event.get("stream_id")
            return [], [error("invalid_value", lane)]
        return [event], []


def _has_image(event: Json) -> bool:
    return "input_image" in str(event.get("input"))


class _RefusesImages(Link):
    """Images are refused, and nobody is told where the image is."""

    def client(self, event: Json) -> tuple[list[Json], list[Json]]:
        return ([], [error("unsupported_value")]) if _has_image(event) else ([event], [])


class _LosesImages(Link):
    """Images are thrown away before anybody counts them."""

    def client(self, event: Json) -> tuple[list[Json], list[Json]]:
        if not _has_image(event):
            return [event], []
        items = [
            {**item, "content": [part for part in item["content"] if "text" in part]}
            if "content" in item and not isinstance(item["content"], str)
            else item
            for item in event["input"]
        ]
        return [{**event, "input": items}], []


class _ForkEvicts(Link):
    """A failed fork takes the parent from its lane."""

    def __init__(self) -> None:
        self._gone: set[object] = set()

    def client(self, event: Json) -> tuple[list[Json], list[Json]]:
        parent, lane = event.get("previous_response_id"), event.get("stream_id")
        if lane == "fork" and _ORPHAN in str(event.get("input")):
            self._gone.add(parent)
        elif parent in self._gone:
            return [], [error("previous_response_not_found", lane)]
        return [event], []


class _LateFirst(Link):
    """The first of several creates waits for the second."""

    def __init__(self) -> None:
        self._held: dict[object, Json] = {}

    def client(self, event: Json) -> tuple[list[Json], list[Json]]:
        number, lane = (event.get("metadata") or {}).get("number"), event.get("stream_id")
        if number == "1":
            self._held[lane] = event
            return [], []
        if number == "2":
            return [event, self._held.pop(lane)], []
        return [event], []


class _Serial(Link):
    """A lane waits for the other lanes: `short` is sent on when `long` is over."""

    def __init__(self) -> None:
        self._held: list[Json] = []
        self._is_over = False

    def client(self, event: Json) -> tuple[list[Json], list[Json]]:
        if event.get("stream_id") == "long":
            # Shortened: what is shown is the order, not the time.
            event["metadata"] = {"turnwire.sim": '{"tokens": 120}'}
        if event.get("stream_id") == "short":
            return [{**event, "stream_id": "long"}], []
        return [event], []

    def server(self, event: Json) -> Iterable[Json]:
        if event.get("stream_id") != "long":
            return [event]
        lane = "short" if self._is_over else "long"
        self._is_over = self._is_over or event["type"] in _TERMINALS
        return [{**event, "stream_id": lane}]


class _DeafToCancel(Link):
    """`response.cancel` is not heard."""

    def client(self, event: Json) -> tuple[list[Json], list[Json]]:
        return ([] if event["type"] == "response.cancel" else [event]), []


class _RunsTwice(Link):
    """A repeated `event_id` runs again, under its own name."""

    def __init__(self) -> None:
        self._seen: set[object] = set()

    def client(self, event: Json) -> tuple[list[Json], list[Json]]:
        name = event.get("event_id")
        if name is not None and name in self._seen:
            event = {**event, "event_id": f"{name}-again"}
        self._seen.add(name)
        return [event], []


class _Hangs(Link):
    """The connection is closed after an error event."""

    def ends_after(self, event: Json) -> bool:
        return bool(event["type"] == "error")


class _Chatty(Link):
    """An error event that answers nothing follows the end of a turn."""

    def server(self, event: Json) -> Iterable[Json]:
        if event["type"] in _TERMINALS and event.get("stream_id") == "fork":
            return [event, error("server_error", "fork")]
        return [event]


def _after_end(event: Json) -> Iterable[Json]:
    late = {
        "type": "response.output_text.delta",
        "sequence_number": 0,
        "item_id": "msg_late",
        "output_index": 0,
        "content_index": 0,
        "delta": "late",
        "logprobs": [],
    }
    return [event, late]


def _early_keepalive(event: Json) -> Iterable[Json]:
    return [{"type": "keepalive", "sequence_number": 0}, event]


def _keepalive(event: Json) -> Iterable[Json]:
    return [event, {"type": "keepalive", "sequence_number": 0}]


# Bodies over HTTP.


def _body(
    when: Callable[[str, str, int, Any], bool], change: Callable[[Any], Any], status: int = 0
) -> Callable[[str, str, int, Any], tuple[int, Any]]:
    """Return a change of the bodies that `when` names; `status` replaces theirs unless 0."""

    def apply(method: str, path: str, was: int, body: Any) -> tuple[int, Any]:
        if not when(method, path, was, body):
            return was, body
        changed = change(body)
        return status or was, body if changed is None else changed

    return apply


def _is_missing(method: str, path: str, status: int, body: Any) -> bool:
    return bool((body.get("error") or {}).get("code") == "previous_response_not_found")


def _is_error(method: str, path: str, status: int, body: Any) -> bool:
    return status >= 400


def _is_get(method: str, path: str, status: int, body: Any) -> bool:
    return method == "GET" and status == 200 and "/responses/resp_" in path


def _is_list(method: str, path: str, status: int, body: Any) -> bool:
    return path.endswith("/input_items") and status == 200


FAULTS: tuple[Fault, ...] = (
    # Order.
    Fault("gap in the numbers", "sequence.numbers", "sse", each(_shift, renumbers=False)),
    Fault("numbers from 1", "sequence.numbers", "sse", each(_from_one, renumbers=False)),
    Fault("delta without number", "sequence.numbers", "sse", each(_unnumbered, renumbers=False)),
    Fault("no created", "order.created_first", "sse", drop("response.created")),
    Fault(
        "created twice",
        "order.created_once",
        "sse",
        each(on("response.created")(lambda event: [event, event])),
    ),
    Fault("no in_progress", "order.in_progress", "sse", drop("response.in_progress")),
    Fault(
        "two terminal events",
        "order.terminal",
        "sse",
        each(on(*_TERMINALS)(lambda event: [event, event])),
    ),
    Fault(
        "two terminal events on a socket",
        "order.terminal",
        "websocket",
        each(on(*_TERMINALS)(lambda event: [event, event])),
    ),
    Fault("delta after the end", "order.terminal", "sse", each(on(*_TERMINALS)(_after_end))),
    Fault("no terminal event", "order.ends", "sse", drop("response.completed")),
    Fault(
        "keepalive before created",
        "keepalive.after_created",
        "sse",
        each(on("response.created")(_early_keepalive), renumbers=False),
    ),
    # Responses.
    Fault(
        "status of created",
        "response.status",
        "sse",
        put("response.created", response__status="completed"),
    ),
    Fault(
        "output null at first",
        "response.fresh",
        "sse",
        put("response.created", response__output=None),
    ),
    Fault(
        "id of in_progress",
        "response.id",
        "sse",
        put("response.in_progress", response__id="resp_other"),
    ),
    Fault(
        "model changes",
        "response.constant",
        "sse",
        put("response.completed", response__model="other"),
    ),
    Fault("created_at is a float", "response.members", "sse", in_response(_later)),
    Fault("a penalty is missing", "response.members", "sse", in_response(_without_penalty)),
    Fault("tools without strict", "response.members", "sse", in_response(_without_strict)),
    Fault("metadata is lost", "response.echo", "sse", in_response(_forgetful)),
    # Items.
    Fault("output_index reused", "item.index", "sse", each(_reused_index)),
    Fault("item not added", "item.open", "sse", drop("response.output_item.added")),
    Fault(
        "item_id of deltas",
        "item.identity",
        "sse",
        put("response.output_text.delta", item_id="msg_other"),
    ),
    Fault(
        "item id changes",
        "item.identity",
        "sse",
        put("response.output_item.done", item__id="msg_other"),
    ),
    Fault("item ids used again", "item.ids", "websocket", each(_one_message_id)),
    Fault(
        "item added as completed",
        "item.fresh",
        "sse",
        put("response.output_item.added", item__status="completed"),
    ),
    Fault("item not done", "item.done", "sse", drop("response.output_item.done")),
    Fault("item done in progress", "item.status", "sse", in_items(_unfinished)),
    Fault("item has another text", "item.text", "sse", in_items(_say_more)),
    # Parts, texts and calls.
    Fault("part not added", "part.added", "sse", drop("response.content_part.added")),
    Fault(
        "part added with text",
        "part.fresh",
        "sse",
        put("response.content_part.added", part__text="Hi"),
    ),
    Fault("part not done", "part.done", "sse", drop("response.content_part.done")),
    Fault(
        "part has another text",
        "part.text",
        "sse",
        put("response.content_part.done", part__text="Hi"),
    ),
    Fault("text not done", "text.done", "sse", drop("response.output_text.done")),
    Fault(
        "done is not what deltas said",
        "text.deltas",
        "sse",
        put("response.output_text.done", text="Hi"),
    ),
    Fault(
        "logprobs missing",
        "text.logprobs",
        "sse",
        put("response.output_text.delta", logprobs=None),
    ),
    Fault("call not done", "call.done", "sse", drop("response.function_call_arguments.done")),
    Fault(
        "arguments are not what deltas said",
        "call.deltas",
        "sse",
        put("response.function_call_arguments.done", arguments="{}"),
    ),
    Fault("torn character", "sequence.characters", "sse", each(_torn)),
    # Ends.
    Fault(
        "output null at the end",
        "terminal.output",
        "sse",
        put(_TERMINALS, response__output=None),
    ),
    Fault("output lacks an item", "terminal.output", "sse", each(_lost_item)),
    Fault("usage missing", "terminal.usage", "sse", put(_TERMINALS, response__usage=None)),
    Fault("wrong total", "usage.sums", "sse", each(_wrong_total)),
    Fault("more cached than read", "usage.sums", "sse", each(_doubtful)),
    Fault(
        "completed without a time",
        "terminal.details",
        "sse",
        put("response.completed", response__completed_at=None),
    ),
    Fault(
        "completed with a cut item",
        "terminal.whole",
        "http",
        body=_body(
            lambda method, path, status, body: body.get("status") == "completed",
            lambda body: [_cut(item) for item in body["output"]] and None,
        ),
    ),
    Fault(
        "another reason",
        "sequence.incomplete",
        "sse",
        put("response.incomplete", response__incomplete_details={"reason": "max_messages"}),
    ),
    # Framing.
    Fault("[DONE] missing", "sse.done", "sse", framing="no_done"),
    Fault("event is not the type", "sse.event_name", "sse", framing="event_name"),
    Fault("id lines", "sse.no_id", "sse", framing="id_line"),
    Fault("type of the stream", "sse.content_type", "sse", framing="content_type"),
    Fault("event without a type", "frame.json", "sse", framing="garbage"),
    Fault("binary frames", "frame.text", "websocket", framing="binary"),
    Fault("selects the key", "websocket.subprotocol", "websocket"),
    # Judges from outside.
    Fault(
        "unknown tool_choice",
        "types.official",
        "sse",
        in_response(lambda response: response.update(tool_choice="sometimes")),
    ),
    Fault("null in reasoning", "types.open_responses", "sse", in_items(_null_seal)),
    Fault(
        "keepalive for Open Responses",
        "types.open_responses_only",
        "sse",
        each(on("response.in_progress")(_keepalive)),
        profile="openresponses",
    ),
    # Errors and bodies.
    Fault(
        "404 for a missing parent",
        "chain.missing",
        "http",
        body=_body(_is_missing, lambda body: None, 404),
    ),
    Fault(
        "another code for a missing parent",
        "chain.missing",
        "http",
        body=_body(_is_missing, lambda body: body["error"].update(code="not_found")),
    ),
    Fault(
        "error body without a message",
        "error.body",
        "http",
        body=_body(_is_error, lambda body: body["error"].pop("message") and None),
    ),
    Fault("JSON as text", "http.content_type", "http", content_type="text/plain"),
    Fault(
        "404 instead of 426",
        "http.get_426",
        "http",
        body=_body(lambda method, path, status, body: status == 426, lambda body: None, 404),
    ),
    Fault(
        "a stored response changes",
        "store.get",
        "http",
        body=_body(_is_get, lambda body: body.update(metadata={})),
    ),
    Fault(
        "deleted is false",
        "store.delete",
        "http",
        body=_body(
            lambda method, path, status, body: method == "DELETE" and status == 200,
            lambda body: body.update(deleted=False),
        ),
    ),
    Fault(
        "no more pages",
        "store.input_items",
        "http",
        body=_body(_is_list, lambda body: body.update(has_more=False)),
    ),
    Fault(
        "wrong count",
        "tokens.count",
        "http",
        body=_body(
            lambda method, path, status, body: path.endswith("/input_tokens"),
            lambda body: body.update(input_tokens=1),
        ),
    ),
    Fault("error without status", "error.frame", "websocket", put("error", status=None)),
    Fault("numbered error", "error.unnumbered", "websocket", put("error", sequence_number=0)),
    Fault("error for nothing", "error.unprovoked", "websocket", _Chatty),
    Fault("closed after an error", "connection.open", "websocket", _Hangs),
    # Lanes, cache, warm-ups.
    Fault("lane events without stream_id", "lane.tag", "websocket", each(_untagged)),
    Fault("lane error without stream_id", "lane.tag", "websocket", each(_untagged_error)),
    Fault("stream_id on the default lane", "lane.tag", "websocket", each(_tagged)),
    Fault("lane out of order", "lanes.fifo", "websocket", _LateFirst),
    Fault("lanes wait for each other", "lanes.parallel", "websocket", _Serial),
    Fault(
        "another code for the 33rd lane",
        "lanes.limit",
        "websocket",
        _code("websocket_stream_limit_reached", "rate_limit_exceeded"),
    ),
    Fault(
        "another code for a bad lane",
        "lanes.names",
        "websocket",
        _code("invalid_stream_id", "invalid_value"),
    ),
    Fault("no eviction", "evict.failed_continuation", "websocket", _NoEviction),
    Fault("images refused without a path", "input.image", "websocket", _RefusesImages),
    Fault("images lost", "input.image", "websocket", _LosesImages),
    Fault("a fork evicts", "fork.failed", "websocket", _ForkEvicts),
    Fault("instructions inherited", "chain.settings", "websocket", in_response(_inherited)),
    Fault("warm-up with output", "warm_up.empty", "websocket", _OutputOfWarmUp),
    # Extensions.
    Fault("cancel is not heard", "cancel.running", "websocket", _DeafToCancel),
    Fault(
        "event_id not echoed on errors", "event_id.echo", "websocket", each(on("error")(_unqueued))
    ),
    Fault("event_id runs twice", "event_id.once", "websocket", _RunsTwice),
    Fault(
        "steer answered by an error",
        "events.steer",
        "websocket",
        each(on("response.steer.failed")(_failing_steer)),
    ),
    Fault("pause without usage", "rollout.pause", "websocket", put("response.done", usage=None)),
    Fault(
        "session without an id",
        "session.start",
        "websocket",
        put("turnwire.session.started", session_id=""),
    ),
    # gRPC.
    Fault("gRPC: gap", "sequence.numbers", "grpc", each(_shift, renumbers=False)),
    Fault("gRPC: part not done", "part.done", "grpc", drop("response.content_part.done")),
    Fault("gRPC: lane without stream_id", "lane.tag", "grpc", each(_untagged)),
    Fault("gRPC: error without status", "error.frame", "grpc", put("error", status=0)),
    Fault("gRPC: ended after an error", "connection.open", "grpc", _Hangs),
)
"""All seeded faults."""
