"""What tests read off server events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from turnwire import _codec
from turnwire.v1.item_pb2 import FunctionCallItem, Item
from turnwire.v1.response_pb2 import Response, ResponseStatus
from turnwire.v1.server_event_pb2 import ServerEvent

__all__ = [
    "arm_of",
    "arms",
    "calls_of",
    "code_of",
    "deltas_of",
    "failure_of",
    "items_json",
    "public",
    "response_of",
    "status_of",
    "text_of",
]


def arm_of(event: ServerEvent) -> str:
    """Return the event's arm."""
    return event.WhichOneof("event") or ""


def arms(events: Sequence[ServerEvent], *, merged: bool = True) -> list[str]:
    """Return the arms of the events; runs of deltas are one if `merged`."""
    names: list[str] = []
    for event in events:
        name = arm_of(event)
        if not (merged and names and names[-1] == name and name.endswith("_delta")):
            names.append(name)
    return names


def response_of(events: Sequence[ServerEvent]) -> Response:
    """Return the response of the terminal event, which is the last."""
    arm = arm_of(events[-1])
    assert arm in ("response_completed", "response_incomplete", "response_failed"), events[-1]
    response = getattr(events[-1], arm).response
    assert isinstance(response, Response)
    return response


def status_of(response: Response) -> str:
    """Return the public status."""
    return ResponseStatus.Name(response.status).removeprefix("RESPONSE_STATUS_").lower()


def text_of(response: Response) -> str:
    """Return the text of all messages."""
    texts = []
    for item in response.output:
        if item.WhichOneof("item") == "message":
            texts += [part.output_text.text for part in item.message.content.parts.parts]
    return "".join(texts)


def deltas_of(events: Sequence[ServerEvent], kind: str = "response_output_text_delta") -> str:
    """Return what the deltas of a kind say together."""
    return "".join(getattr(event, kind).delta for event in events if arm_of(event) == kind)


def calls_of(response: Response) -> list[FunctionCallItem]:
    """Return the function calls."""
    return [
        item.function_call for item in response.output if item.WhichOneof("item") == "function_call"
    ]


def code_of(event: ServerEvent) -> str:
    """Return the code of an `error` event."""
    assert arm_of(event) == "error", event
    return event.error.error.code


def failure_of(event: ServerEvent) -> tuple[str, int, str | None]:
    """Return code, status and param of an `error` event."""
    assert arm_of(event) == "error", event
    body = event.error.error
    return body.code, event.error.status, body.param if body.HasField("param") else None


def public(message: Any) -> Any:
    """Return a message as plain public JSON."""
    return orjson.loads(_codec.dumps(message))


def items_json(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return items as the public JSON that a client would send back."""
    return [public(item) for item in items]
