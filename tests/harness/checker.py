"""Checks every event of a connection against the public sequences and their invariants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from turnwire.v1 import content_pb2, item_pb2, response_pb2
from turnwire.v1.server_event_pb2 import ServerEvent

__all__ = ["SequenceError", "StreamChecker"]

_TERMINAL = {
    "response_completed": {response_pb2.RESPONSE_STATUS_COMPLETED},
    "response_failed": {response_pb2.RESPONSE_STATUS_FAILED},
    "response_incomplete": {
        response_pb2.RESPONSE_STATUS_INCOMPLETE,
        response_pb2.RESPONSE_STATUS_CANCELLED,
    },
}
_OUTSIDE = {"error", "turnwire_session_started", "turnwire_session_resumed", "turnwire_go_away"}
_STEERS = {"response_steer_accepted", "response_steer_pending", "response_steer_failed"}
_ASIDE = {*_STEERS, "response_inject_failed"}
# Arm of the deltas -> arm and field of what says that they are whole.
_DELTAS = {
    "response_output_text_delta": ("response_output_text_done", "text"),
    "response_reasoning_text_delta": ("response_reasoning_text_done", "text"),
    "response_function_call_arguments_delta": (
        "response_function_call_arguments_done",
        "arguments",
    ),
    "response_custom_tool_call_input_delta": ("response_custom_tool_call_input_done", "input"),
    "response_refusal_delta": ("response_refusal_done", "refusal"),
    "response_reasoning_summary_text_delta": ("response_reasoning_summary_text_done", "text"),
}
_DELTA_OF_ITEM = {
    "message": "response_output_text_delta",
    "reasoning": "response_reasoning_text_delta",
    "function_call": "response_function_call_arguments_delta",
    "custom_tool_call": "response_custom_tool_call_input_delta",
}
_WITH_PARTS = {"message", "reasoning"}
_WITHOUT_TEXT = {"compaction", "configuration_update"}
_PARTS = {
    "response_content_part_added",
    "response_content_part_done",
    "response_reasoning_summary_part_added",
    "response_reasoning_summary_part_done",
}
_ENDED = {item_pb2.ITEM_STATUS_COMPLETED, item_pb2.ITEM_STATUS_INCOMPLETE}


class SequenceError(AssertionError):
    """An event that must not be there, or not like that."""


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise SequenceError(problem)


@dataclass(slots=True)
class _OpenItem:
    arm: str
    id: str
    call_id: str
    name: str
    index: int
    text: str = ""
    has_part: bool = False
    is_whole: bool = False
    part_done: bool = False
    is_refusal: bool = False
    is_summary: bool = False
    is_compacting: bool = False

    @property
    def delta(self) -> str:
        if self.is_refusal:
            return "response_refusal_delta"
        if self.is_summary:
            return "response_reasoning_summary_text_delta"
        return _DELTA_OF_ITEM[self.arm]


@dataclass(slots=True)
class _OpenResponse:
    first: response_pb2.Response
    next_number: int
    is_running: bool = False
    is_paused: bool = False
    round_start: int = 0
    item: _OpenItem | None = None
    done: list[item_pb2.Item] = field(default_factory=list)


class StreamChecker:
    """Checks one connection; `feed` every event that it brings."""

    def __init__(self) -> None:
        self._open: dict[str | None, _OpenResponse] = {}
        self._ids: set[str] = set()
        self._ended: dict[str, int] = {}
        """Response id -> the number after its terminal event's."""
        self._steers: dict[str, set[str]] = {}
        """Steer id -> the arms that were seen of it."""

    @property
    def is_idle(self) -> bool:
        """Whether no response is open."""
        return not self._open

    def feed(self, event: ServerEvent) -> None:
        """Take the next event.

        Raises:
            SequenceError: It breaks a rule.
        """
        arm = event.WhichOneof("event")
        _require(arm is not None, "an event without an arm")
        assert arm is not None
        lane = event.stream_id if event.HasField("stream_id") else None
        _require(lane != "", "the default lane's events carry no stream_id")
        if arm in _OUTSIDE:
            self._outside(arm, event)
            return
        _require(event.HasField("sequence_number"), f"{arm} without a sequence_number")
        response = self._open.get(lane)
        if arm in _STEERS:
            self._steer(arm, getattr(event, arm))
        if arm in _ASIDE and (response is None or _about(event) != response.first.id):
            self._aside(arm, event)
            return
        if arm == "response_created":
            _require(response is None, f"a second response began on lane {lane}")
            self._open[lane] = self._begin(event)
            return
        _require(response is not None, f"{arm} on lane {lane}, where no response is open")
        assert response is not None
        _require(
            event.sequence_number == response.next_number,
            f"{arm} has number {event.sequence_number} instead of {response.next_number}",
        )
        response.next_number += 1
        if arm in _ASIDE or arm == "keepalive":
            return
        if arm == "response_in_progress":
            self._in_progress(event.response_in_progress.response, response)
        elif arm in _TERMINAL:
            self._end(arm, getattr(event, arm).response, response)
            self._ended[response.first.id] = response.next_number
            del self._open[lane]
        elif arm == "response_done":
            self._pause(event.response_done, response)
        else:
            _require(response.is_running, f"{arm} before response.in_progress")
            self._output(arm, event, response)

    def finish(self) -> None:
        """Say that no event follows.

        Raises:
            SequenceError: A response is open.
        """
        _require(self.is_idle, f"no terminal event on lanes {list(self._open)}")

    # Private.

    def _outside(self, arm: str, event: ServerEvent) -> None:
        if arm != "error":
            return
        _require(not event.HasField("sequence_number"), "an error frame with a sequence_number")
        body = event.error.error
        _require(400 <= event.error.status < 600, "an error frame without a status")
        _require(body.type and body.code and body.message, "an error without type, code, message")
        _require(event.ByteSize() < 4096, "an error frame over 4 KiB")

    def _steer(self, arm: str, body: Any) -> None:
        """Check the life of a steer: accepted once, then pending at most once, then failed."""
        steer = body.steer
        if arm == "response_steer_failed":
            _require(body.error.code and body.error.message, "a failed steer without an error")
            _require(body.error.type == "invalid_request_error", "a failed steer of another type")
        if not steer.HasField("id"):
            _require(arm == "response_steer_failed", f"{arm} without an id")
            return
        seen = self._steers.setdefault(steer.id, set())
        _require(arm not in seen, f"{arm} twice for one steer")
        is_known = "response_steer_accepted" in seen
        _require(is_known == (arm != "response_steer_accepted"), f"{arm} of an unknown steer")
        _require("response_steer_failed" not in seen, f"{arm} after the steer failed")
        if arm == "response_steer_pending":
            _require(body.reason == "waiting_for_required_input", "pending for another reason")
            _require(body.required_input, "pending without required input")
        seen.add(arm)

    def _aside(self, arm: str, event: ServerEvent) -> None:
        """Check an answer that is not about the response that is open on its lane."""
        number = self._ended.get(_about(event))
        if number is None or event.sequence_number != number:
            _require(event.sequence_number == 0, f"{arm} with a number and without a response")
        else:
            self._ended[_about(event)] = number + 1

    def _pause(self, body: Any, response: _OpenResponse) -> None:
        _require(response.is_running, "response.done before response.in_progress")
        _require(body.response_id == response.first.id, "response.done of another response")
        _require(response.item is None, "response.done while an item is open")
        _require(not response.is_paused, "response.done twice")
        required = {getattr(stub, stub.WhichOneof("input")).call_id for stub in body.required_input}
        calls = {
            getattr(item, item.WhichOneof("item") or "").call_id
            for item in response.done[response.round_start :]
            if (item.WhichOneof("item") or "").endswith("_call")
        }
        _require(required and required == calls, "response.done does not name the open calls")
        _require(body.HasField("usage"), "response.done without usage")
        response.is_paused, response.round_start = True, len(response.done)

    def _begin(self, event: ServerEvent) -> _OpenResponse:
        response = event.response_created.response
        _require(event.sequence_number == 0, "response.created must have number 0")
        _require(response.id.startswith("resp_"), "a response without an id")
        _require(response.id not in self._ids, "a response id for the second time")
        _require(response.object == "response" and response.model, "a response without a model")
        _require(response.HasField("created_at"), "a response without created_at")
        self._check_fresh(response)
        self._ids.add(response.id)
        return _OpenResponse(response, 1)

    def _check_fresh(self, response: response_pb2.Response) -> None:
        _require(
            response.status == response_pb2.RESPONSE_STATUS_IN_PROGRESS, "not in progress at first"
        )
        _require(not response.output, "output at first")
        for name in ("usage", "error", "incomplete_details", "completed_at"):
            _require(not response.HasField(name), f"{name} at first")

    def _in_progress(self, shown: response_pb2.Response, response: _OpenResponse) -> None:
        _require(shown.id == response.first.id, "another response id")
        self._check_fresh(shown)
        response.is_running = True

    def _output(self, arm: str, event: ServerEvent, response: _OpenResponse) -> None:
        body = getattr(event, arm)
        if arm == "response_output_item_added":
            response.is_paused = False
            self._added(body, response)
            return
        item = response.item
        _require(item is not None, f"{arm} without an open item")
        assert item is not None
        _require(body.output_index == item.index, f"{arm} with another output_index")
        if arm == "response_output_item_done":
            self._done(body.item, item, response)
            return
        _require(body.item_id == item.id, f"{arm} with another item_id")
        if item.arm in _WITHOUT_TEXT:
            _require(item.arm == "compaction", f"{arm} inside an item of type {item.arm}")
            _require(arm == "response_compaction_compacting", f"{arm} inside a compaction")
            _require(not item.is_compacting, "compacting twice")
            item.is_compacting = True
            return
        expected = item.delta
        done_arm, done_field = _DELTAS[expected]
        if arm == expected:
            _require(item.has_part or item.arm not in _WITH_PARTS, "a delta before its part")
            _require(not item.is_whole, "a delta after its done")
            _require(body.delta, "an empty delta")
            item.text += body.delta
        elif arm == done_arm:
            _require(item.has_part or item.arm not in _WITH_PARTS, "a done before its part")
            _require(not item.is_whole, "a second done")
            _require(getattr(body, done_field) == item.text, "done is not what the deltas said")
            item.is_whole = True
        elif arm in _PARTS:
            self._part(arm, body, item)
        else:
            raise SequenceError(f"{arm} inside an item of type {item.arm}")

    def _part(self, arm: str, body: object, item: _OpenItem) -> None:
        is_summary = "summary" in arm
        part = body.part  # type: ignore[attr-defined]
        _require(not is_summary or item.arm == "reasoning", "a summary of something else")
        index = body.summary_index if is_summary else body.content_index  # type: ignore[attr-defined]
        _require(index == 0, "another index of the part")
        if arm.endswith("_added"):
            _require(item.arm in _WITH_PARTS and not item.has_part, "a part too many")
            item.is_summary = is_summary
            _require(_part_text(part, item) == "", "text in a part that was added")
            item.has_part = True
            item.is_refusal = part.WhichOneof("part") == "refusal"
            return
        _require(item.is_whole and not item.part_done, "a part done too early or twice")
        _require(is_summary == item.is_summary, "a part of another kind")
        _require(_part_text(part, item) == item.text, "the part has another text")
        is_refusal = part.WhichOneof("part") == "refusal"
        _require(is_refusal == item.is_refusal, "the part changed its type")
        item.part_done = True

    def _added(self, body: object, response: _OpenResponse) -> None:
        index, shown = body.output_index, body.item  # type: ignore[attr-defined]
        _require(response.item is None, "an item before the last one was done")
        _require(index == len(response.done), "output_index is not the next one")
        arm = shown.WhichOneof("item")
        _require(arm in _DELTA_OF_ITEM or arm in _WITHOUT_TEXT, f"an item of type {arm}")
        value = getattr(shown, arm)
        _require(value.id and value.id not in self._ids, "an item id that is missing or not new")
        self._ids.add(value.id)
        if arm in _WITHOUT_TEXT:
            sealed = arm == "compaction" and value.encrypted_content
            _require(not sealed, "a new compaction with its summary")
            response.item = _OpenItem(arm, value.id, "", "", index)
            return
        _require(value.status == item_pb2.ITEM_STATUS_IN_PROGRESS, "a new item not in progress")
        _require(_item_text(shown) == "", "text in an item that was added")
        call_id = name = ""
        if arm not in _WITH_PARTS:
            call_id, name = value.call_id, value.name
            _require(call_id and call_id != value.id, "a call without a call_id of its own")
            _require(call_id not in self._ids, "a call_id for the second time")
            self._ids.add(call_id)
            _require(name, "a call without a name")
        response.item = _OpenItem(arm, value.id, call_id, name, index)

    def _done(self, shown: item_pb2.Item, item: _OpenItem, response: _OpenResponse) -> None:
        _require(shown.WhichOneof("item") == item.arm, "an item changed its type")
        value = getattr(shown, item.arm)
        _require(value.id == item.id, "an item changed its id")
        if item.arm in _WITHOUT_TEXT:
            if item.arm == "compaction":
                _require(item.is_compacting, "a compaction done that was not announced")
                _require(value.encrypted_content, "a compaction without its summary")
            response.done.append(shown)
            response.item = None
            return
        _require(item.is_whole, "an item done before its text")
        if item.arm in _WITH_PARTS:
            _require(item.part_done, "an item done before its part")
        else:
            _require((value.call_id, value.name) == (item.call_id, item.name), "a call changed")
        _require(value.status in _ENDED, "an item done and not ended")
        _require(_item_text(shown) == item.text, "the item has another text than its deltas")
        response.done.append(shown)
        response.item = None

    def _end(self, arm: str, shown: response_pb2.Response, response: _OpenResponse) -> None:
        _require(response.is_running, f"{arm} before response.in_progress")
        _require(response.item is None, f"{arm} while an item is open")
        _require(shown.status in _TERMINAL[arm], f"{arm} with status {shown.status}")
        first = response.first
        for name in ("id", "created_at", "model", "store", "previous_response_id", "metadata"):
            _require(getattr(shown, name) == getattr(first, name), f"{name} changed")
        _require(list(shown.output) == response.done, f"{arm} shows another output than was sent")
        cut = [
            index
            for index, item in enumerate(shown.output)
            if getattr(getattr(item, item.WhichOneof("item") or ""), "status", None)
            == item_pb2.ITEM_STATUS_INCOMPLETE
        ]
        _require(cut in ([], [len(shown.output) - 1]), "an incomplete item before the last one")
        completed = shown.status == response_pb2.RESPONSE_STATUS_COMPLETED
        _require(not (cut and completed), "an incomplete item in a completed response")
        _require(shown.HasField("completed_at") == completed, "completed_at")
        failed = shown.status == response_pb2.RESPONSE_STATUS_FAILED
        _require(shown.HasField("error") == failed, "error")
        _require(not failed or (shown.error.code and shown.error.message), "an empty error")
        incomplete = shown.status == response_pb2.RESPONSE_STATUS_INCOMPLETE
        _require(shown.HasField("incomplete_details") == incomplete, "incomplete_details")
        _require(shown.HasField("usage"), f"{arm} without usage")
        usage = shown.usage
        _require(usage.total_tokens == usage.input_tokens + usage.output_tokens, "usage: total")
        _require(
            usage.input_tokens_details.cached_tokens <= usage.input_tokens, "usage: cached_tokens"
        )
        _require(
            usage.output_tokens_details.reasoning_tokens <= usage.output_tokens,
            "usage: reasoning_tokens",
        )


def _about(event: ServerEvent) -> str:
    """Return the id of the response that the answer to a steer or an inject is about."""
    arm = event.WhichOneof("event") or ""
    if arm in _STEERS:
        return str(getattr(event, arm).steer.previous_response_id)
    return event.response_inject_failed.response_id


def _part_text(part: content_pb2.ContentPart, item: _OpenItem) -> str:
    if item.arm == "message" and part.WhichOneof("part") == "refusal":
        return part.refusal.refusal
    expected = "output_text" if item.arm == "message" else "reasoning_text"
    if item.is_summary:
        expected = "summary_text"
    _require(part.WhichOneof("part") == expected, f"a part that is not {expected}")
    return str(getattr(part, expected).text)


def _item_text(item: item_pb2.Item) -> str:
    match item.WhichOneof("item"):
        case "message":
            return "".join(
                part.refusal.refusal or part.output_text.text
                for part in item.message.content.parts.parts
            )
        case "reasoning":
            texts = [part.reasoning_text.text for part in item.reasoning.content]
            return "".join(texts + [part.summary_text.text for part in item.reasoning.summary])
        case "function_call":
            return item.function_call.arguments
        case _:
            return item.custom_tool_call.input
