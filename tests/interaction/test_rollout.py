"""Rollouts: one response for a whole agent run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.clock import ManualClock
from harness.reading import (
    arm_of,
    arms,
    calls_of,
    code_of,
    failure_of,
    public,
    response_of,
    status_of,
    text_of,
)
from harness.scripted_screen import ScriptedScreen
from harness.waiting import until
from interaction.conftest import Connect
from interaction.pauses import append, outputs_for, required, round_of
from interaction.requirements import requirement
from interaction.scripts import CUSTOM, SHELL, call_output, said, script, user
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.screen import Verdict
from turnwire_server.ports.store import StoredResponse
from turnwire_server.runtime.settings import RuntimeSettings

TIMING = ["turnwire.timing"]


def rollout(text: str = "go", *, rounds: int = 1, **more: Any) -> dict[str, Any]:
    """Return a create of an agent run that calls a shell so often, then answers."""
    usual = {"tools": [SHELL], "store": False, "metadata": script(tool_rounds=rounds)}
    return {"input": text, "rollout": True, **usual, **more}


CALL = [
    "response_output_item_added",
    "response_function_call_arguments_delta",
    "response_function_call_arguments_done",
    "response_output_item_done",
]


@requirement("rollout.sequence")
@pytest.mark.parametrize("lane", [None, "a"])
async def test_a_rollout_is_one_response_that_pauses_for_each_round_of_calls(
    connect: Connect, lane: str | None
) -> None:
    peer = await connect()
    named = {} if lane is None else {"stream_id": lane}
    await peer.create(rollout(rounds=2, **named))
    first = await round_of(peer, lane)
    assert arms(first) == ["response_created", "response_in_progress", *CALL, "response_done"]
    response_id = first[0].response_created.response.id
    done = first[-1].response_done
    assert done.response_id == response_id
    (stub,) = required(first[-1])
    call = first[-2].response_output_item_done.item.function_call
    assert (stub.call_id, stub.name) == (call.call_id, "exec_command")
    assert public(first[-1])["required_input"] == [
        {"type": "function_call_output", "call_id": call.call_id, "name": "exec_command"}
    ]
    await append(peer, first[-1], **named)
    second = await round_of(peer, lane)
    assert arms(second) == [*CALL, "response_done"]
    await append(peer, second[-1])
    last = await round_of(peer, lane)
    assert arms(last)[-1] == "response_completed"
    response = response_of(last)
    assert response.id == response_id
    assert [public(item)["type"] for item in response.output] == [
        "function_call",
        "function_call",
        "message",
    ]
    assert text_of(response).startswith("Simulated answer after 2 tool outputs")
    numbers = [event.sequence_number for event in (*first, *second, *last)]
    assert numbers == list(range(len(numbers)))


@requirement("rollout.sequence")
async def test_a_pause_waits_for_every_call_of_its_round(connect: Connect) -> None:
    peer = await connect()
    calls = [
        {"name": "exec_command", "arguments": {"cmd": "ls"}},
        {"name": "apply", "input": "patch"},
    ]
    await peer.create(
        rollout(
            tools=[SHELL, CUSTOM],
            metadata=script(text="Let me look.", calls=calls, after="Wait.", tool_rounds=1),
        )
    )
    events = await round_of(peer)
    assert [public(one)["type"] for one in events[-1].response_done.required_input] == [
        "function_call_output",
        "custom_tool_call_output",
    ]
    await append(peer, events[-1], list(reversed(outputs_for(events[-1]))))
    response = response_of(await round_of(peer))
    assert status_of(response) == "completed"
    assert len(response.output) == 5


@requirement("rollout.sequence")
@pytest.mark.parametrize("more", [{"tools": []}, {"tool_choice": "none"}, {"generate": False}])
async def test_a_rollout_that_calls_nothing_is_a_turn_like_any_other(
    connect: Connect, more: dict[str, Any]
) -> None:
    peer = await connect()
    events = await peer.turn(rollout(**more))
    assert "response_done" not in arms(events)
    assert status_of(response_of(events)) == "completed"


@requirement("rollout.sequence")
async def test_an_answer_without_a_word_after_a_pause_is_an_empty_message(
    connect: Connect,
) -> None:
    connect.parts.script = lambda request: [] if request.outline.tool_outputs else None
    peer = await connect()
    await peer.create(rollout())
    await append(peer, (await round_of(peer))[-1])
    response = response_of(await round_of(peer))
    assert [public(item)["type"] for item in response.output] == ["function_call", "message"]
    assert text_of(response) == ""


@requirement("rollout.same_tokens")
async def test_a_rollout_gives_the_engine_the_prompts_of_a_chain(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    await peer.create(rollout(rounds=3, instructions="Be careful."))
    while arm_of((events := await round_of(peer))[-1]) == "response_done":
        await append(peer, events[-1])
    rounds = [list(request.ids) for request in stack.engine.requests]
    assert len(rounds) == 4
    stack.engine.requests.clear()
    usual = {**rollout(rounds=3, instructions="Be careful."), "rollout": False}
    turn = response_of(await peer.turn(usual))
    while calls := calls_of(turn):
        usual["input"] = [call_output(call) for call in calls]
        turn = response_of(await peer.turn(usual, previous_response_id=turn.id))
    assert [list(request.ids) for request in stack.engine.requests] == rounds


@requirement("rollout.once")
async def test_a_rollout_is_stored_and_accounted_for_once(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    kept = []
    put = stack.services.store.put

    async def counted(record: Any) -> None:
        kept.append(record)
        await put(record)

    stack.services.store.put = counted  # type: ignore[method-assign]
    await peer.create(rollout(rounds=3, store=True, include=TIMING))
    while arm_of((events := await round_of(peer))[-1]) == "response_done":
        assert not kept
        await append(peer, events[-1])
    response = response_of(events)
    (record,) = kept
    assert record.response_id == response.id
    assert len(record.input_items) == 4
    assert record.conversation.item_count == 8
    await stack.services.afterwork.finish(5)
    (closed,) = stack.ledger.closed.values()
    assert (closed.input_tokens, closed.output_tokens) == (
        response.usage.input_tokens,
        response.usage.output_tokens,
    )
    tokens = response.turnwire.timing.tokens
    assert (tokens.input, tokens.output) == (closed.input_tokens, closed.output_tokens)
    assert tokens.rendered == closed.input_tokens + 3  # its own end-of-turn ids, put back
    assert response.turnwire.timing.rerender_reason == "first"


@requirement("rollout.usage")
async def test_usage_of_a_rollout_counts_each_token_once(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    parent = response_of(await peer.turn(input="Hi", tools=[SHELL], metadata=said("Hello.")))
    await peer.create(rollout(rounds=2, previous_response_id=parent.id))
    usages, sampled = [], 0
    while arm_of((events := await round_of(peer))[-1]) == "response_done":
        usages.append(events[-1].response_done.usage)
        await append(peer, events[-1])
    last = response_of(events).usage
    usages.append(last)
    for usage, request in zip(usages, stack.engine.requests[1:], strict=True):
        assert usage.input_tokens == len(request.ids) - sampled
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        sampled = usage.output_tokens
        # What the engine had cached when the rollout began; its own prompts are not "cached".
        assert usage.input_tokens_details.cached_tokens == len(stack.engine.requests[1].ids) - (
            len(stack.engine.requests[1].ids) - last.input_tokens_details.cached_tokens
        )
    assert 0 < last.input_tokens_details.cached_tokens < len(stack.engine.requests[1].ids)
    whole = len(stack.engine.requests[-1].ids)
    assert last.total_tokens - whole < 60  # the last answer


@requirement("rollout.continue")
@pytest.mark.parametrize("store", [False, True])
async def test_a_rollout_is_continued_with_all_its_context(connect: Connect, store: bool) -> None:
    peer = await connect()
    stack = await connect.start()
    await peer.create(rollout(rounds=2, store=store))
    while arm_of((events := await round_of(peer))[-1]) == "response_done":
        await append(peer, events[-1])
    response = response_of(events)
    if store:
        peer = await connect()
    child = await peer.turn(
        input="and?",
        previous_response_id=response.id,
        tools=[SHELL],
        metadata=said("fine"),
        include=TIMING,
    )
    timing = response_of(child).turnwire.timing
    assert timing.rerender_reason == ""
    assert timing.tokens.rendered < 20
    before, after = (list(request.ids) for request in stack.engine.requests[-2:])
    assert after[: len(before)] == before


@requirement("rollout.lanes")
async def test_a_second_lane_runs_beside_a_paused_rollout(connect: Connect) -> None:
    peer = await connect()
    await peer.create(rollout(stream_id="a"))
    done = (await round_of(peer, "a"))[-1]
    await peer.create(input="Hi", stream_id="a", metadata=said("after it"))
    beside = await peer.turn(input="Hi", stream_id="b", metadata=said("beside it"))
    assert text_of(response_of(beside)) == "beside it"
    await peer.create(rollout(stream_id="c"))
    other = (await round_of(peer, "c"))[-1]
    await append(peer, other)
    assert status_of(response_of(await round_of(peer, "c"))) == "completed"
    assert peer.rest() == []
    await append(peer, done)
    assert status_of(response_of(await round_of(peer, "a"))) == "completed"
    assert text_of(response_of(await peer.finish("a"))) == "after it"


@requirement("rollout.lanes")
async def test_a_create_that_continues_a_paused_rollout_waits_for_its_end(
    connect: Connect,
) -> None:
    peer = await connect()
    await peer.create(rollout())
    done = (await round_of(peer))[-1]
    child = {"previous_response_id": done.response_done.response_id, "metadata": said("child")}
    await peer.create(child, input="next", stream_id="b")
    await append(peer, done)
    await round_of(peer)
    assert text_of(response_of(await peer.finish("b"))) == "child"


@requirement("rollout.append_errors")
async def test_a_bad_append_is_one_error_and_the_pause_stands(connect: Connect) -> None:
    peer = await connect()
    await peer.create(rollout())
    done = (await round_of(peer))[-1]
    right = outputs_for(done)
    stranger = {"type": "function_call_output", "call_id": "call_x", "output": "?"}
    bad: list[tuple[list[dict[str, Any]], tuple[str, int, str]]] = [
        ([user("what?")], ("invalid_value", 400, "input")),
        ([stranger, *right], ("invalid_value", 400, "input")),
        ([*right, *right], ("invalid_value", 400, "input")),
        ([*right, {"role": "developer", "content": "x"}], ("invalid_value", 400, "input[1].role")),
        ([*right, {"type": "reasoning", "summary": []}], ("invalid_value", 400, "input[1].type")),
    ]
    for number, (items, failure) in enumerate(bad):
        await append(peer, done, items, event_id=f"bad{number}")
        error = await peer.receive()
        assert failure_of(error) == failure
        assert error.event_id == f"bad{number}"
    await append(peer, done, right, event_id="good")
    await append(peer, done, right, event_id="good")
    assert status_of(response_of(await round_of(peer))) == "completed"
    await append(peer, done, right, event_id="late")
    assert failure_of(await peer.receive()) == ("response_not_found", 404, "response_id")


@requirement("rollout.append_errors")
async def test_an_append_to_another_response_or_lane_changes_nothing(connect: Connect) -> None:
    peer, other = await connect(), await connect()
    await peer.create(rollout(stream_id="a"))
    done = (await round_of(peer, "a"))[-1]
    await append(other, done)
    assert failure_of(await other.receive()) == ("response_not_found", 404, "response_id")
    await append(peer, done, stream_id="b")
    assert failure_of(await peer.receive()) == ("invalid_value", 400, "stream_id")
    await append(peer, done, stream_id="a")
    assert status_of(response_of(await round_of(peer, "a"))) == "completed"


@requirement("rollout.append_errors")
async def test_an_append_that_leaves_no_room_to_answer_can_be_sent_shorter(
    connect: Connect,
) -> None:
    connect.parts.sim = SimSettings(context_length=600)
    peer = await connect()
    await peer.create(rollout())
    done = (await round_of(peer))[-1]
    await append(peer, done, outputs_for(done, "long " * 1000), event_id="e1")
    error = await peer.receive()
    assert failure_of(error) == ("context_length_exceeded", 400, "input")
    assert error.event_id == "e1"
    await append(peer, done, outputs_for(done, "short"), event_id="e1")
    assert status_of(response_of(await round_of(peer))) == "completed"


@requirement("rollout.cancel")
async def test_a_cancel_ends_a_paused_rollout(connect: Connect) -> None:
    peer = await connect()
    await peer.create(rollout())
    done = (await round_of(peer))[-1]
    await peer.send({"type": "response.cancel"})
    response = response_of(await peer.finish())
    assert status_of(response) == "cancelled"
    assert response.usage == done.response_done.usage
    # Its calls were whole, so they need their outputs.
    refused = await peer.turn(input="on", previous_response_id=response.id)
    assert code_of(refused[0]) == "invalid_value"


@requirement("rollout.cancel")
async def test_a_cancelled_rollout_can_be_continued(connect: Connect) -> None:
    peer = await connect()
    await peer.create(rollout())
    done = (await round_of(peer))[-1]
    await peer.send({"type": "response.cancel"})
    response = response_of(await peer.finish())
    events = await peer.turn(
        input=outputs_for(done), previous_response_id=response.id, metadata=said("fine")
    )
    assert text_of(response_of(events)) == "fine"


@requirement("rollout.cancel")
async def test_a_cancel_ends_a_later_round_too(connect: Connect) -> None:
    connect.parts.sim = SimSettings(step_tokens=4)
    peer = await connect()
    stack = await connect.start()
    await peer.create(rollout())
    done = (await round_of(peer))[-1]
    hold = stack.engine.hold("go", after_steps=2)
    await append(peer, done)
    await stack.engine.held(hold)
    await peer.send({"type": "response.cancel"})
    response = response_of(await peer.finish())
    assert status_of(response) == "cancelled"
    assert public(response.output[-1])["status"] == "incomplete"
    assert response.usage.output_tokens == done.response_done.usage.output_tokens + 8


@requirement("rollout.cancel")
async def test_a_disconnect_cuts_a_paused_rollout(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    await peer.create(rollout(store=True))
    response_id = (await round_of(peer))[-1].response_done.response_id
    assert response_id in stack.services.running
    await peer.disconnect()
    await until(lambda: response_id not in stack.services.running)
    await stack.services.afterwork.finish(5)
    (record,) = stack.ledger.closed.values()
    assert (record.response_id, record.status) == (response_id, "cancelled")


@requirement("rollout.timeout")
async def test_a_rollout_that_waits_too_long_ends_incomplete(connect: Connect) -> None:
    clock = ManualClock()
    connect.parts.clock = clock
    connect.parts.settings = RuntimeSettings(append_timeout_s=10, keepalive="off")
    peer = await connect()
    await peer.create(rollout())
    done = (await round_of(peer))[-1]
    await append(peer, done, [user("not an output")])
    assert code_of(await peer.receive()) == "invalid_value"
    await clock.run_for(9)
    assert peer.rest() == []
    await clock.run_for(2)
    response = response_of(await peer.finish())
    assert status_of(response) == "incomplete"
    assert response.incomplete_details.reason == "append_timeout"
    await append(peer, done)
    assert code_of(await peer.receive()) == "response_not_found"
    events = await peer.turn(
        input=outputs_for(done), previous_response_id=response.id, metadata=said("late")
    )
    assert text_of(response_of(events)) == "late"


@requirement("rollout.timeout")
async def test_an_append_while_a_rollout_that_waited_too_long_is_kept_is_an_error(
    connect: Connect,
) -> None:
    clock, may_keep = ManualClock(), asyncio.Event()

    class SlowStore(MemoryResponseStore):
        async def put(self, record: StoredResponse) -> None:
            await may_keep.wait()
            await super().put(record)

    connect.parts.clock = clock
    connect.parts.store = SlowStore(MemoryStoreSettings(), wall=clock.wall)
    connect.parts.settings = RuntimeSettings(append_timeout_s=10, keepalive="off")
    peer = await connect()
    await peer.create(rollout(store=True))
    done = (await round_of(peer))[-1]
    await clock.run_for(11)
    await append(peer, done)
    assert code_of(await peer.receive()) == "response_not_found"
    may_keep.set()
    assert response_of(await peer.finish()).incomplete_details.reason == "append_timeout"


@requirement("rollout.timeout")
async def test_the_time_of_a_pause_is_not_the_turns(connect: Connect) -> None:
    clock = ManualClock()
    connect.parts.clock = clock
    peer = await connect()
    await peer.create(rollout(rounds=2, include=TIMING))
    while arm_of((events := await round_of(peer))[-1]) == "response_done":
        await clock.run_for(20)
        await append(peer, events[-1])
    assert response_of(events).turnwire.timing.overhead_ms == 0


@requirement("rollout.half_close")
async def test_a_half_close_cancels_what_is_paused_and_what_pauses_then(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("later")
    await peer.create(rollout())
    await peer.create(rollout("later", stream_id="b"))
    await round_of(peer)
    await stack.engine.held(hold)
    await peer.half_close()
    assert status_of(response_of(await peer.finish())) == "cancelled"
    stack.engine.release(hold)
    events = await peer.finish("b")
    assert arms(events)[-2:] == ["response_done", "response_incomplete"]
    assert status_of(response_of(events)) == "cancelled"
    assert await peer.ended() == {"memory": "finished", "grpc": "OK"}[peer.wire]


@requirement("rollout.limits")
async def test_the_limit_of_output_tokens_holds_for_all_rounds_together(
    connect: Connect,
) -> None:
    peer = await connect()
    stack = await connect.start()
    await peer.create(rollout(rounds=9, max_output_tokens=60))
    used = []
    while arm_of((events := await round_of(peer))[-1]) == "response_done":
        used.append(events[-1].response_done.usage.output_tokens)
        await append(peer, events[-1])
    response = response_of(events)
    assert len(used) == 2
    assert [request.sampling.max_tokens for request in stack.engine.requests] == [
        60,
        *(60 - one for one in used),
    ]
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.output_tokens == 60


@requirement("rollout.limits")
async def test_a_rollout_does_not_pause_without_tokens_left(connect: Connect) -> None:
    peer = await connect()
    await peer.create(rollout())
    exact = (await round_of(peer))[-1].response_done.usage.output_tokens
    await peer.send({"type": "response.cancel"})
    await peer.finish()
    response = response_of(await peer.turn(rollout(max_output_tokens=exact)))
    assert response.incomplete_details.reason == "max_output_tokens"
    assert public(response.output[0])["status"] == "completed"


@requirement("rollout.forced")
@pytest.mark.parametrize(
    ("choice", "later"),
    [
        ("required", "auto"),
        ({"type": "function", "name": "exec_command"}, "auto"),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "exec_command"}],
            },
            "auto",
        ),
        ("auto", "auto"),
    ],
)
async def test_a_forced_call_is_for_the_first_round(
    connect: Connect, choice: Any, later: str
) -> None:
    peer = await connect()
    stack = await connect.start()
    await peer.create(rollout(tools=[SHELL, CUSTOM], tool_choice=choice))
    await append(peer, (await round_of(peer))[-1])
    assert status_of(response_of(await round_of(peer))) == "completed"
    first, second = stack.engine.requests
    assert second.outline.tool_choice == later
    assert (first.constraint is None) == (choice == "auto")
    assert second.constraint is None
    held = isinstance(choice, dict) and choice["type"] == "allowed_tools"
    assert len(second.outline.tools.tools) == (1 if held else 2)


@requirement("rollout.screen")
async def test_what_is_appended_is_screened_before_it_is_answered(connect: Connect) -> None:
    screen = ScriptedScreen()
    connect.parts.screen = screen
    peer = await connect()
    await peer.create(rollout(instructions="Be careful."))
    check = await screen.checked()
    assert (check.texts, check.instructions) == (["go"], "Be careful.")
    check.allow(b"seen")
    done = (await round_of(peer))[-1]
    await append(peer, done, [*outputs_for(done), user("and more")])
    check = await screen.checked()
    assert (check.state, check.texts, check.instructions) == (b"seen", ["", "and more"], "")
    assert peer.rest() == []
    check.allow(b"seen more")
    done = (await round_of(peer))[-1]  # a new message: the agent calls once more
    await append(peer, done)
    check = await screen.checked()
    assert check.state == b"seen more"
    check.allow(b"seen it all")
    response = response_of(await round_of(peer))
    assert status_of(response) == "completed"
    await peer.create(input="next", previous_response_id=response.id)
    check = await screen.checked()
    assert (check.state, check.texts) == (b"seen it all", ["next"])
    check.allow()
    await peer.finish()


@requirement("rollout.screen")
@pytest.mark.parametrize("ending", ["fail", "refuse"])
async def test_a_rollout_whose_appended_input_is_flagged_says_nothing_more(
    connect: Connect, ending: Any
) -> None:
    screen = ScriptedScreen()
    connect.parts.screen = screen
    peer = await connect()
    await peer.create(rollout())
    (await screen.checked()).allow()
    await append(peer, (await round_of(peer))[-1])
    check = await screen.checked()
    check.answer.set_result(Verdict(allowed=False, refusal="No.", ending=ending))
    response = response_of(await round_of(peer))
    if ending == "fail":
        assert (response.error.code, len(response.output)) == ("invalid_prompt", 1)
    else:
        assert status_of(response) == "completed"
        assert response.output[1].message.content.parts.parts[0].refusal.refusal == "No."


@requirement("rollout.broken")
async def test_an_engine_that_breaks_in_a_later_round_fails_the_rollout(
    connect: Connect,
) -> None:
    def break_later(request: Any) -> None:
        if request.outline.tool_outputs:
            raise RuntimeError("out of order")

    connect.parts.script = break_later
    peer = await connect()
    await peer.create(rollout())
    await append(peer, (await round_of(peer))[-1])
    response = response_of(await round_of(peer))
    assert (status_of(response), response.error.code) == ("failed", "server_error")
    assert len(response.output) == 1
    assert status_of(response_of(await peer.turn(input="Hi", metadata=said("x")))) == "completed"
