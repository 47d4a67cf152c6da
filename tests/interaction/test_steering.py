"""Steering: user messages for a response that runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.peers import Peer
from harness.reading import (
    arm_of,
    arms,
    code_of,
    public,
    response_of,
    status_of,
    text_of,
)
from harness.stack import Stack
from harness.waiting import until
from interaction.conftest import Connect
from interaction.pauses import append, outputs_for, required, round_of, steer
from interaction.requirements import requirement
from interaction.scripts import SHELL, said, script, user
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.renderers.sim_tokens import sim_tokens
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.store import StoredResponse
from turnwire_server.session.settings import SessionSettings

STEP = SimSettings(step_tokens=1)
ONE, TWO = "one " * 20, "two " * 20
CALLS = [
    {"name": "exec_command", "arguments": {"cmd": ONE}},
    {"name": "exec_command", "arguments": {"cmd": TWO}},
]
IN_THE_CALL = 25
"""After so many tokens the model is writing the arguments of the first call."""


async def held(
    connect: Connect, *, after_steps: int = 2, **create: Any
) -> tuple[Peer, Stack, Any, str]:
    """Start a turn and stop it after so many tokens."""
    connect.parts.sim = STEP
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=after_steps)
    await peer.create({"input": "talk", "store": False, **create})
    return peer, stack, hold, await stack.engine.held(hold)


async def accept(
    peer: Peer, target: str, input: Any, lane: str | None = None, **more: Any
) -> ServerEvent:
    """Steer a response on a lane and wait until the server has taken it."""
    await steer(peer, target, input, **more)
    return await peer.until("response_steer_accepted", lane)


def _prompt(stack: Stack, response_id: str) -> str:
    """Return a response's newest prompt as text."""
    ids = [one.ids for one in stack.engine.requests if one.request_id == response_id][-1]
    return b"".join(map(sim_tokens().token_bytes, ids)).decode()


def steer_of(event: ServerEvent) -> dict[str, Any]:
    """Return the steer that an event is about."""
    assert arm_of(event).startswith("response_steer_"), event
    return dict(public(event)["steer"])


# A text.


@requirement("steer.text")
@pytest.mark.parametrize("lane", [None, "a"])
@pytest.mark.parametrize("more", [{}, {"stream_id": "b"}], ids=["plain", "with a stream_id"])
async def test_a_steered_answer_is_finished_and_followed(
    connect: Connect, lane: str | None, more: dict[str, Any]
) -> None:
    named = {} if lane is None else {"stream_id": lane}
    peer, stack, hold, target = await held(
        connect, instructions="Be brief.", metadata=said("a long answer"), **named
    )
    accepted = await accept(peer, target, "In French.", lane, **more)
    assert steer_of(accepted)["id"].startswith("steer_")
    assert steer_of(accepted)["previous_response_id"] == target
    assert accepted.sequence_number > 0
    stack.engine.release(hold)
    first = response_of(await peer.finish(lane))
    assert (first.id, status_of(first), text_of(first)) == (target, "completed", "a long answer")
    second = await peer.finish(lane)
    created = second[0].response_created.response
    assert created.id != target
    assert created.previous_response_id == target
    assert created.instructions == "Be brief."
    assert not created.turnwire.HasField("event_id")
    assert status_of(response_of(second)) == "completed"
    assert stack.engine.requests[-1].outline.last_user_text == "In French."
    # The steer is used up, and the successor is the lane's newest response.
    child = await peer.turn(input="on", previous_response_id=created.id, **named)
    assert status_of(response_of(child)) == "completed"
    assert len(stack.engine.requests) == 3


@requirement("steer.text")
async def test_a_finished_answer_is_not_rendered_again_for_its_successor(
    connect: Connect,
) -> None:
    peer, stack, hold, target = await held(
        connect, metadata=said("an answer"), include=["turnwire.timing"]
    )
    await accept(peer, target, [user("In French."), user("Please.")])
    stack.engine.release(hold)
    await peer.finish()
    successor = response_of(await peer.finish())
    assert successor.turnwire.timing.rerender_reason == ""
    before, after = (list(request.ids) for request in stack.engine.requests)
    assert after[: len(before)] == before
    assert stack.engine.requests[-1].outline.last_user_text == "Please."


@requirement("steer.text")
async def test_a_response_that_has_said_nothing_yet_ends_at_once(connect: Connect) -> None:
    peer, stack, hold, target = await held(connect, after_steps=0, metadata=said("never said"))
    await accept(peer, target, "Stop.")
    stack.engine.release(hold)
    first = response_of(await peer.finish())
    assert (status_of(first), first.incomplete_details.reason) == ("incomplete", "steered")
    assert not first.output
    assert response_of(await peer.finish()).previous_response_id == target


# Boundaries.


@requirement("steer.boundary")
async def test_reasoning_is_finished_and_the_answer_not_begun(connect: Connect) -> None:
    peer, stack, hold, target = await held(
        connect, metadata=script(reasoning="thinking about it", text="the answer")
    )
    await accept(peer, target, "Stop.")
    stack.engine.release(hold)
    first = response_of(await peer.finish())
    assert (status_of(first), first.incomplete_details.reason) == ("incomplete", "steered")
    (item,) = first.output
    assert public(item)["content"][0]["text"] == "thinking about it"
    assert public(item)["status"] == "completed"
    assert ("cancel", target) in stack.engine.log
    second = response_of(await peer.finish())
    assert second.previous_response_id == target
    # What was sampled of the answer is not in the successor's prompt.
    cold = list(stack.engine.requests[-1].ids)
    other = await connect()
    history = [user("talk"), *[public(one) for one in first.output], user("Stop.")]
    await other.turn(input=history, metadata=said("x"))
    assert list(stack.engine.requests[-1].ids) == cold


@requirement("steer.boundary")
async def test_a_call_is_finished_and_no_other_begun(connect: Connect) -> None:
    peer, stack, hold, target = await held(
        connect, after_steps=IN_THE_CALL, tools=[SHELL], metadata=script(calls=CALLS)
    )
    await accept(peer, target, "One is enough.")
    stack.engine.release(hold)
    events = await peer.finish()
    first = response_of(events)
    assert (status_of(first), first.incomplete_details.reason) == ("incomplete", "steered")
    (call,) = first.output
    assert public(call)["arguments"] == f'{{"cmd": "{ONE}"}}'
    assert public(call)["status"] == "completed"
    pending = await peer.receive()
    assert arm_of(pending) == "response_steer_pending"
    assert pending.sequence_number == events[-1].sequence_number + 1


@requirement("steer.boundary")
async def test_a_response_that_ends_with_its_item_completes(connect: Connect) -> None:
    peer, stack, hold, target = await held(
        connect, after_steps=IN_THE_CALL, tools=[SHELL], metadata=script(calls=CALLS[:1])
    )
    await accept(peer, target, "And then?")
    stack.engine.release(hold)
    assert status_of(response_of(await peer.finish())) == "completed"


@requirement("steer.boundary")
async def test_wherever_a_steer_comes_no_item_is_cut_and_nothing_said_is_lost(
    connect: Connect,
) -> None:
    calls = script(
        calls=[{"name": "exec_command", "arguments": {"cmd": name}} for name in ("one", "two")],
        text="Look.",
        after="Done.",
    )
    connect.parts.sim = STEP
    peer = await connect()
    stack = await connect.start()
    whole = response_of(await peer.turn(input="count", tools=[SHELL], metadata=calls))
    said_items = [_words(public(item)) for item in whole.output]
    ends = set()
    for steps in range(whole.usage.output_tokens):
        lane = f"lane{steps % 16}"
        hold = stack.engine.hold(f"talk {steps}", after_steps=steps)
        await peer.create(
            input=f"talk {steps}", tools=[SHELL], metadata=calls, stream_id=lane, store=False
        )
        target = await stack.engine.held(hold)
        await accept(peer, target, "Stop.", lane)
        stack.engine.release(hold)
        response = response_of(await peer.finish(lane))
        assert {public(item)["status"] for item in response.output} <= {"completed"}
        words = [_words(public(item)) for item in response.output]
        assert words == said_items[: len(words)]
        ends.add(len(words))
        outputs: list[dict[str, Any]] = []
        if len(words) > 1:
            pending = await peer.until("response_steer_pending", lane)
            outputs = outputs_for(pending)
            await peer.create(input=outputs, previous_response_id=target, stream_id=lane)
        following = response_of(await peer.finish(lane))
        assert status_of(following) == "completed"
        # The model sees what was said, the steer and the outputs, and nothing else.
        other = await connect()
        history = [user(f"talk {steps}"), *[public(one) for one in response.output]]
        tools = {} if outputs else {"tools": [SHELL]}
        again = response_of(
            await other.turn(input=[*history, user("Stop."), *outputs], metadata=said("x"), **tools)
        )
        seen = _prompt(stack, following.id).rstrip()
        assert seen == _prompt(stack, again.id).rstrip()
    assert ends == {0, 1, 2, 3, 4}


def _words(item: dict[str, Any]) -> str:
    return str(item["arguments"] if "arguments" in item else item["content"][0]["text"])


# Calls that wait for outputs.


@requirement("steer.pending")
async def test_steers_come_before_the_outputs_that_the_next_create_brings(
    connect: Connect,
) -> None:
    peer, stack, hold, target = await held(
        connect,
        after_steps=IN_THE_CALL,
        tools=[SHELL],
        metadata=script(calls=CALLS),
        stream_id="a",
    )
    ids = []
    for text in ("first", "second"):
        ids.append(steer_of(await accept(peer, target, text, "a"))["id"])
    stack.engine.release(hold)
    await peer.finish("a")
    pendings = [await peer.until("response_steer_pending", "a") for _ in range(2)]
    assert [steer_of(pending)["id"] for pending in pendings] == ids
    pending = public(pendings[0])
    assert pending["reason"] == "waiting_for_required_input"
    assert [stub["type"] for stub in pending["required_input"]] == ["function_call_output"]
    assert pending["required_input"][0]["name"] == "exec_command"
    assert "input" not in pending["steer"]
    items = outputs_for(pendings[0])
    await peer.create(
        input=items, previous_response_id=target, stream_id="a", instructions="Own settings."
    )
    following = response_of(await peer.finish("a"))
    assert following.instructions == "Own settings."
    assert following.previous_response_id == target
    prompt = _prompt(stack, following.id)
    assert prompt.index("first") < prompt.index("second") < prompt.index("hello")
    assert peer.rest() == []


@requirement("steer.pending")
async def test_a_create_that_waits_already_takes_the_steers_without_pending(
    connect: Connect,
) -> None:
    peer, stack, hold, target = await held(
        connect, after_steps=IN_THE_CALL, tools=[SHELL], metadata=script(calls=CALLS[:1])
    )
    await accept(peer, target, "faster")
    await peer.create(input="no outputs", previous_response_id=target, event_id="early")
    await until(lambda: any(host.session.queued for host in stack.services.hosts))
    stack.engine.release(hold)
    await peer.finish()
    # It has no outputs: refused like any such create, and the steer waits on.
    (error,) = await peer.finish()
    assert (code_of(error), error.event_id) == ("invalid_value", "early")
    assert peer.rest() == []


@requirement("steer.pending")
async def test_a_refused_create_leaves_the_steer_to_the_next_one(connect: Connect) -> None:
    peer, stack, hold, target = await held(
        connect,
        after_steps=IN_THE_CALL,
        tools=[SHELL],
        metadata=script(calls=CALLS[:1]),
        store=True,
    )
    await accept(peer, target, "faster")
    stack.engine.release(hold)
    await peer.finish()
    pending = await peer.until("response_steer_pending")
    (error,) = await peer.turn(input="no outputs", previous_response_id=target)
    assert code_of(error) == "invalid_value"
    response = response_of(await peer.turn(input=outputs_for(pending), previous_response_id=target))
    assert "faster" in _prompt(stack, response.id)
    assert peer.rest() == []


@requirement("steer.pending")
async def test_steers_fail_when_the_lane_goes_on_without_the_outputs(connect: Connect) -> None:
    peer, stack, hold, target = await held(
        connect, after_steps=IN_THE_CALL, tools=[SHELL], metadata=script(calls=CALLS[:1])
    )
    await accept(peer, target, "faster")
    stack.engine.release(hold)
    await peer.finish()
    pending = await peer.until("response_steer_pending")
    await peer.create(input="something else")
    failed = await peer.receive()
    assert public(failed)["error"]["code"] == "response_not_active"
    assert steer_of(failed)["id"] == steer_of(pending)["id"]
    assert steer_of(failed)["input"] == "faster"
    assert failed.sequence_number == 0
    assert status_of(response_of(await peer.finish())) == "completed"


# Order.


@requirement("steer.order")
async def test_the_successor_runs_before_what_waits_and_with_all_steers_in_order(
    connect: Connect,
) -> None:
    peer, stack, hold, target = await held(connect, metadata=said("answer"))
    await peer.create(input="queued", event_id="queued", metadata=said("queued answer"))
    for text in ("one", "two", "three"):
        await accept(peer, target, text)
    stack.engine.release(hold)
    await peer.finish()
    successor = response_of(await peer.finish())
    assert successor.previous_response_id == target
    assert text_of(response_of(await peer.finish())) == "queued answer"
    prompt = _prompt(stack, successor.id)
    assert prompt.index("one") < prompt.index("two") < prompt.index("three")


@requirement("steer.order")
async def test_a_successor_can_be_steered_and_other_lanes_go_on(connect: Connect) -> None:
    peer, stack, hold, target = await held(connect, metadata=said("answer"), stream_id="a")
    second_hold = stack.engine.hold("again", after_steps=1)
    await accept(peer, target, "again", "a")
    beside = await peer.turn(input="Hi", stream_id="b", metadata=said("beside"))
    assert text_of(response_of(beside)) == "beside"
    stack.engine.release(hold)
    await peer.finish("a")
    successor_id = await stack.engine.held(second_hold)
    await accept(peer, successor_id, "and again", "a")
    stack.engine.release(second_hold)
    assert response_of(await peer.finish("a")).id == successor_id
    assert response_of(await peer.finish("a")).previous_response_id == successor_id


# Failures.


@requirement("steer.failed")
async def test_a_steer_of_a_response_that_is_over_or_elsewhere_fails(connect: Connect) -> None:
    peer, other = await connect(), await connect()
    response = response_of(await peer.turn(input="Hi", stream_id="a"))
    for one, code in ((peer, "response_already_completed"), (other, "response_not_found")):
        await steer(one, response.id, [user("late")])
        failed = await one.receive()
        shown = public(failed)
        assert shown["type"] == "response.steer.failed"
        assert (shown["error"]["code"], shown["sequence_number"]) == (code, 0)
        assert shown["error"]["type"] == "invalid_request_error"
        assert shown["steer"] == {
            "previous_response_id": response.id,
            "input": [{"type": "message", **user("late")}],
        }


@requirement("steer.failed")
@pytest.mark.parametrize(
    "input",
    [
        "",
        [],
        [{"role": "assistant", "content": "me"}],
        [user("x"), {"type": "function_call_output", "call_id": "call_1", "output": "x"}],
        [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}],
    ],
    ids=["empty", "none", "assistant", "output", "image"],
)
async def test_a_steer_takes_user_messages_only(connect: Connect, input: Any) -> None:
    peer, stack, hold, target = await held(connect, metadata=said("answer"), stream_id="a")
    await steer(peer, target, input)
    failed = await peer.until("response_steer_failed", "a")
    assert public(failed)["error"]["code"] == "invalid_input"
    assert "id" not in steer_of(failed)
    stack.engine.release(hold)
    assert status_of(response_of(await peer.finish("a"))) == "completed"
    assert len(stack.engine.requests) == 1


@requirement("steer.failed")
async def test_only_so_many_steers_may_wait(connect: Connect) -> None:
    settings = connect.parts.settings
    connect.parts.settings = type(settings)(session=SessionSettings(max_pending_steers=2))
    peer, stack, hold, target = await held(connect, metadata=said("answer"))
    for _ in range(3):
        await steer(peer, target, "more")
    failed = await peer.until("response_steer_failed")
    assert public(failed)["error"]["code"] == "too_many_pending_steers"
    stack.engine.release(hold)
    await peer.finish()
    assert status_of(response_of(await peer.finish())) == "completed"


@requirement("steer.failed")
@pytest.mark.parametrize(
    "create",
    [
        {"generate": False},
        {"context_management": [{"type": "compaction", "compact_threshold": 100_000}]},
    ],
    ids=["warm-up", "automatic compaction"],
)
async def test_some_responses_cannot_be_steered(connect: Connect, create: dict[str, Any]) -> None:
    peer, stack, hold, target = await held(connect, after_steps=0, **create)
    await steer(peer, target, "more")
    failed = await peer.until("response_steer_failed")
    assert public(failed)["error"]["code"] == "steering_not_supported"
    stack.engine.release(hold)
    await peer.finish()


@requirement("steer.failed")
async def test_a_response_that_is_being_cancelled_cannot_be_steered(connect: Connect) -> None:
    peer, stack, hold, target = await held(connect, metadata=said("answer"))
    await peer.send({"type": "response.cancel"})
    await steer(peer, target, "more")
    events = await peer.finish()
    late = [*events, *peer.rest()]
    if "response_steer_failed" not in arms(late):
        late.append(await peer.receive())
    (failed,) = [event for event in late if arm_of(event) == "response_steer_failed"]
    # On a wire the turn may be over before the steer arrives.
    assert public(failed)["error"]["code"] in (
        "response_not_active",
        "response_already_completed",
    )
    assert status_of(response_of(events)) == "cancelled"
    stack.engine.release(hold)


@requirement("steer.not_applied")
async def test_steers_of_a_cancelled_response_are_given_back(connect: Connect) -> None:
    peer, _, _, target = await held(connect, metadata=said("answer"))
    await accept(peer, target, "more")
    await peer.send({"type": "response.cancel"})
    events = await peer.finish()
    assert status_of(response_of(events)) == "cancelled"
    failed = await peer.receive()
    assert public(failed)["error"]["code"] == "response_not_active"
    assert steer_of(failed)["input"] == "more"
    assert failed.sequence_number == events[-1].sequence_number + 1


@requirement("steer.not_applied")
async def test_steers_of_a_failed_response_are_given_back(connect: Connect) -> None:
    peer, stack, hold, target = await held(connect, metadata=script(tokens=50, fail_after=10))
    await accept(peer, target, "more")
    stack.engine.release(hold)
    assert status_of(response_of(await peer.finish())) == "failed"
    failed = await peer.receive()
    assert public(failed)["error"]["code"] == "successor_creation_failed"


@requirement("steer.not_applied")
async def test_steers_that_leave_no_room_to_answer_are_given_back(connect: Connect) -> None:
    connect.parts.sim = SimSettings(step_tokens=1, context_length=300)
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=1)
    await peer.create(input="talk", store=False, metadata=said("answer"))
    target = await stack.engine.held(hold)
    await accept(peer, target, "long " * 500)
    stack.engine.release(hold)
    assert status_of(response_of(await peer.finish())) == "completed"
    failed = await peer.receive()
    assert public(failed)["error"]["code"] == "successor_creation_failed"
    assert failed.sequence_number == 0
    # The target is still the lane's newest response.
    child = await peer.turn(input="on", previous_response_id=target, metadata=said("fine"))
    assert text_of(response_of(child)) == "fine"


@requirement("steer.not_applied")
async def test_a_steer_that_comes_while_the_response_is_kept_is_answered_behind_its_end(
    connect: Connect,
) -> None:
    is_kept, may_go_on = asyncio.Event(), asyncio.Event()

    class SlowStore(MemoryResponseStore):
        async def put(self, record: StoredResponse) -> None:
            is_kept.set()
            await may_go_on.wait()
            await super().put(record)

    connect.parts.store = SlowStore(MemoryStoreSettings(), wall=lambda: 0)
    connect.parts.sim = STEP
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("talk", after_steps=2)
    await peer.create(input="talk", metadata=said("answer"))
    target = await stack.engine.held(hold)
    stack.engine.release(hold)
    async with asyncio.timeout(20):
        await is_kept.wait()
    ((host, _),) = stack.services.running.values()
    await steer(peer, target, "more")
    await until(lambda: target in host._held)
    may_go_on.set()
    ended = await peer.finish()
    assert [one.sequence_number for one in ended] == list(range(len(ended)))
    answer = await peer.receive()
    assert steer_of(answer)["previous_response_id"] == target
    assert answer.sequence_number == ended[-1].sequence_number + 1


# Rollouts.


@requirement("steer.rollout")
async def test_a_steer_of_a_paused_rollout_comes_before_what_is_appended(
    connect: Connect,
) -> None:
    peer = await connect()
    stack = await connect.start()
    await peer.create(input="go", rollout=True, tools=[SHELL], store=False)
    done = (await round_of(peer))[-1]
    target = done.response_done.response_id
    accepted = await accept(peer, target, "In French.")
    assert accepted.sequence_number == done.sequence_number + 1
    await append(peer, done)
    response = response_of(await _answered(peer))
    assert (response.id, status_of(response)) == (target, "completed")
    prompt = _prompt(stack, response.id)
    assert prompt.index("In French.") < prompt.index("hello\n</tool_response>")
    assert peer.rest() == []


@requirement("steer.rollout")
async def test_a_steered_rollout_makes_no_more_calls_before_its_pause(connect: Connect) -> None:
    peer, stack, hold, target = await held(
        connect, after_steps=IN_THE_CALL, tools=[SHELL], metadata=script(calls=CALLS), rollout=True
    )
    await accept(peer, target, "One is enough.")
    stack.engine.release(hold)
    done = (await round_of(peer))[-1]
    assert len(required(done)) == 1
    await append(peer, done)
    response = response_of(await _answered(peer))
    assert (response.id, status_of(response)) == (target, "completed")
    assert "One is enough." in _prompt(stack, response.id)


@requirement("steer.rollout")
async def test_a_steered_rollout_that_waits_for_nothing_is_followed_by_a_rollout(
    connect: Connect,
) -> None:
    peer, stack, hold, target = await held(
        connect, tools=[SHELL], metadata=script(text="done", tool_rounds=0), rollout=True
    )
    await accept(peer, target, "again")
    stack.engine.release(hold)
    assert response_of(await peer.finish()).id == target
    successor = response_of(await peer.finish())
    assert successor.previous_response_id == target


@requirement("steer.rollout")
async def test_a_steer_of_a_rollout_whose_append_does_not_fit_is_kept(connect: Connect) -> None:
    connect.parts.sim = SimSettings(context_length=600)
    peer = await connect()
    stack = await connect.start()
    await peer.create(input="go", rollout=True, tools=[SHELL], store=False)
    done = (await round_of(peer))[-1]
    await accept(peer, done.response_done.response_id, "In French.")
    await append(peer, done, outputs_for(done, "long " * 1000), event_id="e1")
    assert code_of(await peer.receive()) == "context_length_exceeded"
    await append(peer, done)
    response = response_of(await _answered(peer))
    assert "In French." in _prompt(stack, response.id)


async def _answered(peer: Peer) -> list[ServerEvent]:
    """Answer calls until the rollout is over: a user's message makes the agent call once more."""
    while arm_of((events := await round_of(peer))[-1]) == "response_done":
        await append(peer, events[-1], outputs_for(events[-1], "more"))
    return events


# Leaving.


@requirement("steer.leave")
async def test_a_half_close_waits_for_the_successor(connect: Connect) -> None:
    peer, stack, hold, target = await held(connect, metadata=said("answer"))
    await accept(peer, target, "again")
    await peer.half_close()
    stack.engine.release(hold)
    assert response_of(await peer.finish()).id == target
    assert response_of(await peer.finish()).previous_response_id == target
    assert await peer.ended() == {"memory": "finished", "grpc": "OK"}[peer.wire]
