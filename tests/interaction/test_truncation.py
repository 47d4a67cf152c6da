"""`truncation`, and `input_tokens`, which counts what a create would render."""

from __future__ import annotations

from typing import Any

import pytest

from harness.reading import (
    calls_of,
    failure_of,
    items_json,
    response_of,
    status_of,
)
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import SHELL, WEATHER, call_output, said, user
from turnwire import _codec
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.response_pb2 import Response
from turnwire.v1.responses_service_pb2 import CountInputTokensResult
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.renderers.sim_tokens import sim_tokens
from turnwire_server.runtime.unary import UnaryApi
from turnwire_server.session.errors import Rejection

AUTO = {"truncation": "auto"}
TIMING = {"include": ["turnwire.timing"]}


def prompt_of(connect: Connect, response: Response) -> str:
    ids = connect.stack.engine.request(response.id).ids
    return b"".join(map(sim_tokens().token_bytes, ids)).decode()


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def history(turns: int, words: int = 60) -> list[dict[str, Any]]:
    """Return a history of turns of about `words` tokens and a few."""
    items: list[dict[str, Any]] = []
    for number in range(turns):
        items += [user(f"turn {number}. " + "word " * words), assistant(f"answer {number}")]
    return [*items, user("And now?")]


@requirement("truncation.disabled")
@pytest.mark.parametrize("members", [{}, {"truncation": "disabled"}, {"truncation": None}])
async def test_an_input_beyond_the_context_is_refused(
    connect: Connect, members: dict[str, Any]
) -> None:
    connect.parts.sim = SimSettings(context_length=500)
    peer = await connect()
    (error,) = await peer.turn(members, input=history(10))
    assert failure_of(error) == ("context_length_exceeded", 400, "input")


@requirement("truncation.auto")
async def test_whole_turns_are_left_out_oldest_first_and_that_is_said(connect: Connect) -> None:
    connect.parts.sim = SimSettings(context_length=500)
    peer = await connect()
    response = response_of(await peer.turn({**AUTO, **TIMING}, input=history(10)))
    prompt = prompt_of(connect, response)
    (warning,) = response.warnings
    assert (warning.code, warning.param) == ("input_truncated", "truncation")
    left = [number for number in range(10) if f"turn {number}. " in prompt]
    assert left == list(range(left[0], 10)) and 4 <= left[0] <= 7
    assert [f"answer {number}" in prompt for number in range(10)] == [
        number in left for number in range(10)
    ]
    assert f"oldest {left[0]} turns ({2 * left[0]} items)" in warning.message
    assert prompt.rstrip().endswith("And now?\nassistant")
    assert response.usage.input_tokens < 500
    assert response.turnwire.timing.rerender_reason == "truncation"
    # As few as leave a quarter of the context free: one turn more would not.
    assert 500 * 3 // 4 - 72 <= response.usage.input_tokens <= 500 * 3 // 4


@requirement("truncation.auto")
async def test_what_fits_is_not_touched(connect: Connect) -> None:
    peer = await connect()
    response = response_of(await peer.turn(AUTO, input=history(10)))
    assert not response.warnings
    assert response.truncation == "auto"
    assert "turn 0. " in prompt_of(connect, response)


@requirement("truncation.auto")
async def test_room_is_made_for_the_answer_that_was_asked_for(connect: Connect) -> None:
    connect.parts.sim = SimSettings(context_length=500)
    peer = await connect()
    small = response_of(await peer.turn(AUTO, input=history(10), max_output_tokens=16))
    large = response_of(await peer.turn(AUTO, input=history(10), max_output_tokens=240))
    assert small.usage.input_tokens > 260 >= large.usage.input_tokens


@requirement("truncation.pairs")
async def test_the_head_stays_and_calls_stay_with_their_outputs(connect: Connect) -> None:
    connect.parts.sim = SimSettings(context_length=900)
    peer = await connect()
    items: list[dict[str, Any]] = [{"role": "developer", "content": "The head."}]
    for number in range(8):
        call = {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": f"c{number}",
                  "output": f"out {number} " + "word " * 80}  # fmt: skip
        items += [user(f"turn {number}."), call, user("meanwhile"), output, assistant("done")]
    items.append(user("And now?"))
    response = response_of(
        await peer.turn(AUTO, input=items, tools=[WEATHER], instructions="Be kind.")
    )
    prompt = prompt_of(connect, response)
    assert response.warnings
    for kept in ("Be kind.", "get_weather", "The head.", "And now?"):
        assert kept in prompt
    calls, outputs = prompt.count('{"name": "f"'), prompt.count("<tool_response>\nout ")
    assert 0 < calls == outputs < 8


@requirement("truncation.last_turn")
async def test_a_last_turn_that_does_not_fit_is_refused(connect: Connect) -> None:
    connect.parts.sim = SimSettings(context_length=300)
    peer = await connect()
    (error,) = await peer.turn(AUTO, input=[*history(2)[:-1], user("word " * 400)])
    assert failure_of(error) == ("context_length_exceeded", 400, "input")
    first = response_of(await peer.turn(input="Do it", tools=[SHELL]))
    (call,) = calls_of(first)
    big = [call_output(call, "word " * 400)]
    (error,) = await peer.turn(AUTO, input=big, tools=[SHELL], previous_response_id=first.id)
    assert failure_of(error) == ("context_length_exceeded", 400, "input")
    assert status_of(response_of(await peer.turn(input="Still there?"))) == "completed"


@requirement("truncation.kept")
async def test_a_chain_goes_on_from_what_is_left(connect: Connect) -> None:
    connect.parts.sim = SimSettings(context_length=600)
    peer = await connect()
    more = {**AUTO, **TIMING, "metadata": said("Yes.")}
    response = response_of(await peer.turn(more, input="turn 0. " + "word " * 60))
    truncated = 0
    for number in range(1, 25):
        response = response_of(
            await peer.turn(
                more,
                input=f"turn {number}. " + "word " * 60,
                previous_response_id=response.id,
            )
        )
        timing = response.turnwire.timing
        assert status_of(response) == "completed"
        if response.warnings:
            truncated += 1
            assert timing.rerender_reason == "truncation"
        else:
            assert timing.rerender_reason == ""
            assert timing.tokens.rendered < 80
    assert 2 <= truncated <= 14
    prompt = prompt_of(connect, response)
    assert "turn 24. " in prompt and "turn 0. " not in prompt
    replay = [*items_json(response.output), user("Go on.")]
    assert status_of(response_of(await peer.turn(input=replay))) == "completed"


async def counted(connect: Connect, **members: Any) -> int | Rejection:
    create = _codec.parse(ResponseCreate, {"model": "sim", **members})
    result = await UnaryApi(connect.stack.services).count_input_tokens(create, tenant="default")
    if isinstance(result, CountInputTokensResult):
        return result.input_tokens
    return result


@requirement("count.same")
async def test_input_tokens_are_those_of_the_create(connect: Connect) -> None:
    connect.parts.sim = SimSettings(context_length=500)
    peer = await connect()
    first = response_of(await peer.turn(input="Do it", tools=[SHELL], instructions="Be kind."))
    (call,) = calls_of(first)
    conversations = connect.stack.services.conversations
    from turnwire.v1.conversation_pb2 import ConversationResource, CreateConversationRequest

    made = await conversations.create(CreateConversationRequest(), tenant="default")
    assert isinstance(made, ConversationResource)
    await peer.turn(input="In a conversation.", conversation=made.id)
    for members in (
        {"input": "Hi"},
        {"input": history(2), "instructions": "Be kind.", "tools": [SHELL, WEATHER]},
        {"input": "Hi", "tools": [SHELL], "tool_choice": "required"},
        {"input": "Hi", "text": {"format": {"type": "json_object"}}},
        {"input": [call_output(call)], "tools": [SHELL], "previous_response_id": first.id},
        {"input": history(10), **AUTO},
        {"input": [user("x"), {"type": "reasoning", "summary": []}, assistant("y"), user("z")]},
        {"input": "Go on.", "conversation": {"id": made.id}},
    ):
        expected = await counted(connect, **members)
        response = response_of(await peer.turn(members))
        assert expected == response.usage.input_tokens
    refused = await counted(connect, input="Hi", conversation="conv_x")
    assert isinstance(refused, Rejection) and refused.code == "conversation_not_found"
    refused = await counted(connect, input=history(10))
    assert isinstance(refused, Rejection) and refused.code == "context_length_exceeded"
