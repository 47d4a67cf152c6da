from __future__ import annotations

import pytest

from harness.session_driver import (
    BAD_SHAPE,
    SessionDriver,
    cancel,
    create,
    given,
    new_ids,
    user,
)
from turnwire.v1 import error_pb2
from turnwire.v1.client_event_pb2 import (
    ClientEvent,
    ResponseAppend,
    ResponseCreate,
    ResponseInject,
    ResponseProcessed,
    ResponseSteer,
    TurnwireSessionResume,
    TurnwireSessionStart,
)
from turnwire.v1.response_pb2 import PromptCacheOptions, Response
from turnwire.v1.server_event_pb2 import ResponseCompleted, ServerEvent
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.conversation import EMPTY, item_text
from turnwire_server.session.errors import Rejection
from turnwire_server.session.opening import gap
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.session import Session
from turnwire_server.session.settings import SessionSettings
from turnwire_server.session.tokens import TokenIds

AGE = Rejection(error_pb2.ERROR_REASON_WEBSOCKET_CONNECTION_LIMIT_REACHED, "Too old.")


@pytest.fixture
def driver() -> SessionDriver:
    return SessionDriver()


def lanes(turns):
    return [turn.lane for turn in turns]


# Starting and queueing.


def test_a_create_starts_at_once_and_knows_all_that_it_was_given(driver):
    event = create(stream_id="main", event_id="e1")
    driver.session.receive(event, size=123, now=4.5)
    driver.pull()
    (turn,) = driver.started
    assert (turn.lane, turn.event_id, turn.size, turn.received_at) == ("main", "e1", 123, 4.5)
    assert turn.response_id.startswith("resp_")
    assert turn.create.model == "m"
    assert driver.events == []


def test_creates_of_one_lane_run_one_after_the_other(driver):
    driver.send(create(event_id="1"), create(event_id="2"), create(event_id="3"))
    assert [turn.event_id for turn in driver.started] == ["1"]
    driver.finish(driver.started[0])
    driver.fail(driver.started[1])
    assert [turn.event_id for turn in driver.started] == ["1", "2", "3"]
    assert not driver.session.is_idle
    driver.finish(driver.started[2])
    assert driver.session.is_idle


def test_the_17th_lane_waits_for_one_of_the_16(driver):
    driver.send(*(create(stream_id=f"lane{index}") for index in range(17)))
    assert len(driver.started) == len(driver.session.running) == 16
    assert driver.session.queued == 1
    driver.finish(driver.started[3])
    assert driver.started[16].lane == "lane16"


def test_a_bad_lane_is_refused_without_the_lane(driver):
    driver.send(create(stream_id="", event_id="e1"), create(stream_id="no spaces"))
    assert driver.take_errors() == [
        ("invalid_stream_id", None, "e1"),
        ("invalid_stream_id", None, None),
    ]
    assert driver.started == []


@pytest.mark.parametrize(
    "event",
    [
        cancel(stream_id="b/d"),
        ClientEvent(stream_id="b/d"),
        ClientEvent(stream_id="b/d", response_append=ResponseAppend(response_id="r")),
        ClientEvent(stream_id="b/d", turnwire_session_start=TurnwireSessionStart()),
    ],
    ids=lambda event: event.WhichOneof("event") or "nothing",
)
def test_no_event_may_name_a_bad_lane(driver, event):
    driver.send(event)
    assert driver.take_errors() == [("invalid_stream_id", None, None)]


def test_one_named_lane_too_many_is_refused_with_its_name():
    driver = SessionDriver(SessionSettings(max_named_lanes=1))
    driver.send(create(stream_id="a"), create(stream_id="b", event_id="e1"), create())
    assert driver.take_errors() == [("websocket_stream_limit_reached", "b", "e1")]
    assert lanes(driver.started) == ["a", None]


def test_a_full_queue_refuses_with_429_and_the_lane():
    driver = SessionDriver(SessionSettings(max_queued=1))
    driver.send(*(create(stream_id="a", event_id=str(index)) for index in range(3)))
    (event,) = driver.take_events()
    assert (event.error.status, event.stream_id, event.event_id) == (429, "a", "2")
    driver.finish(driver.started[0])
    assert [turn.event_id for turn in driver.started] == ["0", "1"]


def test_waiting_creates_are_counted_by_their_bytes_on_the_wire():
    driver = SessionDriver(SessionSettings(max_queued_bytes=250))
    driver.send(*(create() for _ in range(4)), size=100)
    assert [code for code, _, _ in driver.take_errors()] == ["rate_limit_exceeded"]


def test_a_warm_up_is_known_by_generate_or_prewarm(driver):
    warm = driver.run(create(generate=False))
    driver.finish(warm, warm_up=True)
    prewarmed = driver.run(create(prompt_cache_options=PromptCacheOptions(prewarm=True)))
    driver.finish(prewarmed)
    assert (warm.is_warm_up, prewarmed.is_warm_up) == (True, True)
    assert not driver.run(create(generate=True)).is_warm_up
    assert not driver.run(create(stream_id="b")).is_warm_up


# Parents.


def test_a_cached_parent_is_pinned_when_its_create_is_received(driver):
    parent = driver.run(create(stream_id="a"))
    driver.finish(parent)
    driver.send(create(stream_id="b"))
    driver.send(create(parent.response_id, stream_id="b", event_id="fork"))
    # The source moves on, so that the parent leaves the cache before the fork starts.
    driver.finish(driver.run(create(parent.response_id, stream_id="a")))
    driver.finish(driver.started[1])
    fork = driver.started[-1]
    assert fork.event_id == "fork"
    assert fork.parent.response_id == parent.response_id


def test_an_older_response_is_not_in_the_cache(driver):
    first = driver.run(create())
    driver.finish(first)
    driver.finish(driver.run(create(first.response_id)))
    late = driver.run(create(first.response_id))
    assert late.parent is None
    assert late.previous_response_id == first.response_id


def test_an_empty_parent_id_is_a_parent_that_nobody_has(driver):
    turn = driver.run(create(""))
    assert turn.previous_response_id == ""
    assert turn.parent is None


@pytest.mark.parametrize("lane", ["a", "b"])
def test_a_parent_that_still_runs_is_taken_when_it_ends(driver, lane):
    parent = driver.run(create(stream_id="a"))
    driver.send(create(parent.response_id, stream_id=lane, event_id="child"))
    assert len(driver.started) == 1
    driver.finish(parent)
    child = driver.started[-1]
    assert child.event_id == "child"
    assert child.parent.response_id == parent.response_id
    assert not child.waits_for_parent


def test_a_child_that_waits_keeps_its_parent_even_if_the_lane_moves_on(driver):
    parent = driver.run(create(stream_id="a"))
    driver.send(create(stream_id="b"))
    driver.send(create(parent.response_id, stream_id="b", event_id="child"))
    driver.finish(parent)
    driver.finish(driver.run(create(parent.response_id, stream_id="a")))
    driver.finish(next(turn for turn in driver.started if turn.lane == "b"))
    assert driver.started[-1].parent.response_id == parent.response_id


def test_the_child_of_a_turn_that_fails_finds_no_parent(driver):
    parent = driver.run(create(stream_id="a"))
    driver.send(create(parent.response_id, stream_id="b"))
    driver.fail(parent)
    assert driver.started[-1].lane == "b"
    assert driver.started[-1].parent is None


def test_a_child_waits_for_its_own_parent_only(driver):
    first, second = driver.run(create(stream_id="a")), driver.run(create(stream_id="b"))
    driver.send(create(second.response_id, stream_id="c"))
    driver.finish(first)
    assert len(driver.started) == 2
    driver.finish(second)
    assert driver.started[-1].parent.response_id == second.response_id


def test_a_failed_continuation_on_the_same_lane_evicts_its_parent(driver):
    parent = driver.run(create())
    driver.finish(parent)
    driver.fail(driver.run(create(parent.response_id)))
    assert driver.run(create(parent.response_id)).parent is None


def test_a_failed_fork_leaves_its_parent(driver):
    parent = driver.run(create(stream_id="a"))
    driver.finish(parent)
    driver.fail(driver.run(create(parent.response_id, stream_id="b")))
    assert driver.run(create(parent.response_id, stream_id="a")).parent is not None


def test_a_failed_turn_without_a_parent_evicts_nothing(driver):
    head = driver.run(create())
    driver.finish(head)
    driver.fail(driver.run(create()))
    assert driver.run(create(head.response_id)).parent is not None


def test_a_sibling_that_was_pinned_before_the_failure_still_runs(driver):
    parent = driver.run(create())
    driver.finish(parent)
    driver.send(create(parent.response_id), create(parent.response_id))
    driver.fail(driver.started[1])
    assert driver.started[2].parent.response_id == parent.response_id


def test_a_lane_can_begin_a_new_conversation(driver):
    old = driver.run(create())
    driver.finish(old)
    new = driver.run(create())
    assert new.parent is None
    driver.finish(new)
    assert driver.run(create(new.response_id)).parent is not None


def test_a_warm_up_can_be_continued_later_from_any_lane(driver):
    warm = driver.run(create(generate=False))
    driver.finish(warm, warm_up=True)
    for lane in (None, "a", None):
        child = driver.run(create(warm.response_id, stream_id=lane))
        assert child.parent.response_id == warm.response_id
        driver.finish(child)


# Creates that the edge refused.


def test_a_refused_create_is_answered_when_its_lane_gets_to_it(driver):
    first = driver.run(create(stream_id="a"))
    driver.refuse(ResponseCreate(), stream_id="a", event_id="bad")
    driver.send(create(stream_id="a", event_id="next"))
    assert driver.events == []
    driver.finish(first)
    assert driver.take_errors() == [("invalid_type", "a", "bad")]
    assert driver.started[-1].event_id == "next"


def test_a_refused_create_counts_as_a_failed_continuation(driver):
    parent = driver.run(create())
    driver.finish(parent)
    driver.refuse(ResponseCreate(previous_response_id=parent.response_id))
    assert driver.take_errors() == [("invalid_type", None, None)]
    assert driver.run(create(parent.response_id)).parent is None


def test_a_refused_create_does_not_wait_for_its_parent(driver):
    parent = driver.run(create(stream_id="a"))
    driver.refuse(ResponseCreate(previous_response_id=parent.response_id), stream_id="b")
    assert driver.take_errors() == [("invalid_type", "b", None)]


def test_refused_creates_in_a_row_are_all_answered(driver):
    for index in range(3):
        driver.refuse(ResponseCreate(), event_id=str(index))
    assert [event_id for _, _, event_id in driver.take_errors()] == ["0", "1", "2"]
    assert driver.session.is_idle


def test_another_event_that_the_edge_refused_is_answered_at_once(driver):
    driver.run(create(stream_id="a"))
    driver.refuse(None, stream_id="a", event_id="e1")
    driver.refuse(None, stream_id="not a lane", event_id="e2")
    assert driver.take_errors() == [("invalid_type", "a", "e1"), ("invalid_type", None, "e2")]


@pytest.mark.parametrize("fault", ["lane", "event_id", "shape"])
def test_a_malformed_steer_or_inject_is_answered_by_its_own_failure(driver, fault):
    turn = driver.begin(create(stream_id="a"))
    steer = ResponseSteer(previous_response_id=turn.response_id)
    inject = ResponseInject(response_id=turn.response_id)
    if fault == "shape":
        driver.refuse(steer, stream_id="b")
        driver.refuse(inject, stream_id="b")
    else:
        named = {"stream_id": ""} if fault == "lane" else {"event_id": "x" * 257}
        driver.send(ClientEvent(**named, response_steer=steer))
        driver.send(ClientEvent(**named, response_inject=inject))
    steered, injected = driver.take_events()
    failed = steered.response_steer_failed
    assert (failed.steer.previous_response_id, failed.error.code) == ("resp_2", "invalid_input")
    assert not failed.steer.HasField("id")
    failed = injected.response_inject_failed
    assert (failed.response_id, failed.error.code) == ("resp_2", "invalid_input")
    param = {"lane": "stream_id", "event_id": "event_id", "shape": "input[0].content"}[fault]
    assert failed.error.param == param
    assert [event.stream_id for event in (steered, injected)] == ["a", "a"]


def test_a_malformed_steer_or_inject_of_nothing_has_no_lane_but_its_own(driver):
    driver.refuse(ResponseSteer(previous_response_id="resp_9"), stream_id="a")
    driver.refuse(ResponseInject(), stream_id="a")
    steered, injected = driver.take_events()
    assert not steered.HasField("stream_id")
    assert injected.stream_id == "a"


def test_a_refused_create_whose_lane_is_lost_is_answered_at_once(driver):
    driver.run(create())
    rejection = Rejection(error_pb2.ERROR_REASON_INVALID_STREAM_ID, "No lane.")
    driver.refuse(ResponseCreate(), rejection=rejection)
    driver.refuse(ResponseCreate(), stream_id="not a lane")
    assert driver.take_errors() == [("invalid_stream_id", None, None), ("invalid_type", None, None)]


def test_a_refused_create_of_one_lane_too_many_is_told_of_the_lane():
    driver = SessionDriver(SessionSettings(max_named_lanes=0))
    driver.refuse(ResponseCreate(), stream_id="a")
    assert driver.take_errors() == [("websocket_stream_limit_reached", "a", None)]


# Event ids.


def completed(turn, text=""):
    response = Response(id=turn.response_id, model=text)
    return ServerEvent(
        sequence_number=7,
        stream_id=turn.lane,
        response_completed=ResponseCompleted(response=response),
    )


def test_the_same_event_id_is_the_same_create_and_runs_once(driver):
    turn = driver.run(create(event_id="e1", stream_id="a"))
    driver.send(create(event_id="e1", stream_id="a"), create(stream_id="other", event_id="e1"))
    assert driver.events == []
    driver.finish(turn, answer=completed(turn))
    assert driver.events == []  # the driver sends it
    driver.send(create(event_id="e1"), create(stream_id="other", event_id="e1"))
    assert driver.take_events() == [completed(turn)] * 2
    assert len(driver.started) == 1


def test_a_create_that_still_waits_is_not_answered_when_it_comes_again(driver):
    driver.send(create(event_id="e1"), create(event_id="e2"), create(event_id="e2"))
    assert driver.session.queued == 1
    assert driver.events == []


def test_a_refusal_by_the_driver_is_the_answer_too(driver):
    turn = driver.run(create(event_id="e1"))
    error = BAD_SHAPE.event(None, "e1")
    driver.end(turn, None, error)
    driver.send(create(event_id="e1"))
    assert driver.take_events() == [error]
    assert len(driver.started) == 1


def test_a_create_that_ended_without_an_answer_is_not_run_again(driver):
    driver.fail(driver.run(create(event_id="e1")))
    driver.send(create(event_id="e1", stream_id="b"))
    assert driver.take_errors() == [("response_already_completed", "b", "e1")]
    assert len(driver.started) == 1


@pytest.mark.parametrize(
    "reason",
    [
        error_pb2.ERROR_REASON_INVALID_API_KEY,
        error_pb2.ERROR_REASON_RATE_LIMIT_EXCEEDED,
        error_pb2.ERROR_REASON_SERVER_IS_OVERLOADED,
        error_pb2.ERROR_REASON_WEBSOCKET_CONNECTION_LIMIT_REACHED,
    ],
)
def test_a_create_that_was_refused_for_the_moment_may_be_sent_again(driver, reason):
    driver.refuse(ResponseCreate(), event_id="e1", rejection=Rejection(reason, "Not now."))
    assert len(driver.take_errors()) == 1
    assert driver.run(create(event_id="e1")).event_id == "e1"


def test_a_create_that_a_closed_session_refused_runs_when_it_is_open_again(driver):
    driver.session.close_to_creates(AGE)
    driver.send(create(event_id="e1"))
    assert driver.take_errors() == [("websocket_connection_limit_reached", None, "e1")]
    driver.session.reopen()
    assert driver.run(create(event_id="e1")).event_id == "e1"


def test_what_waits_to_be_refused_runs_when_the_session_is_open_again(driver):
    parent = driver.begin(create(event_id="e0"))
    driver.session.close_to_creates(AGE)
    driver.send(create(parent.response_id, event_id="e1"))
    driver.refuse(ResponseCreate(), event_id="e2")
    driver.session.reopen()
    driver.finish(parent)
    driver.finish(driver.started[1])
    assert [turn.event_id for turn in driver.started] == ["e0", "e1"]
    assert driver.started[1].parent.response_id == parent.response_id
    assert driver.take_errors() == [("invalid_type", None, "e2")]


def test_answers_are_kept_within_their_bound_the_newest_first():
    driver = SessionDriver(SessionSettings(max_answer_bytes=300))
    sizes = {"1": 100, "2": 100, "3": 100, "4": 1000}
    turns = {}
    for event_id, size in sizes.items():
        turns[event_id] = driver.run(create(event_id=event_id, stream_id=event_id))
        if event_id != "4":
            driver.finish(turns[event_id], answer=completed(turns[event_id], "x" * size))
    driver.send(*(create(event_id=event_id) for event_id in ("1", "2", "3")))
    gone, *kept = driver.take_events()
    assert gone.error.error.code == "response_already_completed"
    assert kept == [completed(turns[one], "x" * 100) for one in ("2", "3")]
    driver.finish(turns["4"], answer=completed(turns["4"], "x" * 1000))
    driver.send(*(create(event_id=event_id) for event_id in sizes))
    assert {code for code, _, _ in driver.take_errors()} == {"response_already_completed"}


def test_an_id_that_is_forgotten_frees_what_its_answer_took():
    driver = SessionDriver(SessionSettings(max_event_ids=2, max_answer_bytes=300))
    for number in range(20):
        turn = driver.run(create(event_id=str(number)))
        answer = completed(turn, "x" * 100)
        driver.finish(turn, answer=answer)
        driver.send(create(event_id=str(number)))
        assert driver.take_events() == [answer]


def test_creates_without_or_with_an_empty_event_id_are_all_different(driver):
    driver.send(create(stream_id="a"), create(stream_id="b"))
    driver.send(create(stream_id="c", event_id=""), create(stream_id="d", event_id=""))
    assert len(driver.started) == 4


def test_a_refused_create_that_comes_again_is_refused_again(driver):
    driver.refuse(ResponseCreate(), event_id="e1")
    driver.refuse(ResponseCreate(), event_id="e1")
    assert driver.take_errors() == [("invalid_type", None, "e1")] * 2
    assert driver.started == []


def test_a_create_that_never_got_in_line_may_be_sent_again():
    driver = SessionDriver(SessionSettings(max_queued=0))
    running = driver.run(create())
    driver.send(create(event_id="e1"))
    assert driver.take_errors() == [("rate_limit_exceeded", None, "e1")]
    driver.finish(running)
    assert driver.run(create(event_id="e1")).event_id == "e1"


def test_the_oldest_event_ids_are_forgotten():
    driver = SessionDriver(SessionSettings(max_event_ids=2))
    for event_id in ("1", "2", "3", "2", "1"):
        driver.send(create(stream_id=event_id, event_id=event_id))
        for turn in driver.session.running:
            driver.finish(turn)
    assert [turn.event_id for turn in driver.started] == ["1", "2", "3", "1"]


def test_an_event_id_that_is_too_long_is_refused_and_not_repeated(driver):
    long = "x" * 257
    driver.send(create(stream_id="a", event_id=long), create(stream_id="a b", event_id=long))
    driver.refuse(ResponseCreate(), event_id=long)
    driver.refuse(None, event_id=long)
    assert driver.take_errors() == [
        ("invalid_value", "a", None),
        ("invalid_value", None, None),
        ("invalid_type", None, None),
        ("invalid_type", None, None),
    ]
    assert driver.run(create(event_id="x" * 256)).event_id == "x" * 256


# Cancel.


def test_a_running_turn_is_cancelled_by_its_response_id(driver):
    first, second = driver.run(create(stream_id="a")), driver.run(create(stream_id="b"))
    driver.send(cancel(response_id=second.response_id))
    assert driver.told_to_end == [second]
    assert (first.is_cancelled, second.is_cancelled) == (False, True)
    assert driver.events == []


@pytest.mark.parametrize("lane", [None, "a"])
def test_what_runs_on_a_lane_is_cancelled_by_the_lane(driver, lane):
    running = driver.run(create(stream_id=lane))
    driver.run(create(stream_id="other"))
    driver.send(cancel(stream_id=lane))
    assert driver.told_to_end == [running]


def test_cancelling_twice_tells_the_driver_once(driver):
    running = driver.run(create())
    driver.send(cancel(), cancel(response_id=running.response_id))
    assert driver.told_to_end == [running]


def test_a_cancelled_turn_may_still_become_the_head_of_its_lane(driver):
    running = driver.run(create())
    driver.send(cancel())
    driver.finish(running)
    assert driver.run(create(running.response_id)).parent.response_id == running.response_id


def test_a_queued_create_is_cancelled_by_its_event_id(driver):
    first = driver.run(create(stream_id="a"))
    driver.send(create(stream_id="a", event_id="second"), create(stream_id="a", event_id="third"))
    driver.send(cancel(event_id="second"))
    assert driver.take_errors() == [("request_cancelled", "a", "second")]
    driver.finish(first)
    assert driver.started[-1].event_id == "third"
    assert driver.told_to_end == []


def test_a_create_in_the_middle_of_a_queue_can_be_cancelled(driver):
    first = driver.run(create(event_id="1"))
    driver.send(create(event_id="2"), create(event_id="3"), create(event_id="4"))
    driver.send(cancel(event_id="3"))
    driver.take_events()
    driver.finish(first)
    driver.finish(driver.started[-1])
    assert [turn.event_id for turn in driver.started] == ["1", "2", "4"]


def test_cancelling_a_queued_create_evicts_nothing(driver):
    parent = driver.run(create())
    driver.finish(parent)
    running = driver.run(create())
    driver.send(create(parent.response_id, event_id="e1"), cancel(event_id="e1"))
    driver.finish(running)
    driver.take_events()
    driver.fail(driver.run(create(running.response_id, stream_id="b")))
    assert driver.run(create(running.response_id)).parent is not None


def test_cancelling_the_head_of_a_lane_that_waits_lets_the_next_one_start(driver):
    parent = driver.run(create(stream_id="a"))
    driver.send(
        create(parent.response_id, stream_id="b", event_id="waits"),
        create(stream_id="b", event_id="next"),
        cancel(event_id="waits"),
    )
    assert driver.started[-1].event_id == "next"


def test_a_running_turn_is_cancelled_by_its_event_id_on_any_lane(driver):
    running = driver.run(create(stream_id="a", event_id="e1"))
    driver.run(create())
    driver.send(cancel(event_id="e1"))
    assert driver.told_to_end == [running]


def test_a_cancel_that_comes_too_late_spares_the_next_turn_of_the_lane(driver):
    driver.finish(driver.run(create(event_id="e1")))
    driver.run(create(event_id="e2"))
    driver.send(cancel(event_id="e1"))
    assert driver.told_to_end == []


def test_an_event_id_that_names_no_create_is_the_cancel_s_own(driver):
    running = driver.run(create(event_id="e1"))
    driver.send(cancel(event_id="my cancel"))
    assert driver.told_to_end == [running]


@pytest.mark.parametrize(
    "event",
    [
        cancel(),
        cancel(stream_id="unused"),
        cancel(response_id="resp_9"),
        cancel(event_id="e9"),
    ],
)
def test_with_nothing_to_cancel_there_is_no_answer(driver, event):
    driver.finish(driver.run(create(event_id="e1")))
    driver.run(create(stream_id="busy"))
    driver.send(event)
    assert (driver.events, driver.told_to_end) == ([], [])


def test_a_cancel_by_another_response_s_id_spares_what_runs_on_the_lane(driver):
    driver.run(create(stream_id="a"))
    driver.send(cancel(response_id="resp_9", stream_id="a"))
    assert driver.told_to_end == []


# The end of a connection.


def test_when_the_peer_is_gone_everything_ends_without_a_word(driver):
    turns = [driver.run(create()), driver.run(create(stream_id="a"))]
    driver.send(create(event_id="waits"))
    driver.session.cancel_all()
    driver.pull()
    assert driver.told_to_end == turns
    assert driver.events == []
    for turn in turns:
        driver.fail(turn)
    assert driver.session.is_idle
    assert len(driver.started) == 2


def test_when_the_server_goes_waiting_creates_are_answered(driver):
    running = driver.run(create())
    driver.send(create(event_id="1"), create(event_id="2"))
    driver.session.cancel_all(AGE)
    driver.pull()
    assert driver.take_errors() == [
        ("websocket_connection_limit_reached", None, "1"),
        ("websocket_connection_limit_reached", None, "2"),
    ]
    assert driver.told_to_end == [running]


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_turn_that_the_driver_has_not_taken_yet_never_starts(is_cancelled):
    driver = SessionDriver()
    driver.session.receive(create(event_id="e1"), size=1, now=0.0)
    if is_cancelled:
        driver.session.receive(cancel(), size=1, now=0.0)
    driver.session.cancel_all(AGE)
    driver.pull()
    assert driver.started == []
    assert driver.told_to_end == []
    assert driver.take_errors() == [("websocket_connection_limit_reached", None, "e1")]
    assert driver.session.is_idle


def test_a_session_too_old_refuses_creates_in_order_and_finishes_the_others(driver):
    running = driver.run(create(stream_id="a"))
    driver.send(create(stream_id="a", event_id="in time"))
    driver.session.close_to_creates(AGE)
    driver.send(create(stream_id="a", event_id="late"))
    assert driver.events == []
    driver.finish(running)
    driver.finish(driver.started[-1])
    assert driver.started[-1].event_id == "in time"
    assert driver.take_errors() == [("websocket_connection_limit_reached", "a", "late")]
    assert driver.session.is_idle


def test_a_forgotten_session_has_no_parents(driver):
    turn = driver.run(create())
    driver.finish(turn)
    assert [entry.response_id for entry in driver.session.cached] == [turn.response_id]
    driver.session.forget()
    assert driver.session.cached == []
    assert driver.run(create(turn.response_id)).parent is None


def test_a_session_that_rests_knows_all_that_it_knew(driver):
    conversation = EMPTY.extended([user("x" * 5_000, id="msg_a"), user("y")])
    for lane, ids in (("a", TokenIds(range(2_000))), ("b", None)):
        turn = driver.run(create(stream_id=lane))
        prompt = None if ids is None else Prompt("", ids, 0)
        driver.end(turn, CachedResponse(turn.response_id, conversation, prompt, lane))
    for _ in driver.session.rest():
        pass
    first, _ = driver.session.cached
    assert first.conversation.own_items._items == ()
    assert len(first.prompt.ids.as_array()) == 2_000
    assert item_text(driver.session.find_item("msg_a").message.content) == "x" * 5_000
    assert first.conversation.items() == conversation.items()


def test_giving_back_a_turn_twice_is_the_driver_s_fault(driver):
    turn = driver.run(create())
    driver.finish(turn)
    with pytest.raises(RuntimeError):
        driver.finish(turn)


# Other events.


def test_an_item_of_any_cached_conversation_is_found(driver):
    for lane, item_id in (("a", "msg_a"), ("b", "msg_b")):
        turn = driver.run(create(stream_id=lane))
        conversation = EMPTY.extended([user("x", id=item_id)])
        driver.end(turn, CachedResponse(turn.response_id, conversation, lane=lane))
    assert driver.session.find_item("msg_b").message.id == "msg_b"
    assert driver.session.find_item("msg_c") is None


def test_a_steer_of_nothing_fails_with_not_found(driver):
    driver.send(ClientEvent(response_steer=ResponseSteer(previous_response_id="resp_9")))
    (event,) = driver.take_events()
    assert event.response_steer_failed.error.code == "response_not_found"
    assert not event.HasField("stream_id")
    assert not event.response_steer_failed.steer.HasField("input")


@pytest.mark.parametrize("lane", [None, "a"])
def test_an_inject_fails_with_not_found(driver, lane):
    inject = ResponseInject(response_id="resp_9", input=given(user()))
    driver.send(ClientEvent(stream_id=lane, response_inject=inject))
    driver.send(ClientEvent(response_inject=ResponseInject()))
    event, bare = driver.take_events()
    failed = event.response_inject_failed
    assert event.HasField("sequence_number")
    assert (event.stream_id or None) == lane
    assert (failed.response_id, failed.error.code) == ("resp_9", "response_not_found")
    assert failed.input == inject.input
    assert not bare.response_inject_failed.HasField("input")


def test_an_append_without_a_paused_response_is_an_error(driver):
    append = ResponseAppend(response_id="resp_9", input=given(user()))
    driver.send(ClientEvent(stream_id="a", event_id="e1", response_append=append))
    assert driver.take_errors() == [("response_not_found", "a", "e1")]


@pytest.mark.parametrize("fields", [{}, {"stream_id": "not a lane"}, {"event_id": "x" * 999}])
def test_processed_is_ignored_with_all_its_faults(driver, fields):
    processed = ResponseProcessed(response_id="resp_1")
    driver.send(ClientEvent(response_processed=processed, **fields))
    assert driver.events == []


def test_an_event_without_a_known_arm_is_an_error(driver):
    driver.send(ClientEvent(stream_id="a", event_id="e1"))
    assert driver.take_errors() == [("unknown_event_type", "a", "e1")]


def start(**fields):
    return ClientEvent(event_id="e1", turnwire_session_start=TurnwireSessionStart(**fields))


def test_a_session_can_be_started_first(driver):
    assert not driver.session.wants_session_events
    driver.send(start(resume=False))
    (event,) = driver.take_events()
    assert event.turnwire_session_started.session_id == driver.session.id
    assert not event.HasField("sequence_number")
    assert driver.session.wants_session_events


@pytest.mark.parametrize("before", ["an event", "a refused event"])
def test_a_session_cannot_be_started_later(driver, before):
    if before == "an event":
        driver.run(create())
    else:
        driver.refuse(None)
        driver.take_events()
    driver.send(start())
    assert driver.take_errors() == [("invalid_value", None, "e1")]
    assert not driver.session.wants_session_events


def test_a_session_that_shall_be_resumable_is_refused_for_now(driver):
    driver.send(start(resume=True))
    assert driver.take_errors() == [("unsupported_value", None, "e1")]


def test_a_session_that_may_be_resumed_has_a_token_and_a_grace():
    driver = SessionDriver(resume_grace_s=7.5)
    assert driver.session.resume_token is None
    driver.send(start(resume=True))
    (event,) = driver.take_events()
    started = event.turnwire_session_started
    assert started.resume_token and started.resume_token == driver.session.resume_token
    assert started.resume_grace_s == 7.5
    assert driver.session.wants_session_events


def test_who_does_not_ask_for_resume_gets_no_token():
    driver = SessionDriver(resume_grace_s=7.5)
    driver.send(start())
    (event,) = driver.take_events()
    assert not event.turnwire_session_started.HasField("resume_token")
    assert driver.session.resume_token is None


def test_a_session_is_fresh_until_more_than_its_start_came(driver):
    assert driver.session.is_fresh
    driver.send(start())
    assert driver.session.is_fresh
    driver.send(create())
    assert not driver.session.is_fresh


def test_a_session_whose_first_event_was_no_start_is_not_fresh(driver):
    driver.send(create())
    assert not driver.session.is_fresh


def test_a_session_cannot_turn_into_another_one(driver):
    driver.send(create())
    resume = TurnwireSessionResume(session_id="sess_9", token="t")
    driver.send(ClientEvent(event_id="e1", turnwire_session_resume=resume))
    assert driver.take_errors() == [("invalid_value", None, "e1")]


def test_a_session_that_goes_on_elsewhere_takes_everything_again():
    driver = SessionDriver()
    driver.session.close_input()
    driver.session.close_to_creates(AGE)
    driver.session.reopen()
    turn = driver.begin(create())
    driver.session.pause_turn(turn, EMPTY)
    driver.pull()
    assert driver.told_to_end == []


@pytest.mark.parametrize("lane", [None, "a" * 500], ids=["default", "long"])
def test_a_gap_names_its_lane_within_bounds(lane):
    rejection = gap(lane)
    assert (rejection.code, rejection.param) == ("resume_gap", "last_seen")
    assert len(rejection.message) < 300


@pytest.mark.parametrize("arm", [arm.name for arm in ClientEvent.DESCRIPTOR.oneofs[0].fields])
def test_every_event_is_understood_even_when_it_is_empty(driver, arm):
    event = ClientEvent(event_id="e1")
    getattr(event, arm).SetInParent()
    driver.send(event)
    assert all(each.error.error.code != "unknown_event_type" for each in driver.take_events())


def test_every_error_is_small_whatever_was_sent(driver):
    huge = "x" * 1_000_000
    driver.send(
        create(stream_id=huge),
        create(event_id=huge),
        ClientEvent(response_append=ResponseAppend(response_id=huge)),
    )
    driver.refuse(None, stream_id=huge, event_id=huge, rejection=BAD_SHAPE)
    assert all(event.ByteSize() < 4096 for event in driver.events)
    assert len(driver.events) == 4


def test_a_session_has_an_id_of_its_own():
    ids = new_ids()
    first = Session(SessionSettings(), new_id=ids)
    assert first.id.startswith("sess_")
    assert Session(SessionSettings(), new_id=ids).id != first.id
