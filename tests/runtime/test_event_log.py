"""What is missed is sent once and in order, or there is a gap: never less, never twice."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from harness.session_driver import BAD_SHAPE
from turnwire.v1.response_pb2 import Response
from turnwire.v1.server_event_pb2 import ResponseCompleted, ResponseCreated, ServerEvent
from turnwire_server.runtime.event_log import EventLog, Gap, Seen
from turnwire_server.session.events import Delta, Outgoing, Part

PART = Part("response_output_text_delta", "msg_1", 0, 0, None)
ROOMY = 1 << 20


def created(response_id: str, lane: str | None = None) -> ServerEvent:
    body = ResponseCreated(response=Response(id=response_id))
    return ServerEvent(sequence_number=0, stream_id=lane, response_created=body)


def completed(response_id: str, number: int, lane: str | None = None) -> ServerEvent:
    body = ResponseCompleted(response=Response(id=response_id))
    return ServerEvent(sequence_number=number, stream_id=lane, response_completed=body)


def turn(log: EventLog, response_id: str, deltas: int = 3) -> list[Outgoing]:
    """Log a turn of the default lane and return its events."""
    events: list[Outgoing] = [created(response_id)]
    events += [Delta(PART, number + 1, "x") for number in range(deltas)]
    events.append(completed(response_id, deltas + 1))
    for event in events:
        log.add(event, response_id)
    return events


def test_whoever_saw_nothing_gets_everything() -> None:
    log = EventLog(ROOMY)
    events = turn(log, "r1")
    assert log.after([]) == events
    assert log.after([]) == events  # the log stays as it is
    assert len(log) == 5


@pytest.mark.parametrize("number", range(5))
def test_whoever_saw_some_gets_the_rest(number: int) -> None:
    log = EventLog(ROOMY)
    events = turn(log, "r1") + turn(log, "r2")
    assert log.after([Seen(None, "r1", number)]) == events[number + 1 :]
    assert log.after([Seen(None, "r2", number)]) == events[number + 6 :]


def test_a_number_that_was_never_given_counts_as_the_newest() -> None:
    log = EventLog(ROOMY)
    turn(log, "r1")
    following = turn(log, "r2")
    assert log.after([Seen(None, "r1", 99)]) == following
    assert log.after([Seen(None, "r2", 99)]) == []


def test_what_was_never_sent_cannot_have_been_seen() -> None:
    log = EventLog(ROOMY)
    turn(log, "r1")
    assert log.after([Seen(None, "r9", 0)]) == Gap(None)
    assert log.after([Seen("b", "r1", 0)]) == Gap("b")


def test_events_without_a_number_come_behind_the_one_before_them() -> None:
    log = EventLog(ROOMY)
    first = turn(log, "r1")
    error = BAD_SHAPE.event(None, "e1")
    log.add(error)
    late = ServerEvent(sequence_number=0)
    late.response_steer_failed.steer.previous_response_id = "r1"
    log.add(late)
    second = turn(log, "r2")
    assert log.after([Seen(None, "r1", 4)]) == [error, late, *second]
    assert log.after([Seen(None, "r1", 3)]) == [first[-1], error, late, *second]
    assert log.after([Seen(None, "r2", 0)]) == second[1:]


def test_a_logged_message_is_the_one_of_then() -> None:
    log = EventLog(ROOMY)
    event = created("r1")
    log.add(event, "r1")
    event.response_created.response.id = "changed"
    assert log.after([]) == [created("r1")]


def test_lanes_are_told_in_the_order_of_their_events() -> None:
    log = EventLog(ROOMY)
    parts = {lane: Part("response_output_text_delta", "m", 0, 0, lane) for lane in ("a", "b")}
    for lane in parts:
        log.add(created(f"r{lane}", lane), f"r{lane}")
    mixed = [Delta(parts[lane], n, lane) for n in (1, 2, 3) for lane in ("b", "a")]
    for delta in mixed:
        log.add(delta, f"r{delta.part.stream_id}")
    seen = [Seen("a", "ra", 1), Seen("b", "rb", 2)]
    missed = log.after(seen)
    assert missed == [mixed[3], mixed[4], mixed[5]]


def test_the_oldest_go_first_and_whoever_needs_them_has_a_gap() -> None:
    log = EventLog(3000)
    for number in range(200):
        log.add(Delta(PART, number, "x" * 10), "r1")
        assert log.bytes <= 3000
    kept = len(log)
    assert 5 <= kept < 20
    first = 200 - kept
    assert log.after([]) == Gap(None)
    assert log.after([Seen(None, "r1", first - 2)]) == Gap(None)
    for number in (first - 1, first, 199):
        missed = log.after([Seen(None, "r1", number)])
        assert isinstance(missed, list)
        assert [event.sequence_number for event in missed] == list(range(number + 1, 200))


def test_an_event_that_is_larger_than_all_room_is_a_gap() -> None:
    log = EventLog(1000)
    log.add(created("r1"), "r1")
    log.add(Delta(PART, 1, "x" * 2000), "r1")
    assert (len(log), log.bytes) == (0, 0)
    assert log.after([Seen(None, "r1", 0)]) == Gap(None)
    assert log.after([Seen(None, "r1", 1)]) == []


def test_an_error_that_is_no_longer_kept_is_a_gap_to_whoever_may_have_missed_it() -> None:
    log = EventLog(1300)
    log.add(created("r1"), "r1")
    log.add(BAD_SHAPE.event())
    for number in range(4):
        log.add(Delta(PART, number, "x" * 50), "r2")
    assert log.after([Seen(None, "r1", 0)]) == Gap(None)
    missed = log.after([Seen(None, "r2", 2)])
    assert isinstance(missed, list) and len(missed) == 1


def test_a_response_that_was_continued_proves_what_came_before_it() -> None:
    log = EventLog(ROOMY)
    turn(log, "r1")
    log.add(BAD_SHAPE.event())
    second = turn(log, "r2")
    log.continued("r2")
    assert log.after([]) == second
    assert log.after([Seen(None, "r2", 0)]) == second[1:]  # it may not have been read yet
    assert log.after([Seen(None, "r1", 4)]) == second
    assert log.after([Seen(None, "r1", 3)]) == Gap(None)
    log.continued("unknown")
    log.tidy()
    assert len(log) == len(second)


def test_a_response_of_which_nothing_is_kept_proves_nothing() -> None:
    log = EventLog(2000)
    log.add(created("r1"), "r1")
    for number in range(20):
        log.add(Delta(PART, number, "x" * 50), "r2")
    before = len(log)
    log.continued("r1")
    log.tidy()
    assert len(log) == before
    assert log.after([]) == Gap(None)


def test_what_was_dropped_before_a_continued_response_was_seen() -> None:
    log = EventLog(4 * 260)
    turn(log, "r1")
    log.add(created("r2"), "r2")
    log.add(Delta(PART, 1, "x"), "r2")
    assert log.after([]) == Gap(None)
    log.continued("r2")
    assert log.after([]) == [created("r2"), Delta(PART, 1, "x")]


def test_what_was_proved_to_be_seen_makes_room_before_anything_is_lost() -> None:
    log = EventLog(3000)
    log.add(created("r0", "other"), "r0")  # the oldest, and nobody proved to have seen it
    turn(log, "r1")
    turn(log, "r2")
    log.continued("r2")
    while log.bytes <= 3000 - 260:
        log.add(BAD_SHAPE.event())
    log.add(Delta(PART, 5, "x" * 260), "r2")
    assert log.bytes <= 3000
    missed = log.after([Seen(None, "r2", 5)])
    assert missed == [created("r0", "other")]


def test_an_answered_pause_proves_all_but_the_newest() -> None:
    log = EventLog(ROOMY)
    events = turn(log, "r1")
    log.answered(None)
    log.answered("no such lane")
    assert log.after([Seen(None, "r1", 3)]) == events[-1:]
    assert log.after([Seen(None, "r1", 4)]) == []
    assert log.after([]) == events[-1:]


def test_nothing_is_counted_that_is_not_there() -> None:
    log = EventLog(ROOMY)
    turn(log, "r1")
    one = log.bytes
    turn(log, "r2")
    log.continued("r2")
    assert log.bytes == 2 * one  # to forget is for `tidy`
    log.tidy()
    assert log.bytes == one
    log.answered(None)
    assert 0 < log.bytes < one


def test_lanes_on_which_nothing_ever_ran_take_no_room_for_ever() -> None:
    log = EventLog(10_000)
    log.add(created("r1"), "r1")
    for number in range(1000):
        log.add(BAD_SHAPE.event(f"lane-{number}"))
    assert len(log._lanes) < 100 and len(log._lost_lanes) < 100
    assert log.after([Seen(None, "r1", 0)]) == Gap(None)


def test_a_lane_that_lost_its_errors_is_a_gap_until_a_response_of_it_was_seen() -> None:
    log = EventLog(1300)
    log.add(BAD_SHAPE.event("b"))
    for number in range(6):
        log.add(Delta(PART, number, "x" * 50), "r1")
    seen = Seen(None, "r1", 5)
    assert log.after([seen]) == Gap("b")
    log.add(created("r2", "b"), "r2")
    assert log.after([seen]) == Gap("b")
    assert log.after([seen, Seen("b", "r2", 0)]) == []


@dataclass
class Client:
    """What one client of a lane knows."""

    sent: list[Outgoing] = field(default_factory=list)
    places: list[tuple[str, int] | None] = field(default_factory=list)
    seen: int = 0
    """How many it has received."""
    response: str = ""
    number: int = 0


LANES = st.sampled_from([None, "a", "b"])


def is_open(walk: LogWalk) -> object:
    return any(client.response for client in walk.clients.values())


class LogWalk(RuleBasedStateMachine):
    """Random traffic against books that keep everything."""

    def __init__(self) -> None:
        super().__init__()
        self.log = EventLog(2500)
        self.clients: dict[str | None, Client] = {None: Client(), "a": Client(), "b": Client()}
        self.turns = 0

    def send(self, lane: str | None, event: Outgoing, place: tuple[str, int] | None) -> None:
        client = self.clients[lane]
        client.sent.append(event)
        client.places.append(place)
        self.log.add(event, None if place is None else place[0])

    @rule(lane=LANES)
    def begin(self, lane: str | None) -> None:
        self.turns += 1
        client = self.clients[lane]
        client.response, client.number = f"r{self.turns}", 0
        self.send(lane, created(client.response, lane), (client.response, 0))

    @precondition(is_open)
    @rule(lane=LANES, size=st.integers(0, 300), times=st.integers(1, 5))
    def say(self, lane: str | None, size: int, times: int) -> None:
        client = self.clients[lane]
        for _ in range(times if client.response else 0):
            client.number += 1
            part = Part("response_output_text_delta", "m", 0, 0, lane)
            delta = Delta(part, client.number, "x" * size)
            self.send(lane, delta, (client.response, client.number))

    @rule(lane=LANES)
    def refuse(self, lane: str | None) -> None:
        self.send(lane, BAD_SHAPE.event(lane, f"e{self.turns}"), None)

    @rule(lane=LANES, count=st.integers(1, 8))
    def read(self, lane: str | None, count: int) -> None:
        client = self.clients[lane]
        client.seen = min(len(client.sent), client.seen + count)

    @precondition(is_open)
    @rule(lane=LANES)
    def continue_what_was_read(self, lane: str | None) -> None:
        client = self.clients[lane]
        read = [place for place in client.places[: client.seen] if place is not None]
        if read:
            self.log.continued(read[-1][0])

    @precondition(is_open)
    @rule(lane=LANES)
    def answer_when_all_was_read(self, lane: str | None) -> None:
        client = self.clients[lane]
        if client.sent and client.seen == len(client.sent):
            self.log.answered(lane)

    @rule()
    def ask_what_was_missed(self) -> None:
        last_seen, expected = [], {}
        for lane, client in self.clients.items():
            numbered = [at for at in range(client.seen) if client.places[at] is not None]
            start = 0
            if numbered:
                start = numbered[-1] + 1
                response_id, number = client.places[numbered[-1]] or ("", 0)
                last_seen.append(Seen(lane, response_id, number))
            expected[lane] = client.sent[start:]
        missed = self.log.after(last_seen)
        assert self.log.bytes <= 2500
        if isinstance(missed, Gap):
            assert len(self.log) < sum(len(client.sent) for client in self.clients.values())
            return
        for lane, events in expected.items():
            got = [one for one in missed if lane_of(one) == lane]
            # What stands before the first number was maybe proved to be known, and then dropped.
            assert got == events[len(events) - len(got) :]
            dropped = events[: len(events) - len(got)]
            assert all(not one_is_numbered(one) for one in dropped) or not any(
                seen.lane == lane for seen in last_seen
            )


def lane_of(event: Outgoing) -> str | None:
    if isinstance(event, Delta):
        return event.part.stream_id
    return event.stream_id if event.HasField("stream_id") else None


def one_is_numbered(event: Outgoing) -> bool:
    return isinstance(event, Delta) or event.HasField("sequence_number")


def test_whatever_happens_nothing_is_lost_and_nothing_comes_twice() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        LogWalk,
        settings=settings(
            max_examples=60,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
