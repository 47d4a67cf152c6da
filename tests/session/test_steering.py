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
    given,
    user,
)
from turnwire.v1.client_event_pb2 import ClientEvent, Input, ResponseSteer
from turnwire.v1.content_pb2 import Content, ContentPart, ContentPartList, InputImage
from turnwire.v1.error_pb2 import (
    ERROR_REASON_CONTEXT_LENGTH_EXCEEDED,
    ERROR_REASON_SERVER_ERROR,
    ERROR_REASON_WEBSOCKET_CONNECTION_LIMIT_REACHED,
)
from turnwire.v1.item_pb2 import ITEM_STATUS_INCOMPLETE, Item, MessageItem
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.conversation import EMPTY, item_text
from turnwire_server.session.errors import Rejection
from turnwire_server.session.settings import SessionSettings
from turnwire_server.session.steering import refusal_events

TALK = EMPTY.extended([user("go")]).extended([assistant("gone")])
CALLS = EMPTY.extended([user("go")]).extended(
    [assistant("look"), call("c1"), custom_call("c2"), call("c3", status=ITEM_STATUS_INCOMPLETE)]
)
GONE = Rejection(ERROR_REASON_SERVER_ERROR, "The server goes away.")


def steer(target, text="left!", *, items=None, event_id=None):
    body = ResponseSteer(previous_response_id=target)
    body.input.CopyFrom(given(*items) if items is not None else Input(text=text))
    return ClientEvent(event_id=event_id, response_steer=body)


def arms(events):
    return [event.WhichOneof("event").removeprefix("response_steer_") for event in events]


def failure(driver):
    (event,) = driver.take_events()
    return event.response_steer_failed.error.code, event.response_steer_failed.error.param


def end(driver, turn, conversation=TALK):
    driver.end(turn, CachedResponse(turn.response_id, conversation, lane=turn.lane))


def applied(turn):
    return [item_text(item.message.content) for item in turn.steered_items]


@pytest.fixture
def driver():
    return SessionDriver()


# Accepting.


def test_a_steer_of_a_running_response_is_accepted_on_its_lane(driver):
    turn = driver.begin(create(stream_id="a"))
    driver.send(steer(turn.response_id), steer(turn.response_id, items=[user("x"), user("y")]))
    first, second = driver.take_events()
    assert first.stream_id == second.stream_id == "a"
    accepted = first.response_steer_accepted.steer
    assert accepted.id.startswith("steer_")
    assert accepted.previous_response_id == turn.response_id
    assert not accepted.HasField("input")
    assert second.response_steer_accepted.steer.id != accepted.id
    assert [len(one.items) for one in turn.steers] == [1, 2]


def test_the_same_steer_again_is_the_same_steer(driver):
    turn = driver.begin(create())
    driver.send(steer(turn.response_id, event_id="e1"), steer(turn.response_id, event_id="e1"))
    assert arms(driver.take_events()) == ["accepted"]
    assert len(turn.steers) == 1


def test_a_steer_that_failed_may_be_sent_again(driver):
    turn = driver.begin(create())
    driver.send(steer(turn.response_id, "", event_id="e1"), steer(turn.response_id, event_id="e1"))
    assert arms(driver.take_events()) == ["failed", "accepted"]


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([], "input"),
        ([assistant("me")], "input[0]"),
        ([user("x"), call_output("c1")], "input[1]"),
        ([Item()], "input[0]"),
        ([Item(message=MessageItem(role="system", content=Content(text="x")))], "input[0]"),
        ([user("x"), user("")], "input[1].content[0].text"),
        ([Item(message=MessageItem(role="user"))], "input[0].content"),
        (
            [
                Item(
                    message=MessageItem(
                        role="user",
                        content=Content(
                            parts=ContentPartList(parts=[ContentPart(input_image=InputImage())])
                        ),
                    )
                )
            ],
            "input[0].content[0]",
        ),
    ],
)
def test_a_steer_takes_user_messages_only(driver, items, param):
    turn = driver.begin(create(stream_id="a"))
    event = steer(turn.response_id, items=items)
    sent = event.response_steer.input.SerializeToString()
    driver.send(event)
    (answer,) = driver.take_events()
    failed = answer.response_steer_failed
    assert answer.stream_id == "a"
    assert (failed.error.code, failed.error.param) == ("invalid_input", param)
    assert failed.error.type == "invalid_request_error"
    assert failed.steer.previous_response_id == turn.response_id
    assert failed.steer.input.SerializeToString() == sent
    assert not failed.steer.HasField("id")
    assert turn.steers == ()


@pytest.mark.parametrize("text", ["", None])
def test_an_empty_steer_is_refused(driver, text):
    turn = driver.begin(create())
    event = steer(turn.response_id, text or "")
    if text is None:
        event.response_steer.ClearField("input")
    driver.send(event)
    assert failure(driver) == ("invalid_input", "input")


def test_a_response_is_found_only_while_the_client_can_know_it(driver):
    turn = driver.run(create())
    driver.send(steer(turn.response_id))
    assert failure(driver) == ("response_not_found", "previous_response_id")
    turn.begin(takes_steers=True)
    end(driver, turn)
    driver.send(steer(turn.response_id))
    assert failure(driver) == ("response_already_completed", "previous_response_id")


def test_a_response_that_failed_is_over_too(driver):
    turn = driver.begin(create())
    driver.fail(turn)
    driver.send(steer(turn.response_id))
    assert failure(driver)[0] == "response_already_completed"


def test_a_refused_turn_was_never_there(driver):
    turn = driver.run(create())
    driver.fail(turn)
    driver.send(steer(turn.response_id))
    assert failure(driver)[0] == "response_not_found"


def test_a_response_may_be_one_that_cannot_be_steered(driver):
    turn = driver.begin(create(), takes_steers=False)
    driver.send(steer(turn.response_id))
    assert failure(driver) == ("steering_not_supported", "previous_response_id")


def test_a_response_that_is_being_cancelled_is_not_active(driver):
    turn = driver.begin(create())
    driver.send(cancel(response_id=turn.response_id), steer(turn.response_id))
    assert failure(driver) == ("response_not_active", "previous_response_id")


def test_only_so_many_steers_wait_for_one_response():
    driver = SessionDriver(SessionSettings(max_pending_steers=2))
    turn = driver.begin(create())
    other = driver.begin(create(stream_id="a"))
    driver.send(*(steer(turn.response_id) for _ in range(3)), steer(other.response_id))
    assert arms(driver.events) == ["accepted", "accepted", "failed", "accepted"]
    failed = driver.events[2].response_steer_failed
    assert failed.error.code == "too_many_pending_steers"


# The successor.


def test_a_steered_response_is_followed_before_anything_that_waits_on_its_lane(driver):
    turn = driver.begin(
        create(stream_id="a", instructions="Be brief.", input=given(user("go")), event_id="e1")
    )
    driver.send(create(turn.response_id, stream_id="a", event_id="later"))
    driver.session.receive(steer(turn.response_id, "left"), size=1, now=7.0)
    driver.send(steer(turn.response_id, "right"))
    driver.take_events()
    end(driver, turn)
    successor = driver.started[-1]
    assert (successor.lane, successor.event_id, successor.is_successor) == ("a", None, True)
    assert successor.previous_response_id == turn.response_id
    assert successor.parent.response_id == turn.response_id
    assert successor.response_id != turn.response_id
    assert successor.create.instructions == "Be brief."
    assert not successor.create.HasField("input")
    assert turn.create.HasField("input")
    assert successor.received_at == 7.0
    assert applied(successor) == ["left", "right"]
    assert driver.events == []
    successor.begin(takes_steers=True)
    end(driver, successor)
    assert driver.started[-1].event_id == "later"
    assert driver.started[-1].parent.response_id == turn.response_id
    assert applied(driver.started[-1]) == []


def test_a_successor_can_be_steered_too(driver):
    turn = driver.begin(create())
    driver.send(steer(turn.response_id, "one"))
    end(driver, turn)
    successor = driver.started[-1]
    successor.begin(takes_steers=True)
    driver.send(steer(successor.response_id, "two"))
    end(driver, successor)
    assert applied(driver.started[-1]) == ["two"]
    assert driver.started[-1].previous_response_id == successor.response_id


def test_a_successor_that_cannot_begin_fails_its_steers_and_keeps_the_parent(driver):
    turn = driver.begin(create(stream_id="a"))
    driver.send(steer(turn.response_id, "one"), steer(turn.response_id, "two"))
    accepted = [event.response_steer_accepted.steer.id for event in driver.take_events()]
    end(driver, turn)
    successor = driver.started[-1]
    rejection = Rejection(ERROR_REASON_CONTEXT_LENGTH_EXCEEDED, "Too long.", param="input")
    answers = refusal_events(successor, rejection)
    assert arms(answers) == ["failed", "failed"]
    assert [answer.response_steer_failed.steer.id for answer in answers] == accepted
    assert {answer.response_steer_failed.error.code for answer in answers} == {
        "successor_creation_failed"
    }
    assert answers[0].response_steer_failed.error.message == "Too long."
    assert answers[0].response_steer_failed.steer.input.text == "one"
    assert answers[0].stream_id == "a"
    driver.fail(successor)
    assert driver.events == []
    assert [entry.response_id for entry in driver.session.cached] == [turn.response_id]


def test_a_successor_that_began_and_failed_evicts_its_parent_as_any_turn(driver):
    turn = driver.begin(create())
    driver.send(steer(turn.response_id))
    end(driver, turn)
    driver.started[-1].begin(takes_steers=True)
    driver.fail(driver.started[-1])
    assert driver.session.cached == []


def test_nothing_follows_a_response_that_failed(driver):
    turn = driver.begin(create())
    driver.send(steer(turn.response_id))
    driver.take_events()
    driver.fail(turn)
    assert failure(driver) == ("successor_creation_failed", "previous_response_id")
    assert len(driver.started) == 1


def test_nothing_follows_a_response_that_was_cancelled(driver):
    turn = driver.begin(create())
    driver.send(steer(turn.response_id), cancel())
    driver.take_events()
    end(driver, turn)
    assert failure(driver)[0] == "response_not_active"
    assert len(driver.started) == 1


def test_nothing_follows_when_the_session_takes_no_more_creates(driver):
    turn = driver.begin(create())
    driver.send(steer(turn.response_id))
    driver.take_events()
    driver.session.close_to_creates(
        Rejection(ERROR_REASON_WEBSOCKET_CONNECTION_LIMIT_REACHED, "Too old.")
    )
    end(driver, turn)
    (event,) = driver.take_events()
    assert event.response_steer_failed.error.code == "successor_creation_failed"
    assert event.response_steer_failed.error.message == "Too old."


def test_a_successor_waits_for_its_place_in_flight():
    driver = SessionDriver(SessionSettings(max_in_flight=1, max_queued=1))
    turn = driver.begin(create())
    driver.send(steer(turn.response_id), create(stream_id="b", event_id="other"))
    end(driver, turn)
    successor = driver.started[-1]
    assert successor.is_successor
    end(driver, successor)
    assert driver.started[-1].event_id == "other"


# Waiting for outputs.


def waiting(driver, **fields):
    turn = driver.begin(create(stream_id="a", **fields))
    driver.send(steer(turn.response_id, "one"), steer(turn.response_id, "two"))
    driver.take_events()
    end(driver, turn, CALLS)
    return turn


def test_steers_wait_for_the_outputs_of_calls(driver):
    turn = waiting(driver)
    assert len(driver.started) == 1
    events = driver.take_events()
    assert arms(events) == ["pending", "pending"]
    pending = events[0].response_steer_pending
    assert events[0].stream_id == "a"
    assert pending.steer.previous_response_id == turn.response_id
    assert pending.reason == "waiting_for_required_input"
    first, second = pending.required_input
    assert (first.function_call_output.call_id, first.function_call_output.name) == ("c1", "shell")
    assert second.custom_tool_call_output.call_id == "c2"


def test_a_steer_that_waits_is_announced_once(driver):
    waiting(driver)
    driver.take_events()
    other = driver.begin(create(stream_id="b"))
    end(driver, other)
    assert driver.events == []


def test_the_create_that_brings_the_outputs_takes_the_steers_first(driver):
    turn = waiting(driver)
    driver.take_events()
    driver.send(create(turn.response_id, stream_id="b"))
    assert applied(driver.started[-1]) == []
    driver.send(create(turn.response_id, stream_id="a", instructions="own"))
    following = driver.started[-1]
    assert applied(following) == ["one", "two"]
    assert following.create.instructions == "own"
    assert not following.is_successor
    following.begin(takes_steers=True)
    driver.fail(following)
    driver.send(create(turn.response_id, stream_id="a"))
    assert applied(driver.started[-1]) == []
    assert driver.events == []


def test_a_create_that_is_there_already_takes_the_steers_without_pending(driver):
    turn = driver.begin(create())
    driver.send(steer(turn.response_id), create(turn.response_id))
    driver.take_events()
    end(driver, turn, CALLS)
    assert driver.events == []
    assert applied(driver.started[-1]) == ["left!"]


def test_a_create_that_is_refused_leaves_the_steers_to_the_next_one(driver):
    turn = waiting(driver)
    driver.take_events()
    driver.send(create(turn.response_id, stream_id="a", event_id="e2"))
    refused = driver.started[-1]
    (error,) = refusal_events(refused, GONE)
    assert (error.error.error.code, error.event_id) == ("server_error", "e2")
    driver.fail(refused)
    assert driver.events == []
    driver.refuse(create(turn.response_id).response_create, stream_id="a")
    driver.take_events()
    driver.send(create(turn.response_id, stream_id="a"))
    assert applied(driver.started[-1]) == ["one", "two"]


def test_steers_fail_when_their_lane_goes_on_without_them(driver):
    waiting(driver)
    driver.take_events()
    driver.send(create(stream_id="a"))
    events = driver.take_events()
    assert arms(events) == ["failed", "failed"]
    assert events[0].response_steer_failed.error.code == "response_not_active"
    assert events[0].response_steer_failed.steer.id
    assert applied(driver.started[-1]) == []


# The end of the connection.


@pytest.mark.parametrize("rejection", [GONE, None])
def test_steers_end_with_the_connection(driver, rejection):
    waiting(driver)
    running = driver.begin(create(stream_id="b"))
    driver.send(steer(running.response_id))
    driver.take_events()
    driver.session.cancel_all(rejection)
    driver.pull()
    codes = [event.response_steer_failed.error.code for event in driver.take_events()]
    assert codes == ["successor_creation_failed"] * (2 if rejection else 0)
    end(driver, running)
    assert failure(driver)[0] == "response_not_active"
    assert driver.session.is_idle


@pytest.mark.parametrize("rejection", [GONE, None])
def test_a_successor_that_did_not_start_fails_its_steers(rejection):
    driver = SessionDriver(SessionSettings(max_in_flight=2))
    turn, other = driver.begin(create()), driver.begin(create(stream_id="b"))
    driver.send(create(stream_id="c"), steer(turn.response_id))
    driver.take_events()
    # Not pulled: what was started is still in the session's hands.
    driver.session.end_turn(turn, CachedResponse(turn.response_id, TALK))
    driver.session.cancel_all(rejection)
    driver.pull()
    codes = [
        event.response_steer_failed.error.code or event.error.error.code
        for event in driver.take_events()
    ]
    assert sorted(codes) == (["server_error", "successor_creation_failed"] if rejection else [])
    driver.fail(other)
    assert driver.session.is_idle


@pytest.mark.parametrize("rejection", [GONE, None])
def test_a_create_that_did_not_start_fails_the_steers_that_it_took(driver, rejection):
    turn = waiting(driver)
    driver.take_events()
    following = create(turn.response_id, stream_id="a", event_id="e2")
    driver.session.receive(following, size=1, now=0.0)
    driver.session.cancel_all(rejection)
    driver.pull()
    events = driver.take_events()
    if rejection is None:
        assert events == []
    else:
        assert arms(events[:2]) == ["failed", "failed"]
        assert events[2].event_id == "e2"
    assert driver.session.is_idle
