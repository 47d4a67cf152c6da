"""The exact event sequences of a turn."""

from __future__ import annotations

from typing import Any

import pytest

from harness.checker import SequenceError, StreamChecker
from harness.reading import arm_of, arms, deltas_of, public, response_of, status_of, text_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import CUSTOM, SHELL, script
from turnwire.v1.server_event_pb2 import ServerEvent

_BEGIN = ["response_created", "response_in_progress"]
_MESSAGE = [
    "response_output_item_added",
    "response_content_part_added",
    "response_output_text_delta",
    "response_output_text_done",
    "response_content_part_done",
    "response_output_item_done",
]
_CALL = [
    "response_output_item_added",
    "response_function_call_arguments_delta",
    "response_function_call_arguments_done",
    "response_output_item_done",
]


@requirement("sequence.text")
async def test_a_text_answer_has_the_canonical_sequence(connect: Connect) -> None:
    peer = await connect()
    events = await peer.turn(input="Hi", metadata=script(text="Hello there, world."))
    assert arms(events) == [*_BEGIN, *_MESSAGE, "response_completed"]
    response = response_of(events)
    assert text_of(response) == deltas_of(events) == "Hello there, world."
    assert status_of(response) == "completed"


@requirement("sequence.function_call")
async def test_a_function_call_has_the_canonical_sequence(connect: Connect) -> None:
    peer = await connect()
    events = await peer.turn(input="Run it", tools=[SHELL])
    assert arms(events) == [*_BEGIN, *_CALL, "response_completed"]
    (item,) = response_of(events).output
    call = item.function_call
    assert (call.name, call.arguments) == ("exec_command", '{"cmd": "echo hello"}')
    assert deltas_of(events, "response_function_call_arguments_delta") == call.arguments
    assert call.id.startswith("fc_") and call.call_id.startswith("call_")


@requirement("sequence.custom_call")
async def test_a_custom_tool_call_has_the_canonical_sequence(connect: Connect) -> None:
    peer = await connect()
    events = await peer.turn(input="Patch it", tools=[CUSTOM])
    assert arms(events) == [
        *_BEGIN,
        "response_output_item_added",
        "response_custom_tool_call_input_delta",
        "response_custom_tool_call_input_done",
        "response_output_item_done",
        "response_completed",
    ]
    (item,) = response_of(events).output
    assert item.custom_tool_call.name == "apply"
    assert item.custom_tool_call.input == "echo hello"


@requirement("sequence.reasoning")
async def test_reasoning_comes_before_the_message_as_an_item_of_its_own(connect: Connect) -> None:
    peer = await connect()
    script_of_turn = script(reasoning="Let me think about it.", text="Done.")
    events = await peer.turn(input="Think", metadata=script_of_turn)
    assert arms(events) == [
        *_BEGIN,
        "response_output_item_added",
        "response_content_part_added",
        "response_reasoning_text_delta",
        "response_reasoning_text_done",
        "response_content_part_done",
        "response_output_item_done",
        *_MESSAGE,
        "response_completed",
    ]
    response = response_of(events)
    reasoning = response.output[0].reasoning
    assert reasoning.content[0].reasoning_text.text == "Let me think about it."
    assert not reasoning.summary
    assert text_of(response) == "Done."


@requirement("sequence.mixed")
async def test_text_and_two_calls_in_one_response_keep_their_order_and_indices(
    connect: Connect,
) -> None:
    peer = await connect()
    calls = [{"name": "exec_command", "arguments": {"cmd": name}} for name in ("ls", "pwd")]
    events = await peer.turn(
        input="Look", tools=[SHELL], metadata=script(text="I will look.", calls=calls)
    )
    assert arms(events) == [*_BEGIN, *_MESSAGE, *_CALL, *_CALL, "response_completed"]
    output = response_of(events).output
    assert [item.WhichOneof("item") for item in output] == [
        "message",
        "function_call",
        "function_call",
    ]
    assert '"ls"' in output[1].function_call.arguments
    assert '"pwd"' in output[2].function_call.arguments


@requirement("sequence.warm_up")
async def test_a_warm_up_is_created_in_progress_completed_without_output(connect: Connect) -> None:
    peer = await connect()
    events = await peer.turn(input="Get ready", generate=False, instructions="Be brief.")
    assert arms(events) == [*_BEGIN, "response_completed"]
    response = response_of(events)
    assert status_of(response) == "completed"
    assert not response.output
    assert response.usage.input_tokens > 0
    assert response.usage.output_tokens == 0


@requirement("sequence.empty")
async def test_an_empty_answer_is_one_message_with_empty_text(connect: Connect) -> None:
    peer = await connect()
    connect.stack  # noqa: B018  # the server runs
    events = await peer.turn(input="Say nothing", metadata=script(text=""))
    assert arms(events) == [
        *_BEGIN,
        *[arm for arm in _MESSAGE if not arm.endswith("_delta")],
        "response_completed",
    ]
    (item,) = response_of(events).output
    assert item.message.content.parts.parts[0].output_text.text == ""
    assert public(item)["status"] == "completed"


@requirement("sequence.incomplete")
async def test_max_output_tokens_ends_the_turn_incomplete(connect: Connect) -> None:
    peer = await connect()
    events = await peer.turn(input="Talk", max_output_tokens=3, metadata=script(tokens=50))
    assert arms(events)[-1] == "response_incomplete"
    response = response_of(events)
    assert response.incomplete_details.reason == "max_output_tokens"
    assert public(response.output[-1])["status"] == "incomplete"
    assert response.usage.output_tokens == 3


@requirement("sequence.incomplete")
async def test_a_call_that_is_cut_ends_incomplete(connect: Connect) -> None:
    peer = await connect()
    events = await peer.turn(
        input="Call", tools=[SHELL], max_output_tokens=20, metadata=script(call_tokens=60)
    )
    response = response_of(events)
    assert response.incomplete_details.reason == "max_output_tokens"
    assert public(response.output[-1])["type"] == "function_call"
    assert public(response.output[-1])["status"] == "incomplete"


@requirement("sequence.failed")
async def test_an_engine_that_breaks_gives_one_failure_and_a_free_lane(connect: Connect) -> None:
    peer = await connect()
    events = await peer.turn(input="Break", metadata=script(text="Never all of it", fail_after=2))
    assert arms(events)[-1] == "response_failed"
    response = response_of(events)
    assert response.error.code == "server_error"
    assert "script" not in response.error.message
    again = await peer.turn(input="Once more")
    assert arms(again)[-1] == "response_completed"


@requirement("sequence.failed")
async def test_an_engine_that_breaks_before_its_first_token_fails_the_response(
    connect: Connect,
) -> None:
    peer = await connect()
    events = await peer.turn(input="Break", metadata=script(text="Nothing", fail_after=0))
    assert arms(events) == [*_BEGIN, "response_failed"]


@requirement("sequence.numbers")
@pytest.mark.parametrize("case", ["text", "call", "warm_up", "cut"])
async def test_numbers_start_at_0_for_each_response_and_have_no_gap(
    connect: Connect, case: str
) -> None:
    creates: dict[str, dict[str, Any]] = {
        "text": {"input": "Hi"},
        "call": {"input": "Hi", "tools": [SHELL]},
        "warm_up": {"input": "Hi", "generate": False},
        "cut": {"input": "Hi", "max_output_tokens": 1},
    }
    create = creates[case]
    if case == "warm_up" and connect.wire == "http":
        create = {"input": "Hi", "max_output_tokens": 2}
    peer = await connect()
    for _ in range(2):
        events = await peer.turn(create)
        assert [event.sequence_number for event in events] == list(range(len(events)))


@requirement("sequence.ids")
async def test_ids_of_events_are_those_of_the_terminal_response(connect: Connect) -> None:
    peer = await connect()
    calls = [{"name": "exec_command", "arguments": {"cmd": "ls"}}]
    events = await peer.turn(
        input="Look",
        tools=[SHELL],
        metadata=script(reasoning="Hm.", text="I will look.", calls=calls),
    )
    response = response_of(events)
    output = [getattr(item, item.WhichOneof("item") or "") for item in response.output]
    for event in events:
        body = getattr(event, arm_of(event))
        if hasattr(body, "item_id"):
            assert body.item_id == output[body.output_index].id
        elif hasattr(body, "item"):
            shown = getattr(body.item, body.item.WhichOneof("item"))
            assert shown.id == output[body.output_index].id
        else:
            assert body.response.id == response.id
    assert len({item.id for item in output}) == len(output)
    assert output[-1].call_id != output[-1].id


@requirement("response.members")
async def test_the_response_shows_every_member_that_strict_clients_ask_for(
    connect: Connect,
) -> None:
    peer = await connect()
    events = await peer.turn(input="Hi", store=False, temperature=0.5, tools=[SHELL])
    shown = public(response_of(events))
    required = """id object created_at completed_at status background error incomplete_details
        instructions max_output_tokens max_tool_calls model output parallel_tool_calls
        previous_response_id prompt_cache_key reasoning safety_identifier service_tier store
        temperature text tool_choice tools top_logprobs top_p truncation presence_penalty
        frequency_penalty usage user metadata""".split()
    assert not set(required) - set(shown)
    assert isinstance(shown["created_at"], int) and isinstance(shown["completed_at"], int)
    assert (shown["store"], shown["temperature"], shown["top_p"]) == (False, 0.5, 1.0)
    assert {"effort", "summary"} <= set(shown["reasoning"])
    assert shown["text"]["format"] == {"type": "text"}
    assert {"name", "description", "parameters", "strict"} <= set(shown["tools"][0])
    assert set(shown["usage"]["input_tokens_details"]) >= {"cached_tokens", "cache_write_tokens"}


@requirement("usage.sum")
async def test_usage_counts_the_whole_context_and_adds_up(connect: Connect) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="Hi", metadata=script(text="One two three.")))
    second = response_of(
        await peer.turn(input="Go on", previous_response_id=first.id, metadata=script(text="Four."))
    )
    request = connect.stack.engine.request(second.id)
    assert second.usage.input_tokens == len(request.ids)
    assert second.usage.input_tokens > first.usage.total_tokens
    assert second.usage.total_tokens == second.usage.input_tokens + second.usage.output_tokens
    assert 0 < second.usage.input_tokens_details.cached_tokens < second.usage.input_tokens


@requirement("usage.reasoning")
async def test_usage_counts_reasoning_tokens_among_the_output_tokens(connect: Connect) -> None:
    peer = await connect()
    thought = "The tokens of this thought are counted."
    events = await peer.turn(input="Think", metadata=script(reasoning=thought, text="Done."))
    usage = response_of(events).usage
    assert 5 <= usage.output_tokens_details.reasoning_tokens < usage.output_tokens
    without = response_of(await peer.turn(input="Hi", metadata=script(text="Done."))).usage
    assert without.output_tokens_details.reasoning_tokens == 0


@requirement("usage.ledger")
async def test_each_response_leaves_one_usage_record(connect: Connect) -> None:
    peer = await connect()
    good = response_of(await peer.turn(input="Hi"))
    broken = response_of(await peer.turn(input="Hi", metadata=script(text="a b c", fail_after=2)))
    await connect.stack.services.afterwork.finish(5)
    ledger = connect.stack.ledger
    assert [record.response_id for record in ledger.closed.values()] == [good.id, broken.id]
    assert not ledger.open_records
    record = ledger.closed[good.id]
    assert (record.status, record.output_tokens) == ("completed", good.usage.output_tokens)
    record = ledger.closed[broken.id]
    assert (record.status, record.output_tokens) == ("failed", 2)
    assert record.input_tokens == broken.usage.input_tokens > 0


async def _events_of_a_good_turn(connect: Connect) -> list[ServerEvent]:
    peer = await connect("memory")
    return await peer.turn(input="Hi", metadata=script(text="Hello."))


@requirement("sequence.text")
async def test_the_checker_finds_each_event_that_is_missing_or_doubled(connect: Connect) -> None:
    events = await _events_of_a_good_turn(connect)
    for index in range(len(events)):
        for broken in (
            [*events[:index], *events[index + 1 :]],
            [*events[: index + 1], events[index], *events[index + 1 :]],
        ):
            checker = StreamChecker()
            with pytest.raises(SequenceError):
                for event in broken:
                    checker.feed(event)
                checker.finish()
