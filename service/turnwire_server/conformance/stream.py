"""Follows everything that a connection brings: lanes, responses and their order.

A state machine of its own, made from the protocol and not from any server's code. After a
violation it goes on from what the server said, so that one fault is one finding.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from turnwire_server.conformance.checks import Json, bounded
from turnwire_server.conformance.findings import Findings
from turnwire_server.conformance.items import ItemTracker
from turnwire_server.conformance.members import check_end, check_error, check_members, is_count

__all__ = ["TERMINAL", "EventJudge", "StreamJudge"]

EventJudge = Callable[[Json], None]
"""Judges one event by itself; says what is wrong to the findings."""

TERMINAL: Final = frozenset({"response.completed", "response.failed", "response.incomplete"})
_STATUS: Final = {
    "response.created": {"in_progress", "queued"},
    "response.queued": {"queued", "in_progress"},
    "response.in_progress": {"in_progress"},
    "response.completed": {"completed"},
    "response.failed": {"failed"},
    "response.incomplete": {"incomplete", "cancelled"},
}
_STEERS: Final = {"response.steer.accepted", "response.steer.pending", "response.steer.failed"}
_ASIDE: Final = {*_STEERS, "response.inject.created", "response.inject.failed"}
_CONSTANT: Final = ("object", "model", "created_at", "metadata", "previous_response_id", "store")
_LANE: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_MOST_IN_FLIGHT: Final = 16


@dataclass(slots=True)
class _Response:
    first: Json
    """The response as its first event showed it."""
    next_number: int
    items: ItemTracker
    is_rollout: bool
    is_running: bool = False

    @property
    def id(self) -> object:
        return self.first.get("id")


class StreamJudge:
    """Judges one connection: tell it what is sent, feed it what arrives."""

    def __init__(
        self, findings: Findings, used_ids: set[str], event_judges: Sequence[EventJudge] = ()
    ) -> None:
        """Begin a connection.

        Args:
            findings: Where to say what is wrong.
            used_ids: Ids of responses that the run has seen; added to.
            event_judges: Judges of single events; not asked about events with a finding already.
        """
        self._findings = findings
        self._used_ids = used_ids
        self._item_ids: set[str] = set()
        self._event_judges = event_judges
        self._open: dict[str | None, _Response] = {}
        self._waiting: dict[str | None, deque[bool]] = {}
        """Creates that have no answer yet, by lane: whether each is a rollout."""
        self._lanes: set[str] = set()
        self._ended: dict[object, object] = {}
        """Responses that are over, as their last events showed them, by id."""
        self._steered: Counter[object] = Counter()
        self._repeated = 0
        self._is_stray = False
        self._answers_due = 0
        """Client events that may be answered by an error event of no lane."""

    # What is sent.

    def sent(self, event: Json) -> None:
        """Note a client event."""
        lane = event.get("stream_id")
        if event.get("type") != "response.create":
            self._answers_due += 1
            return
        if lane is not None and not (isinstance(lane, str) and _LANE.fullmatch(lane)):
            self._answers_due += 1
            return
        if isinstance(lane, str):
            self._lanes.add(lane)
        self._waiting.setdefault(lane, deque()).append(event.get("rollout") is True)

    def sent_again(self) -> None:
        """Note that a create was repeated; whether it runs is for the scenario to judge."""
        self._repeated += 1

    def sent_garbage(self) -> None:
        """Note that something was sent which only an error event can answer."""
        self._answers_due += 1

    # What arrives.

    def feed(self, event: Json) -> tuple[str | None, bool]:
        """Take the next event, an object with a string `type`.

        Returns:
            The lane that it belongs to, whatever it says, and whether it may be there at all.
        """
        self._is_stray = False
        before = self._findings.violations
        kind = event["type"]
        lane = self._lane_of(event)
        if kind == "error":
            self._error(event, lane)
        elif kind in _ASIDE or kind.startswith("response.") or kind == "keepalive":
            self._response_event(event, lane)
        elif (response := self._open.get(lane)) is not None and "sequence_number" in event:
            self._number(event, response)
        if self._findings.violations == before:
            for judge in self._event_judges:
                judge(event)
        return lane, not self._is_stray

    @property
    def is_idle(self) -> bool:
        """Whether no turn runs and no create waits for its answer."""
        return not self._open and not any(self._waiting.values())

    # Private: lanes.

    def _lane_of(self, event: Json) -> str | None:
        """Return the event's lane; when it cannot be the one that it says, the one that it is."""
        said = event.get("stream_id")
        is_lane = "stream_id" not in event or (isinstance(said, str) and said in self._lanes)
        lane = said if isinstance(said, str) and is_lane else None
        about_lane = event["type"] == "error" or event["type"].startswith("response.")
        if about_lane and (not is_lane or not self._expects(lane, event)):
            if not is_lane and self._expects(None, event):
                real = None
            else:
                real = self._likely_lane(lane, event)
            if not is_lane or real != lane:
                wrong = "is missing" if "stream_id" not in event else f"is {bounded(said)}"
                reason = f"`stream_id` {wrong} on an event of {_named(real)}"
                self._findings.require("lane.tag", False, reason, event)
                return real
        if about_lane and self._lanes:
            self._findings.require("lane.tag", True, "")
        return lane

    def _expects(self, lane: str | None, event: Json) -> bool:
        kind = event["type"]
        if kind in _ASIDE or (lane is None and kind == "error" and self._answers_due):
            return True
        return bool(lane in self._open or self._waiting.get(lane))

    def _likely_lane(self, lane: str | None, event: Json) -> str | None:
        """Return the lane that an unexpected event belongs to."""
        shown = event.get("response")
        identifier = shown.get("id") if isinstance(shown, dict) else None
        if identifier is not None:
            if identifier in self._ended:
                return lane
            for other, response in self._open.items():
                if response.id == identifier:
                    return other
        if lane is not None:
            return lane  # It says so, and no other lane contradicts.
        if event["type"] == "response.created":
            likely = [other for other, creates in self._waiting.items() if creates]
            if self._steered.total():
                return lane
        else:
            likely = [other for other, creates in self._waiting.items() if creates]
            likely = [*likely, *self._open] if event["type"] == "error" else [*self._open, *likely]
        return likely[0] if likely else lane

    # Private: events outside a response's own.

    def _error(self, event: Json, lane: str | None) -> None:
        findings = self._findings
        status = event.get("status")
        right = isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599
        findings.require("error.frame", right, "`status` is not an HTTP status of an error", event)
        check_error(findings, "error.frame", event.get("error"), event)
        numbered = "sequence_number" in event
        findings.require("error.unnumbered", not numbered, "it has a sequence_number", event)
        waiting = self._waiting.get(lane)
        is_due = bool(waiting) or self._answers_due > 0
        self._is_stray = not is_due
        findings.require("error.unprovoked", is_due, "nothing was sent that it answers", event)
        if waiting:
            waiting.popleft()
        elif self._answers_due:
            self._answers_due -= 1

    # Private: responses.

    def _response_event(self, event: Json, lane: str | None) -> None:
        kind, response = event["type"], self._open.get(lane)
        shown = event.get("response")
        if kind in _ASIDE:
            self._aside(event, response)
            return
        if kind == "response.created":
            if response is None:
                self._begin(event, lane)
                return
            if isinstance(shown, dict) and shown.get("id") == response.id:
                self._findings.require("order.created_once", False, "created twice", event)
                self._number(event, response)
                return
            reason = f"a second response began on {_named(lane)} before the first one's end"
            self._findings.require("order.lane", False, reason, event)
            self._begin(event, lane)
            return
        if response is None:
            identifier = shown.get("id") if isinstance(shown, dict) else None
            is_told_again = identifier in self._ended and self._ended[identifier] == shown
            if self._repeated and kind in TERMINAL and is_told_again:
                self._is_stray = True  # What a repeated create may be answered by.
                return
            if identifier in self._ended or not self._waiting.get(lane):
                rule = "keepalive.after_created" if kind == "keepalive" else "order.terminal"
                self._findings.require(rule, False, f"`{kind}` after the end of its turn", event)
                self._is_stray = True
                return
            if kind == "keepalive":
                reason = "a keepalive before `response.created`"
                self._findings.require("keepalive.after_created", False, reason, event)
                return
            reason = f"`{kind}` before `response.created`"
            self._findings.require("order.created_first", False, reason, event)
            response = self._implied(event, lane)
        else:
            self._number(event, response)
        self._inside(event, response, lane)

    def _begin(self, event: Json, lane: str | None) -> None:
        findings = self._findings
        waiting = self._waiting.get(lane)
        has_create = bool(waiting)
        is_rollout = waiting.popleft() if waiting else False
        shown = event.get("response")
        findings.require("order.created_first", True, "")
        findings.require("order.created_once", True, "")
        findings.require("order.lane", True, "")
        if not isinstance(shown, dict):
            findings.require("response.members", False, "`response` is not an object", event)
            shown = {}
        parent = shown.get("previous_response_id")
        is_asked = has_create or self._steered[parent] > 0 or self._repeated > 0
        findings.require("order.created_once", is_asked, "nothing was sent that it answers", event)
        if not has_create:
            self._steered[parent] = 0  # A successor needs no create.
        number = event.get("sequence_number")
        findings.require("sequence.numbers", number == 0, f"begins with {bounded(number)}", event)
        items = ItemTracker(findings, self._item_ids)
        self._open[lane] = _Response(shown, 1, items, is_rollout)
        identifier = shown.get("id")
        if isinstance(identifier, str):
            new = identifier not in self._used_ids
            findings.require("response.once", new, f"the id {identifier} was used before", event)
            self._used_ids.add(identifier)
        self._show(event, shown)
        self._fresh(event, shown)

    def _implied(self, event: Json, lane: str | None) -> _Response:
        """Begin a response whose `response.created` did not come."""
        waiting = self._waiting.get(lane)
        is_rollout = waiting.popleft() if waiting else False
        number, shown = event.get("sequence_number"), event.get("response")
        items = ItemTracker(self._findings, self._item_ids)
        response = _Response(
            shown if isinstance(shown, dict) else {},
            number + 1 if isinstance(number, int) else 1,
            items,
            is_rollout,
        )
        self._open[lane] = response
        return response

    def _number(self, event: Json, response: _Response) -> None:
        number = event.get("sequence_number")
        expected = response.next_number
        right = is_count(number) and number == expected
        reason = f"`sequence_number` is {bounded(number)} instead of {expected}"
        self._findings.require("sequence.numbers", right, reason, event)
        response.next_number = (number if isinstance(number, int) else expected) + 1

    def _aside(self, event: Json, response: _Response | None) -> None:
        if self._answers_due and event["type"] != "response.steer.pending":
            self._answers_due -= 1
        steer = event.get("steer")
        target = steer.get("previous_response_id") if isinstance(steer, dict) else None
        if event["type"] == "response.steer.accepted":
            self._steered[target] += 1
        if response is not None and target is not None and target == response.id:
            self._number(event, response)

    def _inside(self, event: Json, response: _Response, lane: str | None) -> None:
        kind, findings = event["type"], self._findings
        if kind == "keepalive":
            findings.require("keepalive.after_created", True, "")
            return
        if kind in ("response.in_progress", "response.queued"):
            self._lifecycle(event, response)
            if kind == "response.in_progress":
                response.is_running = True
                running = sum(each.is_running for each in self._open.values())
                reason = f"{running} responses run at once"
                findings.require("lane.in_flight", running <= _MOST_IN_FLIGHT, reason, event)
            return
        reason = f"`{kind}` before `response.in_progress`"
        findings.require("order.in_progress", response.is_running, reason, event)
        response.is_running = True
        if kind in TERMINAL:
            self._end(event, response)
            self._ended[response.id] = event.get("response")
            del self._open[lane]
        elif kind == "response.done":
            reason = "`response.done` belongs to rollouts, and this is none"
            findings.require("order.terminal", response.is_rollout, reason, event)
        else:
            response.items.feed(event)

    def _lifecycle(self, event: Json, response: _Response) -> None:
        shown = event.get("response")
        if not isinstance(shown, dict):
            self._findings.require("response.members", False, "`response` is not an object", event)
            return
        self._same_id(event, shown, response)
        self._show(event, shown)
        if not response.items.has_items:
            self._fresh(event, shown)

    def _same_id(self, event: Json, shown: Json, response: _Response) -> None:
        same = response.id is None or shown.get("id") == response.id
        reason = f"the id is {bounded(shown.get('id'))}, not {bounded(response.id)}"
        self._findings.require("response.id", same, reason, event)

    def _show(self, event: Json, shown: Json) -> None:
        check_members(self._findings, shown, event)
        kind, status = event["type"], shown.get("status")
        reason = f"status {bounded(status)} in `{kind}`"
        self._findings.require("response.status", status in _STATUS[kind], reason, event)

    def _fresh(self, event: Json, shown: Json) -> None:
        self._findings.require(
            "response.fresh", shown.get("output") == [], "`output` is not an empty list", event
        )
        for name in ("usage", "error", "incomplete_details", "completed_at"):
            reason = f"`{name}` is there before any output"
            self._findings.require("response.fresh", shown.get(name) is None, reason, event)

    def _end(self, event: Json, response: _Response) -> None:
        findings, shown = self._findings, event.get("response")
        findings.require("order.terminal", True, "")
        findings.require("order.ends", True, "")
        if not isinstance(shown, dict):
            findings.require("response.members", False, "`response` is not an object", event)
            return
        self._same_id(event, shown, response)
        self._show(event, shown)
        changed = [
            name
            for name in _CONSTANT
            if name in response.first and name in shown and shown[name] != response.first[name]
        ]
        reason = f"{', '.join(changed)} changed since `response.created`"
        findings.require("response.constant", not changed, reason, event)
        check_end(findings, shown, event)
        must_be_done = event["type"] == "response.completed"
        response.items.finish(shown.get("output"), event, must_be_done=must_be_done)


def _named(lane: str | None) -> str:
    return "the default lane" if lane is None else f"lane {bounded(lane)}"
