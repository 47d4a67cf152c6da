"""The items of one response as its events tell them: a small state machine per item.

After a violation the machine goes on from what the server said, so that one fault is one finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from turnwire_server.conformance.checks import Json, bounded
from turnwire_server.conformance.findings import Findings

__all__ = ["ItemTracker"]

PartKind = Literal["content", "summary"]


@dataclass(frozen=True, slots=True)
class _Stream:
    """A kind of text that comes in deltas."""

    where: PartKind | None
    """Which list of the item it is a part of; None for the call itself."""
    member: str
    """Where the whole text is, in the `done` event and in the part or the item."""


_STREAMS: Final = {
    "response.output_text": _Stream("content", "text"),
    "response.refusal": _Stream("content", "refusal"),
    "response.reasoning_text": _Stream("content", "text"),
    "response.reasoning": _Stream("content", "text"),
    "response.reasoning_summary_text": _Stream("summary", "text"),
    "response.function_call_arguments": _Stream(None, "arguments"),
    "response.custom_tool_call_input": _Stream(None, "input"),
}
_PARTS: Final[dict[str, PartKind]] = {
    "response.content_part": "content",
    "response.reasoning_summary_part": "summary",
}
_CALL_TEXT: Final = {"function_call": "arguments", "custom_tool_call": "input"}
_WITH_STATUS: Final = {"message", "function_call"}
_TEXT_MEMBERS: Final = ("text", "refusal")


@dataclass(slots=True)
class _Text:
    said: str = ""
    is_done: bool = False


@dataclass(slots=True)
class _Part:
    text: _Text = field(default_factory=_Text)
    is_done: bool = False


@dataclass(slots=True)
class _Item:
    type: str
    id: str
    call_id: object
    name: object
    index: int
    text: _Text = field(default_factory=_Text)
    parts: dict[tuple[PartKind, int], _Part] = field(default_factory=dict)
    done: Json | None = None


class ItemTracker:
    """Follows the items of one response."""

    def __init__(self, findings: Findings, used_ids: set[str]) -> None:
        """Begin a response.

        Args:
            findings: Where to say what is wrong.
            used_ids: Ids and call ids of items that the connection has seen; added to.
        """
        self._findings = findings
        self._used_ids = used_ids
        self._items: list[_Item] = []

    @property
    def has_items(self) -> bool:
        """Whether an item was added."""
        return bool(self._items)

    def feed(self, event: Json) -> None:
        """Take an event that is about an item; others are ignored."""
        kind = event["type"]
        if kind == "response.output_item.added":
            self._added(event)
            return
        if "output_index" not in event:
            return
        item = self._find(event)
        if kind == "response.output_item.done":
            self._done(item, event)
            return
        shown = event.get("item_id", item.id)
        self._require(
            "item.identity",
            shown == item.id,
            f"`item_id` is {bounded(shown)}, not the item's",
            event,
        )
        prefix, _, suffix = kind.rpartition(".")
        if prefix in _PARTS:
            self._part(item, _PARTS[prefix], suffix, event)
        elif prefix in _STREAMS:
            self._text(item, _STREAMS[prefix], prefix, suffix, event)

    def finish(self, output: object, event: Json, *, must_be_done: bool) -> None:
        """Compare the items with the output of a terminal event.

        Args:
            output: Its `output`.
            event: The event.
            must_be_done: Whether every item must be over, as in a completed response.
        """
        if must_be_done:
            for item in self._items:
                reason = f"item {item.index} ({item.type}) was added and never done"
                self._require("item.done", item.done is not None, reason, event)
        if not self._require(
            "terminal.output", isinstance(output, list), "`output` is not a list", event
        ):
            return
        assert isinstance(output, list)
        ids = [shown.get("id") if isinstance(shown, dict) else None for shown in output]
        expected = [item.id for item in self._items]
        if not must_be_done:
            # What a failure broke off may be shown or not.
            open_ids = {item.id for item in self._items if item.done is None}
            expected = [identifier for identifier in expected if identifier not in open_ids]
            ids = [identifier for identifier in ids if identifier not in open_ids]
        if not self._require(
            "terminal.output", ids == expected, "`output` lists other items than were sent", event
        ):
            return
        done = {item.id: item.done for item in self._items if item.done is not None}
        for shown in output:
            same = shown["id"] not in done or shown == done[shown["id"]]
            reason = f"`output` shows {shown['id']} otherwise than its `output_item.done`"
            self._require("terminal.output", same, reason, event)

    # Private.

    def _require(self, rule: str, holds: object, reason: str, event: Json) -> bool:
        return self._findings.require(rule, holds, reason, event)

    def _find(self, event: Json) -> _Item:
        """Return the item that an event is about; one that was never added is made up."""
        shown = event.get("item")
        identifier = shown.get("id") if isinstance(shown, dict) else event.get("item_id")
        index = event["output_index"]
        found = next((item for item in self._items if item.id == identifier), None)
        if found is None:
            found = next((item for item in self._items if item.index == index), None)
        kind = event["type"]
        if found is None:
            self._require("item.open", False, f"`{kind}` for an item that was not added", event)
            found = _Item("", str(identifier), None, None, index)
            self._items.append(found)
            return found
        self._require("item.open", found.done is None, f"`{kind}` for an item that is done", event)
        reason = f"`output_index` is {bounded(index)}, not {found.index}"
        self._require("item.index", index == found.index, reason, event)
        return found

    def _added(self, event: Json) -> None:
        index, shown = event.get("output_index"), event.get("item")
        expected = len(self._items)
        reason = f"`output_index` is {bounded(index)} instead of {expected}"
        self._require("item.index", index == expected, reason, event)
        if not self._require("item.ids", isinstance(shown, dict), "`item` is not an object", event):
            return
        assert isinstance(shown, dict)
        item = _Item(
            str(shown.get("type")),
            str(shown.get("id")),
            shown.get("call_id"),
            shown.get("name"),
            index if isinstance(index, int) else expected,
        )
        self._items.append(item)
        self._new_id(shown.get("id"), "id", event)
        if item.type in _CALL_TEXT:
            self._new_id(item.call_id, "call_id", event)
            self._require("item.ids", item.name, "a call without a name", event)
        status = shown.get("status")
        needed = item.type in _WITH_STATUS or "status" in shown
        self._require(
            "item.fresh",
            status == "in_progress" or not needed,
            f"an item is added with status {bounded(status)}",
            event,
        )
        empty = not any(_texts(shown).values()) and not shown.get(_CALL_TEXT.get(item.type, ""))
        self._require("item.fresh", empty, "an item is added with text in it", event)
        if item.type == "message":
            content = shown.get("content")
            self._require("item.fresh", content == [], "a message is added with content", event)
        elif item.type == "reasoning":
            summary = shown.get("summary")
            self._require("item.fresh", summary == [], "reasoning without an empty summary", event)

    def _new_id(self, identifier: object, name: str, event: Json) -> None:
        if self._require(
            "item.ids", isinstance(identifier, str) and identifier, f"an item without {name}", event
        ):
            reason = f"the {name} {bounded(identifier)} was used before"
            self._require("item.ids", identifier not in self._used_ids, reason, event)
            self._used_ids.add(str(identifier))

    def _part(self, item: _Item, where: PartKind, suffix: str, event: Json) -> None:
        index = event.get("summary_index" if where == "summary" else "content_index")
        shown = event.get("part")
        text = _text_of(shown)
        if suffix == "added":
            expected = sum(1 for place, _ in item.parts if place == where)
            reason = f"a part at index {bounded(index)} instead of {expected}"
            self._require("part.added", index == expected, reason, event)
            self._require("part.fresh", text == "", "a part is added with text or without", event)
            item.parts[where, index if isinstance(index, int) else expected] = _Part()
            return
        part = self._open_part(item, where, index, event)
        self._require("part.done", not part.is_done, "a part is done for the second time", event)
        self._close_text("text.done", part.text, event)
        part.is_done = True
        self._require("part.text", text == part.text.said, "a part has another text", event)

    def _open_part(self, item: _Item, where: PartKind, index: object, event: Json) -> _Part:
        part = item.parts.get((where, index)) if isinstance(index, int) else None
        if not self._require(
            "part.added", part is not None, f"no part {bounded(index)} was added before", event
        ):
            part = item.parts[where, index if isinstance(index, int) else 0] = _Part()
        assert part is not None
        return part

    def _text(self, item: _Item, stream: _Stream, prefix: str, suffix: str, event: Json) -> None:
        done_rule, deltas_rule = "call.done", "call.deltas"
        text, part = item.text, None
        if stream.where is not None:
            done_rule, deltas_rule = "text.done", "text.deltas"
            index = event.get("summary_index" if stream.where == "summary" else "content_index")
            part = self._open_part(item, stream.where, index, event)
            text = part.text
        if prefix == "response.output_text":
            listed = isinstance(event.get("logprobs"), list)
            self._require("text.logprobs", listed, "no list `logprobs`", event)
        if suffix == "delta":
            self._require(done_rule, not text.is_done, "a delta after the `done` event", event)
            delta = event.get("delta")
            self._require(deltas_rule, isinstance(delta, str), "`delta` is not a string", event)
            text.said += str(delta)
            return
        self._require(done_rule, not text.is_done, "a second `done` event", event)
        if part is not None:
            self._require(done_rule, not part.is_done, "`done` after its part was done", event)
        text.is_done = True
        same = event.get(stream.member) == text.said
        self._require(deltas_rule, same, f"`{stream.member}` is not what the deltas said", event)

    def _close_text(self, rule: str, text: _Text, event: Json) -> None:
        self._require(rule, text.is_done, "the text's `done` event is missing", event)
        text.is_done = True

    def _done(self, item: _Item, event: Json) -> None:
        shown = event.get("item")
        if not self._require(
            "item.identity", isinstance(shown, dict), "`item` is not an object", event
        ):
            return
        assert isinstance(shown, dict)
        if item.type:
            told = {"type": item.type, "id": item.id, "call_id": item.call_id, "name": item.name}
            changed = [name for name, value in told.items() if shown.get(name) != value]
            if not self._require(
                "item.identity", not changed, f"{', '.join(changed)} changed", event
            ):
                shown = {**shown, **{name: told[name] for name in changed}}
        item.done = shown
        status = shown.get("status")
        ended = status in ("completed", "incomplete") or (
            "status" not in shown and shown.get("type") not in _WITH_STATUS
        )
        self._require("item.status", ended, f"an item is done with status {bounded(status)}", event)
        if status != "incomplete":
            self._close(item, event)
        self._compare(item, shown, event)

    def _close(self, item: _Item, event: Json) -> None:
        """Check that all of an item is over, as it must be unless it was cut."""
        for (where, index), part in item.parts.items():
            reason = f"the `done` event of part {index} of its {where} is missing"
            if not part.is_done:
                self._close_text("text.done", part.text, event)
            self._require("part.done", part.is_done, reason, event)
        if item.type in _CALL_TEXT:
            self._close_text("call.done", item.text, event)

    def _compare(self, item: _Item, shown: Json, event: Json) -> None:
        if item.type in _CALL_TEXT:
            same = shown.get(_CALL_TEXT[item.type]) == item.text.said
        elif item.type in ("message", "reasoning"):
            said = {place: part.text.said for place, part in item.parts.items()}
            same = _texts(shown) == said
        else:
            return
        self._require("item.text", same, "the item says something else than its deltas", event)


def _text_of(part: object) -> str | None:
    """Return the text of a part, None when it has none."""
    if not isinstance(part, dict):
        return None
    for name in _TEXT_MEMBERS:
        if isinstance(part.get(name), str):
            return str(part[name])
    return None


def _texts(item: Json) -> dict[tuple[PartKind, int], str | None]:
    """Return the texts of an item's parts by their places."""
    places: Sequence[PartKind] = ("content", "summary")
    return {
        (where, index): _text_of(part)
        for where in places
        if isinstance(item.get(where), list)
        for index, part in enumerate(item[where])
    }
