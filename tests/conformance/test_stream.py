"""The stream judge on hand-made events: what no proxy can easily seed."""

from __future__ import annotations

from typing import Any

from conformance.faults import FAULTS
from turnwire_server.conformance.findings import Findings
from turnwire_server.conformance.rules import RULES
from turnwire_server.conformance.stream import StreamJudge

CREATE = {"type": "response.create"}
HERE = {"order.lane", "lane.in_flight", "response.once"}


def judge() -> tuple[StreamJudge, Findings]:
    findings = Findings("websocket")
    return StreamJudge(findings, set()), findings


def created(identifier: str, lane: str | None = None) -> dict[str, Any]:
    shown = {"id": identifier, "status": "in_progress", "output": []}
    event = {"type": "response.created", "sequence_number": 0, "response": shown}
    return event if lane is None else {**event, "stream_id": lane}


def running(identifier: str, lane: str | None = None) -> dict[str, Any]:
    return {**created(identifier, lane), "type": "response.in_progress", "sequence_number": 1}


def test_a_second_response_on_a_lane_before_the_first_ones_end_is_found():
    stream, findings = judge()
    stream.sent(CREATE)
    stream.sent(CREATE)
    stream.feed(created("resp_1"))
    assert not findings.has_broken("order.lane")
    stream.feed(created("resp_2"))
    assert findings.has_broken("order.lane")


def test_a_response_id_that_comes_again_is_found():
    used: set[str] = set()
    findings = Findings("websocket")
    for _ in range(2):
        stream = StreamJudge(findings, used)
        stream.sent(CREATE)
        assert not findings.has_broken("response.once")
        stream.feed(created("resp_1"))
    assert findings.has_broken("response.once")


def ended(identifier: str, number: int = 2) -> dict[str, Any]:
    shown = {"id": identifier, "status": "completed", "output": []}
    return {"type": "response.completed", "sequence_number": number, "response": shown}


def test_a_repeated_create_may_be_answered_by_the_end_of_its_response_and_by_no_other():
    stream, findings = judge()
    stream.sent(CREATE)
    for event in (created("resp_1"), running("resp_1"), ended("resp_1")):
        stream.feed(event)
    before = findings.violations
    stream.sent_again()
    _, belongs = stream.feed(ended("resp_1", 7))
    assert not belongs
    assert findings.violations == before
    changed = {**ended("resp_1"), "response": {"id": "resp_1", "status": "completed"}}
    assert not stream.feed(changed)[1]
    assert findings.has_broken("order.terminal")


def test_an_end_that_is_said_twice_without_a_repeated_create_is_found():
    stream, findings = judge()
    stream.sent(CREATE)
    for event in (created("resp_1"), running("resp_1"), ended("resp_1")):
        stream.feed(event)
    assert not findings.has_broken("order.terminal")
    stream.feed(ended("resp_1"))
    assert findings.has_broken("order.terminal")


def test_the_seventeenth_response_in_flight_is_found():
    stream, findings = judge()
    for index in range(17):
        lane = f"lane{index}"
        stream.sent({**CREATE, "stream_id": lane})
        assert not findings.has_broken("lane.in_flight")
        stream.feed(created(f"resp_{index}", lane))
        stream.feed(running(f"resp_{index}", lane))
    assert findings.has_broken("lane.in_flight")


def test_an_event_that_was_found_wrong_is_not_shown_to_the_judges_from_outside():
    asked: list[str] = []
    stream = StreamJudge(Findings("sse"), set(), (lambda event: asked.append(event["type"]),))
    stream.sent(CREATE)
    stream.feed({"type": "keepalive", "sequence_number": 0})
    stream.feed({"type": "acme:extension", "sequence_number": 1})
    assert asked == ["acme:extension"]


def test_every_rule_has_a_fault_that_breaks_it():
    caught = {fault.caught_by for fault in FAULTS} | HERE
    assert {rule.id for rule in RULES} <= caught
