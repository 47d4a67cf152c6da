"""Cancelling: a running turn, a queued one, and nothing."""

from __future__ import annotations

import pytest

from harness.reading import arm_of, arms, code_of, failure_of, public, response_of, status_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import SHELL, call_output, said, script, user
from turnwire_server.adapters.engines.sim import SimSettings


@requirement("cancel.running")
@pytest.mark.parametrize("after_steps", [0, 1, 3], ids=["in prefill", "at first", "in the middle"])
async def test_cancel_ends_a_running_turn_with_one_incomplete_of_status_cancelled(
    connect: Connect, after_steps: int
) -> None:
    connect.parts.sim = SimSettings(step_tokens=4)
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=after_steps)
    await peer.create(input="talk", store=False, metadata=script(tokens=60))
    response_id = await stack.engine.held(hold)
    await peer.send({"type": "response.cancel", "response_id": response_id})
    events = await peer.finish()
    assert arms(events)[-1] == "response_incomplete"
    response = response_of(events)
    assert status_of(response) == "cancelled"
    assert not response.HasField("incomplete_details")
    assert response.usage.output_tokens == 4 * after_steps
    assert response.usage.input_tokens > 0
    if after_steps:
        assert public(response.output[-1])["status"] == "incomplete"
    else:
        assert not response.output
    # It is the lane's head: the chain goes on from it.
    child = await peer.turn(input="on", previous_response_id=response_id, metadata=said("fine"))
    assert arms(child)[-1] == "response_completed"


@requirement("cancel.call")
async def test_a_call_that_was_cancelled_needs_no_output(connect: Connect) -> None:
    connect.parts.sim = SimSettings(step_tokens=4)
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("call", after_steps=5)
    await peer.create(input="call", tools=[SHELL], store=False, metadata=script(call_tokens=60))
    response_id = await stack.engine.held(hold)
    await peer.send({"type": "response.cancel", "response_id": response_id})
    response = response_of(await peer.finish())
    assert public(response.output[-1])["type"] == "function_call"
    assert public(response.output[-1])["status"] == "incomplete"
    child = await peer.turn(
        input="never mind", previous_response_id=response_id, metadata=said("fine")
    )
    assert arms(child)[-1] == "response_completed"


@requirement("cancel.call")
async def test_a_call_that_was_complete_before_the_cancel_needs_its_output(
    connect: Connect,
) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("call", after_steps=2)
    calls = [{"name": "exec_command", "arguments": {"cmd": "ls"}}]
    await peer.create(
        input="call", tools=[SHELL], metadata=script(calls=calls, after="and then " * 40)
    )
    response_id = await stack.engine.held(hold)
    await peer.send({"type": "response.cancel", "response_id": response_id})
    response = response_of(await peer.finish())
    call = response.output[0].function_call
    assert public(response.output[0])["status"] == "completed"
    events = await peer.turn(
        input=[call_output(call), user("on")],
        previous_response_id=response_id,
        metadata=said("fine"),
    )
    assert arms(events)[-1] == "response_completed"


@requirement("cancel.lane")
async def test_cancel_without_an_id_ends_what_runs_on_its_lane(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    holds = {text: stack.engine.hold(text) for text in ("named", "default")}
    await peer.create(input="named", stream_id="a")
    await peer.create(input="default")
    for hold in holds.values():
        await stack.engine.held(hold)
    await peer.send({"type": "response.cancel"})
    assert status_of(response_of(await peer.finish())) == "cancelled"
    await peer.send({"type": "response.cancel", "stream_id": "a"})
    assert status_of(response_of(await peer.finish("a"))) == "cancelled"


@requirement("cancel.queued")
async def test_cancel_takes_a_queued_create_out_of_the_line(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("first")
    await peer.create(input="first", event_id="e1")
    await stack.engine.held(hold)
    await peer.create(input="second", event_id="e2", metadata=said("second"))
    await peer.create(input="third", event_id="e3", metadata=said("third"))
    await peer.send({"type": "response.cancel", "event_id": "e2"})
    error = await peer.until("error")
    assert code_of(error) == "request_cancelled"
    assert error.event_id == "e2"
    stack.engine.release(hold)
    assert status_of(response_of(await peer.finish())) == "completed"
    third = await peer.finish()
    assert response_of(third).turnwire.event_id == "e3"
    asked = [request.outline.last_user_text for request in stack.engine.requests]
    assert asked == ["first", "third"]


@requirement("cancel.queued")
async def test_cancel_by_event_id_ends_the_turn_if_it_runs_already(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("first")
    await peer.create(input="first", event_id="e1")
    await stack.engine.held(hold)
    await peer.send({"type": "response.cancel", "event_id": "e1"})
    assert status_of(response_of(await peer.finish())) == "cancelled"


@requirement("cancel.nothing")
async def test_cancel_of_nothing_is_silent(connect: Connect) -> None:
    peer = await connect()
    over = response_of(await peer.turn(input="one", event_id="e1"))
    for cancel in (
        {},
        {"response_id": "resp_missing"},
        {"response_id": over.id},
        {"stream_id": "nobody"},
        {"event_id": "never_seen"},
    ):
        await peer.send({"type": "response.cancel", **cancel})
    events = await peer.turn(input="two")
    assert arm_of(events[0]) == "response_created"
    assert status_of(response_of(events)) == "completed"


@requirement("cancel.nothing")
async def test_a_late_cancel_of_a_create_does_not_end_the_next_turn(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    await peer.turn(input="one", event_id="e1")
    hold = stack.engine.hold("two")
    await peer.create(input="two", event_id="e2")
    await stack.engine.held(hold)
    await peer.send({"type": "response.cancel", "event_id": "e1"})
    await peer.send({"type": "response.steer", "previous_response_id": "resp_none", "input": "x"})
    await peer.until("response_steer_failed")
    assert ("cancel", stack.engine.requests[-1].request_id) not in stack.engine.log
    stack.engine.release(hold)
    assert status_of(response_of(await peer.finish())) == "completed"


@requirement("cancel.refused_create")
async def test_a_cancel_does_not_hide_that_a_create_was_refused(connect: Connect) -> None:
    peer = await connect()
    await peer.create(input="x", temperature=9, event_id="e1")
    await peer.send({"type": "response.cancel", "event_id": "e1"})
    (error,) = await peer.finish()
    assert failure_of(error) == ("invalid_value", 400, "temperature")


@requirement("cancel.at_once")
async def test_a_create_and_its_cancel_in_one_breath_give_one_cancelled_response(
    connect: Connect,
) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("one")  # it cannot be over before the cancel is read
    await peer.create(input="one", event_id="e1")
    await peer.send({"type": "response.cancel", "event_id": "e1"})
    events = await peer.finish()
    assert arms(events) == ["response_created", "response_in_progress", "response_incomplete"]
    assert status_of(response_of(events)) == "cancelled"
    stack.engine.release(hold)


@requirement("event_id.echo")
async def test_an_event_id_comes_back_in_response_created_and_on_errors(connect: Connect) -> None:
    peer = await connect()
    events = await peer.turn(input="Hi", event_id="mine-1")
    assert events[0].response_created.response.turnwire.event_id == "mine-1"
    (error,) = await peer.turn(input="Hi", temperature=9, event_id="mine-2", stream_id="a")
    assert (error.event_id, error.stream_id) == ("mine-2", "a")
    await peer.send({"type": "turnwire.session.start", "event_id": "mine-3"})
    assert (await peer.receive()).event_id == "mine-3"


@requirement("event_id.once")
async def test_the_same_event_id_is_the_same_request(connect: Connect) -> None:
    peer = await connect()
    events = await peer.turn(input="one", event_id="e1")
    peer.is_checked = False  # what is over ends once more, and nothing is open then
    for lane in ({}, {"stream_id": "elsewhere"}):
        await peer.create(input="one", event_id="e1", **lane)
        assert await peer.receive() == events[-1]
    await peer.turn(input="two", event_id="e2")
    asked = [request.outline.last_user_text for request in connect.stack.engine.requests]
    assert asked == ["one", "two"]


@requirement("event_id.retry")
async def test_a_create_that_found_no_place_in_line_may_be_sent_again(connect: Connect) -> None:
    from dataclasses import replace

    settings = connect.parts.settings
    connect.parts.settings = replace(settings, session=replace(settings.session, max_queued=1))
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("first")
    await peer.create(input="first")
    await stack.engine.held(hold)
    await peer.create(input="second")
    await peer.create(input="third", event_id="e3")
    assert code_of(await peer.until("error")) == "rate_limit_exceeded"
    stack.engine.release(hold)
    await peer.finish()
    await peer.finish()
    events = await peer.turn(input="third", event_id="e3")
    assert response_of(events).turnwire.event_id == "e3"
