from __future__ import annotations

import pytest

from harness.session_driver import (
    SessionDriver,
    assistant,
    call,
    call_output,
    cancel,
    create,
    custom_call,
    custom_output,
    given,
    user,
)
from turnwire.v1.client_event_pb2 import ClientEvent, Input, ResponseAppend, ResponseSteer
from turnwire.v1.error_pb2 import ERROR_REASON_CONTEXT_LENGTH_EXCEEDED
from turnwire.v1.item_pb2 import AdditionalToolsItem, Item, ItemReferenceItem, MessageItem
from turnwire_server.session.conversation import EMPTY
from turnwire_server.session.errors import Rejection
from turnwire_server.session.settings import SessionSettings

TWO_CALLS = EMPTY.extended([user("go"), call("c1"), custom_call("c2")])
ANSWERS = (call_output("c1"), custom_output("c2"))


def append(response_id, *items, stream_id=None, event_id=None, text=None):
    body = ResponseAppend(response_id=response_id)
    if items:
        body.input.CopyFrom(given(*items))
    if text is not None:
        body.input.CopyFrom(Input(text=text))
    return ClientEvent(stream_id=stream_id, event_id=event_id, response_append=body)


def paused(driver, conversation=TWO_CALLS, **fields):
    turn = driver.begin(create(rollout=True, **fields))
    driver.session.pause_turn(turn, conversation)
    return turn


@pytest.fixture
def driver():
    return SessionDriver()


def test_a_paused_turn_is_in_flight_and_keeps_its_lane(driver):
    turn = paused(driver)
    driver.send(create(), create(stream_id="a"))
    assert driver.session.running == [turn, driver.started[-1]]
    assert [started.lane for started in driver.started] == [None, "a"]
    assert not driver.session.is_idle


@pytest.mark.parametrize("lane", [None, "a"])
def test_an_append_with_all_outputs_wakes_the_turn_with_its_items(driver, lane):
    turn = paused(driver, stream_id="a")
    driver.send(append(turn.response_id, *ANSWERS, user("and hurry"), stream_id=lane))
    assert driver.events == []
    assert driver.woken == [turn]
    assert not turn.is_paused
    items = turn.appended.items
    assert [item.WhichOneof("item") for item in items] == [
        "function_call_output",
        "custom_tool_call_output",
        "message",
    ]
    assert all(getattr(item, item.WhichOneof("item")).id for item in items)


BAD = {
    "no input": ((), "invalid_value", "input"),
    "an output is missing": ((call_output("c1"),), "invalid_value", "input"),
    "an output of nothing": (
        (*ANSWERS, call_output("c3")),
        "invalid_value",
        "input",
    ),
    "an output of another kind": (
        (custom_output("c1"), custom_output("c2")),
        "invalid_value",
        "input",
    ),
    "an answer twice": ((*ANSWERS, call_output("c1")), "invalid_value", "input"),
    "a call": ((*ANSWERS, call("c3")), "invalid_value", "input[2].type"),
    "an assistant's message": ((assistant(), *ANSWERS), "invalid_value", "input[0].role"),
    "a reference": (
        (*ANSWERS, Item(item_reference=ItemReferenceItem(id="msg_1"))),
        "invalid_value",
        "input[2].type",
    ),
    "tools": (
        (*ANSWERS, Item(additional_tools=AdditionalToolsItem())),
        "invalid_value",
        "input[2].type",
    ),
    "no arm": ((*ANSWERS, Item()), "missing_required_parameter", "input[2].type"),
    "no role": (
        (*ANSWERS, Item(message=MessageItem())),
        "missing_required_parameter",
        "input[2].role",
    ),
}


@pytest.mark.parametrize(("items", "code", "param"), BAD.values(), ids=BAD)
def test_a_bad_append_is_one_error_and_the_pause_stands(driver, items, code, param):
    turn = paused(driver)
    driver.send(append(turn.response_id, *items, event_id="e1"))
    (event,) = driver.take_events()
    assert (event.error.error.code, event.error.error.param) == (code, param)
    assert event.event_id == "e1"
    assert driver.woken == []
    driver.send(append(turn.response_id, *ANSWERS, event_id="e1"))
    assert driver.woken == [turn]
    assert driver.events == []


def test_a_text_alone_answers_no_call(driver):
    turn = paused(driver)
    driver.send(append(turn.response_id, text="never mind"))
    assert driver.take_errors() == [("invalid_value", None, None)]
    assert turn.is_paused


def test_an_append_to_a_response_that_is_not_paused_is_an_error(driver):
    turn = driver.begin(create(rollout=True))
    driver.send(append(turn.response_id, user(), stream_id="b", event_id="e1"))
    driver.send(append("resp_9", user()))
    assert driver.take_errors() == [
        ("response_not_found", "b", "e1"),
        ("response_not_found", None, None),
    ]


def test_an_append_on_another_lane_is_an_error(driver):
    turn = paused(driver)
    driver.send(append(turn.response_id, *ANSWERS, stream_id="b"))
    (event,) = driver.take_events()
    assert (event.error.error.code, event.error.error.param) == ("invalid_value", "stream_id")
    assert turn.is_paused


def test_a_second_append_comes_too_late(driver):
    turn = paused(driver)
    driver.send(append(turn.response_id, *ANSWERS), append(turn.response_id, *ANSWERS))
    assert driver.take_errors() == [("response_not_found", None, None)]
    assert driver.woken == [turn]


def test_the_same_append_again_is_the_same_append(driver):
    turn = paused(driver)
    event = append(turn.response_id, *ANSWERS, event_id="e1")
    driver.send(event, event)
    assert driver.events == []
    assert driver.woken == [turn]


def test_a_turn_may_pause_again_and_waits_for_its_new_calls_only(driver):
    turn = paused(driver)
    driver.send(append(turn.response_id, *ANSWERS))
    driver.session.pause_turn(turn, TWO_CALLS.extended([*ANSWERS, call("c9")]))
    driver.send(append(turn.response_id, *ANSWERS), append(turn.response_id, call_output("c9")))
    assert driver.take_errors() == [("invalid_value", None, None)]
    assert driver.woken == [turn, turn]
    driver.finish(turn)
    assert driver.session.is_idle


def test_an_append_that_cannot_be_used_is_taken_back(driver):
    turn = paused(driver)
    event = append(turn.response_id, *ANSWERS, stream_id=None, event_id="e1")
    driver.send(event)
    rejection = Rejection(ERROR_REASON_CONTEXT_LENGTH_EXCEEDED, "Too long.", param="input")
    error = turn.appended.error(rejection)
    assert (error.event_id, error.error.error.code) == ("e1", "context_length_exceeded")
    driver.session.take_back(turn, turn.appended)
    assert turn.is_paused
    driver.send(event)
    assert driver.woken == [turn, turn]


def test_steers_of_a_paused_turn_come_before_what_is_appended(driver):
    turn = paused(driver)
    steer = ResponseSteer(previous_response_id=turn.response_id, input=Input(text="faster"))
    driver.send(ClientEvent(response_steer=steer), append(turn.response_id, *ANSWERS))
    items = turn.appended.items
    assert items[0].message.content.parts.parts[0].input_text.text == "faster"
    assert [item.WhichOneof("item") for item in items[1:]] == [
        "function_call_output",
        "custom_tool_call_output",
    ]
    assert turn.steers == ()
    driver.session.take_back(turn, turn.appended)
    assert len(turn.steers) == 1
    driver.send(append(turn.response_id, *ANSWERS))
    assert len(turn.appended.items) == 3


def test_paths_of_an_append_do_not_count_steers(driver):
    turn = paused(driver)
    steer = ResponseSteer(previous_response_id=turn.response_id, input=Input(text="faster"))
    driver.send(ClientEvent(response_steer=steer))
    driver.take_events()
    driver.send(append(turn.response_id, *ANSWERS, assistant()))
    (event,) = driver.take_events()
    assert event.error.error.param == "input[2].role"


def test_a_paused_turn_can_be_cancelled(driver):
    turn = paused(driver)
    driver.send(cancel(response_id=turn.response_id))
    assert driver.told_to_end == [turn]
    driver.send(append(turn.response_id, *ANSWERS))
    assert driver.take_errors() == [("response_not_found", None, None)]
    driver.finish(turn)
    assert driver.session.is_idle


def test_a_turn_that_waits_no_longer_takes_no_input(driver):
    turn = paused(driver)
    driver.session.end_pause(turn)
    driver.send(append(turn.response_id, *ANSWERS))
    assert driver.take_errors() == [("response_not_found", None, None)]
    driver.finish(turn)


def test_when_no_input_can_come_any_more_what_is_paused_is_cancelled(driver):
    turn = paused(driver, stream_id="a")
    running = driver.begin(create(rollout=True))
    driver.session.close_input()
    driver.pull()
    assert driver.told_to_end == [turn]
    assert turn.is_cancelled and not running.is_cancelled
    driver.session.pause_turn(running, TWO_CALLS)
    driver.pull()
    assert driver.told_to_end == [turn, running]


def test_what_is_taken_back_when_no_input_can_come_any_more_is_cancelled(driver):
    turn = paused(driver)
    driver.send(append(turn.response_id, *ANSWERS))
    driver.session.close_input()
    driver.session.take_back(turn, turn.appended)
    driver.pull()
    assert driver.told_to_end == [turn]


def test_a_paused_turn_may_break(driver):
    turn = paused(driver)
    driver.fail(turn)
    assert driver.session.is_idle


def test_steers_that_an_append_took_count_while_it_may_be_taken_back():
    driver = SessionDriver(SessionSettings(max_pending_steers=1))
    turn = paused(driver)
    steer = ResponseSteer(previous_response_id=turn.response_id, input=Input(text="faster"))
    driver.send(ClientEvent(response_steer=steer), append(turn.response_id, *ANSWERS))
    driver.send(ClientEvent(response_steer=steer))
    accepted, failed = driver.take_events()
    assert accepted.HasField("response_steer_accepted")
    assert failed.response_steer_failed.error.code == "too_many_pending_steers"
    turn.appended = None  # the driver goes on with it
    driver.send(ClientEvent(response_steer=steer))
    assert driver.take_events()[0].HasField("response_steer_accepted")
