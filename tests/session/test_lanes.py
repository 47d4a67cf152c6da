from __future__ import annotations

import pytest

from turnwire.v1 import error_pb2
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire_server.session.lanes import Lanes, check_lane_name
from turnwire_server.session.settings import SessionSettings
from turnwire_server.session.turns import Turn


def turn(lane: str | None = None, number: int = 1, size: int = 1) -> Turn:
    return Turn(
        ResponseCreate(),
        lane=lane,
        number=number,
        response_id=f"resp_{number}",
        event_id=None,
        size=size,
        received_at=0.0,
    )


def enqueue(lanes: Lanes, *turns: Turn) -> None:
    for each in turns:
        assert lanes.admit(each.lane) is None
        assert lanes.enqueue(each) is None


def start_all(lanes: Lanes) -> list[int]:
    started = []
    while (ready := lanes.pop_ready()) is not None:
        started.append(ready.number)
    return started


@pytest.mark.parametrize("name", ["a", "A-Z.0_9", "-", ".", pytest.param("x" * 256, id="256")])
def test_a_lane_may_be_named_so(name):
    assert check_lane_name(name) is None


@pytest.mark.parametrize(
    "name", ["", pytest.param("x" * 257, id="257"), "a b", "a/b", "é", "a\n", "\n", "😀", "٣"]
)
def test_a_lane_may_not_be_named_so(name):
    rejection = check_lane_name(name)
    assert rejection.reason == error_pb2.ERROR_REASON_INVALID_STREAM_ID
    assert rejection.param == "stream_id"


def test_the_default_limits_are_those_of_the_public_api():
    settings = SessionSettings()
    assert settings.max_in_flight == 16
    assert settings.max_named_lanes == 32
    assert settings.max_queued == 64
    assert settings.max_queued_bytes == 64 * 1024 * 1024


def test_the_33rd_named_lane_is_refused_and_the_32_live_on():
    lanes = Lanes(SessionSettings())
    for index in range(32):
        assert lanes.admit(f"lane{index}") is None
    assert lanes.admit(None) is None
    rejection = lanes.admit("lane32")
    assert rejection.reason == error_pb2.ERROR_REASON_WEBSOCKET_STREAM_LIMIT_REACHED
    assert "32" in rejection.message
    assert lanes.admit("lane0") is None


def test_a_lane_runs_one_turn_at_a_time_in_order():
    lanes = Lanes(SessionSettings())
    turns = [turn("a", number) for number in (1, 2, 3)]
    enqueue(lanes, *turns)
    assert start_all(lanes) == [1]
    assert lanes.running_on("a") is turns[0]
    lanes.release(turns[0])
    assert start_all(lanes) == [2]
    assert [waiting.number for waiting in lanes.waiting()] == [3]


def test_lanes_run_side_by_side_and_the_default_lane_is_one_of_them():
    lanes = Lanes(SessionSettings())
    enqueue(lanes, turn("a", 1), turn(None, 2), turn("b", 3), turn("a", 4))
    assert start_all(lanes) == [1, 2, 3]
    assert lanes.running_on(None).number == 2
    assert lanes.running_on("c") is None
    assert len(lanes.running) == lanes.in_flight == 3


def test_who_runs_is_counted_however_it_began_and_until_it_ends():
    lanes = Lanes(SessionSettings())
    alone, queued = turn("a", 1), turn("b", 2)
    assert lanes.admit("a") is None
    assert lanes.run_if_idle(alone)
    assert lanes.in_flight == 1
    assert not lanes.run_if_idle(queued)
    enqueue(lanes, queued)
    assert lanes.in_flight == 1
    assert start_all(lanes) == [2]
    assert lanes.in_flight == 2
    lanes.release(alone)
    lanes.release(queued)
    assert lanes.in_flight == 0
    assert lanes.is_idle


def test_at_most_16_run_and_the_oldest_ready_turn_is_next():
    lanes = Lanes(SessionSettings())
    turns = [turn(f"lane{index}", index) for index in range(18)]
    enqueue(lanes, *turns)
    assert start_all(lanes) == list(range(16))
    lanes.release(turns[5])
    assert start_all(lanes) == [16]


def test_the_oldest_is_next_even_if_its_lane_was_opened_later():
    lanes = Lanes(SessionSettings(max_in_flight=1))
    first = turn("a", 1)
    enqueue(lanes, first, turn("b", 2), turn("a", 3))
    start_all(lanes)
    lanes.release(first)
    assert start_all(lanes) == [2]


def test_a_turn_that_waits_for_its_parent_holds_its_lane_and_no_other():
    lanes = Lanes(SessionSettings())
    parent, child = turn("a", 1), turn("b", 2)
    child.parent_turn = parent
    enqueue(lanes, parent, child, turn("b", 3), turn("c", 4))
    assert start_all(lanes) == [1, 4]
    child.parent_turn = None
    assert start_all(lanes) == [2]


def test_beyond_64_waiting_creates_the_next_is_refused():
    lanes = Lanes(SessionSettings())
    enqueue(lanes, turn("a", 0))
    start_all(lanes)
    enqueue(lanes, *(turn("a", number) for number in range(1, 65)))
    rejection = lanes.enqueue(turn("a", 65))
    assert rejection.reason == error_pb2.ERROR_REASON_RATE_LIMIT_EXCEEDED
    assert rejection.status == 429
    assert len(lanes.waiting()) == 64


def test_a_full_queue_does_not_hold_a_create_that_would_not_wait():
    lanes = Lanes(SessionSettings(max_queued=1))
    enqueue(lanes, turn("a", 1))
    start_all(lanes)
    enqueue(lanes, turn("a", 2), turn("b", 3))
    assert start_all(lanes) == [3]


def test_a_full_queue_refuses_a_create_that_would_wait_for_its_parent():
    lanes = Lanes(SessionSettings(max_queued=0))
    parent, child = turn("a", 1), turn("b", 2)
    enqueue(lanes, parent)
    start_all(lanes)
    child.parent_turn = parent
    lanes.admit("b")
    assert lanes.enqueue(child).status == 429


def test_a_full_queue_refuses_a_create_that_would_wait_for_the_connection():
    lanes = Lanes(SessionSettings(max_queued=0, max_in_flight=1))
    enqueue(lanes, turn("a", 1))
    start_all(lanes)
    lanes.admit("b")
    assert lanes.enqueue(turn("b", 2)).status == 429


def test_waiting_creates_are_bounded_in_bytes():
    lanes = Lanes(SessionSettings(max_queued_bytes=100))
    big = turn("a", 1, size=1_000)
    enqueue(lanes, big)
    assert start_all(lanes) == [1]
    enqueue(lanes, turn("a", 2, size=60))
    assert lanes.enqueue(turn("a", 3, size=41)).status == 429
    enqueue(lanes, turn("a", 4, size=40))
    lanes.release(big)
    start_all(lanes)
    enqueue(lanes, turn("a", 5, size=60))


def test_a_withdrawn_turn_makes_room_and_never_runs():
    lanes = Lanes(SessionSettings(max_queued=1))
    running, waiting = turn("a", 1), turn("a", 2)
    enqueue(lanes, running)
    start_all(lanes)
    enqueue(lanes, waiting)
    lanes.withdraw(waiting)
    enqueue(lanes, turn("a", 3))
    lanes.release(running)
    assert start_all(lanes) == [3]


def test_it_is_idle_when_nothing_runs_and_nothing_waits():
    lanes = Lanes(SessionSettings())
    only = turn("a", 1)
    assert lanes.is_idle
    enqueue(lanes, only)
    assert not lanes.is_idle
    start_all(lanes)
    assert not lanes.is_idle
    lanes.release(only)
    assert lanes.is_idle


def test_waiting_turns_are_listed_in_order_of_receipt():
    lanes = Lanes(SessionSettings(max_in_flight=0))
    enqueue(lanes, turn("b", 1), turn("a", 2), turn("b", 3), turn(None, 4))
    assert [waiting.number for waiting in lanes.waiting()] == [1, 2, 3, 4]
