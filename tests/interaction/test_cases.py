"""Faults that users of comparable systems met, and that no other file of this folder covers."""

from __future__ import annotations

from typing import Any

import pytest

from harness.clock import ManualClock
from harness.peers import WebSocketPeer
from harness.reading import (
    arm_of,
    calls_of,
    code_of,
    deltas_of,
    failure_of,
    items_json,
    public,
    response_of,
    status_of,
    text_of,
)
from harness.stack import Stack
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import CUSTOM, SHELL, call_output, said, script, user
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.renderers.sim_tokens import sim_tokens
from turnwire_server.adapters.stores.memory import MemoryResponseStore
from turnwire_server.runtime.settings import RuntimeSettings
from turnwire_server.session.settings import SessionSettings

_CALL = [{"name": "exec_command", "arguments": {"cmd": "ls"}}]


def _prompt(stack: Stack, response_id: str) -> str:
    ids = stack.engine.request(response_id).ids
    return b"".join(map(sim_tokens().token_bytes, ids)).decode()


# Input.


@requirement("items.assistant_parts")
@pytest.mark.parametrize("is_strict", [False, True], ids=["lenient", "strict"])
async def test_strictness_about_what_an_assistant_says_is_a_setting(
    connect: Connect, is_strict: bool
) -> None:
    connect.parts.settings = RuntimeSettings(session=SessionSettings(strict_content=is_strict))
    peer = await connect()
    part = {"type": "input_text", "text": "aha"}
    history = [user("a"), {"role": "assistant", "content": [part]}, user("b")]
    events = await peer.turn(input=history)
    if is_strict:
        assert failure_of(events[-1]) == ("invalid_value", 400, "input[1].content[0]")
    else:
        response = response_of(events)
        assert status_of(response) == "completed"
        assert "aha" in _prompt(connect.stack, response.id)
    own = {"role": "assistant", "content": [{"type": "output_text", "text": "aha"}]}
    assert status_of(response_of(await peer.turn(input=[own, user("b")]))) == "completed"


@requirement("round_trip.refusal")
async def test_a_refusal_in_a_history_is_told_to_the_model(connect: Connect) -> None:
    peer = await connect()
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I had better not"}]}
    response = response_of(await peer.turn(input=[user("a"), refusal, user("b")]))
    assert status_of(response) == "completed"
    assert "I had better not" in _prompt(connect.stack, response.id)


@requirement("prompt.order")
async def test_instructions_come_first_and_developer_messages_stay_where_they_are(
    connect: Connect,
) -> None:
    peer = await connect()
    texts = ["<1st>", "<2nd>", "<3rd>", "<4th>", "<5th>"]
    roles = ["developer", "user", "developer", "system"]
    messages = [
        {"role": role, "content": text} for role, text in zip(roles, texts[1:], strict=True)
    ]
    response = response_of(await peer.turn(input=[*messages, user("<6th>")], instructions=texts[0]))
    assert status_of(response) == "completed"
    prompt = _prompt(connect.stack, response.id)
    places = [prompt.index(text) for text in [*texts, "<6th>"]]
    assert places == sorted(places)


@requirement("tools.choice_alone")
@pytest.mark.parametrize("tools", [{}, {"tools": []}], ids=["absent", "empty"])
@pytest.mark.parametrize("choice", ["auto", "none", "required"])
async def test_a_tool_choice_without_tools_is_refused_only_where_it_forces_a_call(
    connect: Connect, tools: dict[str, Any], choice: str
) -> None:
    peer = await connect()
    events = await peer.turn(input="Hi", tool_choice=choice, **tools)
    if choice == "required":
        (error,) = events
        assert failure_of(error) == ("invalid_value", 400, "tool_choice")
    else:
        assert status_of(response_of(events)) == "completed"


# Streams.


@requirement("unicode.no_repeat")
async def test_a_character_that_waited_for_its_bytes_is_said_once(connect: Connect) -> None:
    connect.parts.sim = SimSettings(step_tokens=1)
    peer = await connect()
    text = "A 世ab 😀A"
    events = await peer.turn(input="Say it", metadata=script(text=text, split_characters=True))
    deltas = [
        event.response_output_text_delta.delta
        for event in events
        if arm_of(event) == "response_output_text_delta"
    ]
    assert all(deltas) and len(deltas) > 3
    for count in range(len(deltas)):
        assert text.startswith("".join(deltas[: count + 1]))
    assert "".join(deltas) == text


@requirement("sequence.no_markup")
async def test_a_call_after_reasoning_leaves_no_markup_in_the_text(connect: Connect) -> None:
    connect.parts.sim = SimSettings(step_tokens=1)
    peer = await connect()
    events = await peer.turn(
        input="x", tools=[SHELL], metadata=script(reasoning="Hm.", calls=_CALL)
    )
    response = response_of(events)
    assert [item.WhichOneof("item") for item in response.output] == ["reasoning", "function_call"]
    assert deltas_of(events) == "" and text_of(response) == ""
    assert deltas_of(events, "response_reasoning_text_delta") == "Hm."


@requirement("sequence.snapshot")
async def test_the_terminal_response_has_every_item_that_was_done(connect: Connect) -> None:
    peer = await connect()
    calls = [*_CALL, {"name": "apply", "input": "x"}]
    events = await peer.turn(
        input="x",
        tools=[SHELL, CUSTOM],
        metadata=script(reasoning="Hm.", text="Look:", calls=calls),
    )
    done = [
        public(event.response_output_item_done.item)
        for event in events
        if arm_of(event) == "response_output_item_done"
    ]
    assert len(done) == 4
    assert items_json(response_of(events).output) == done


@requirement("sequence.at_once")
async def test_what_an_engine_does_after_its_last_token_holds_nothing_up(
    connect: Connect,
) -> None:
    peer = await connect()
    stack = await connect.start()
    stack.engine.hold("linger", after_steps=None)  # Never released: it stays open.
    for _ in range(2):
        events = await peer.turn(input="linger", metadata=said("a b c"))
        assert text_of(response_of(events)) == "a b c"


# Errors.


@requirement("errors.frame")
async def test_an_error_frame_is_wrapped_and_has_no_number(connect: Connect) -> None:
    peer = await connect()
    assert isinstance(peer, WebSocketPeer)
    for create in (
        {"previous_response_id": "resp_missing"},
        {"model": "m" * 257},
        {"temperature": 9},
        {"input": 7},
        {"tool_choice": "required"},
    ):
        await peer.turn({"input": "x", "stream_id": "a", **create})
    await peer.send_raw(b"not json")
    await peer.receive()
    assert len(peer.raw) == 6
    for frame in peer.raw:
        assert frame.keys() - {"stream_id"} == {"type", "status", "error"}
        assert frame["type"] == "error" and 400 <= frame["status"] < 500
        assert frame["error"].keys() >= {"type", "code", "message", "param"}
        assert frame["error"]["type"].endswith("_error") and frame["error"]["code"]


# Chains.


@requirement("chain.recovery")
async def test_after_a_missing_parent_the_whole_history_goes_on_where_it_was_sent(
    connect: Connect,
) -> None:
    peer = await connect()
    (refused,) = await peer.turn(input="Go on.", previous_response_id="resp_missing")
    assert code_of(refused) == "previous_response_not_found"
    history = [user("Begin."), {"role": "assistant", "content": "Begun."}, user("Go on.")]
    first = response_of(await peer.turn(input=history))
    assert status_of(first) == "completed"
    next_ = response_of(await peer.turn(input="More.", previous_response_id=first.id))
    assert "Begun." in _prompt(connect.stack, next_.id)


@requirement("chain.outputs_alone")
async def test_outputs_alone_continue_their_calls_and_nothing_else(connect: Connect) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="x", tools=[SHELL], metadata=script(calls=_CALL)))
    (call,) = calls_of(first)
    output = call_output(call)
    (refused,) = await peer.turn(input=[output], tools=[SHELL])
    assert failure_of(refused) == ("invalid_value", 400, "input")
    second = await peer.turn(input=[output], tools=[SHELL], previous_response_id=first.id)
    assert status_of(response_of(second)) == "completed"
    assert _prompt(connect.stack, response_of(second).id).count("hello") == 1


@requirement("chain.expired")
async def test_a_stored_chain_that_lay_too_long_is_not_found_before_any_work(
    connect: Connect,
) -> None:
    clock = ManualClock()
    connect.parts.clock = clock
    connect.parts.settings = RuntimeSettings(response_ttl_s=60)
    connect.parts.sim = SimSettings()
    first = response_of(await (await connect()).turn(input="Hi"))
    clock.advance(59)
    peer = await connect()
    second = response_of(await peer.turn(input="On", previous_response_id=first.id))
    assert status_of(second) == "completed"
    clock.advance(2)
    late = await connect()
    asked = len(connect.stack.engine.requests)
    (refused,) = await late.turn(input="On", previous_response_id=first.id)
    assert code_of(refused) == "previous_response_not_found"
    assert len(connect.stack.engine.requests) == asked
    store = connect.stack.services.store
    assert isinstance(store, MemoryResponseStore)
    assert store.dropped["expired"] == 1
    assert status_of(response_of(await late.turn(input="Anew"))) == "completed"
