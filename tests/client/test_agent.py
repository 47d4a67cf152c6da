from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import turnwire
from harness.client_events import call_item, call_turn, cancelled, opening, text_turn
from harness.client_wires import MemoryWire, memory_session
from turnwire import FunctionCall
from turnwire._agent import _Answers
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import ServerEvent


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def tools_then_text(rounds: int = 1) -> Callable[[ClientEvent], list[ServerEvent]]:
    """Return a script that calls `add` so often, twice at once, then answers."""
    turns = 0

    def script(event: ClientEvent) -> list[ServerEvent]:
        nonlocal turns
        turns += 1
        if turns > rounds:
            return text_turn(event, f"resp_{turns}", "The sum is 3.")
        calls = (
            call_item("add", '{"a":1,"b":2}', f"call_{turns}a"),
            call_item("add", '{"a":"?"}', f"call_{turns}b"),
        )
        return call_turn(event, f"resp_{turns}", *calls)

    return script


async def test_a_run_sends_only_what_is_new_and_answers_each_call() -> None:
    wire = MemoryWire(tools_then_text())
    async with asyncio.timeout(20), memory_session(wire) as session:
        result = await session.run(
            "What is 1 + 2?",
            tools={"add": add},
            instructions="Be brief.",
            tool_choice="required",
            metadata={"k": "v"},
        )
    first, second = (event.response_create for event in wire.sent)
    assert first.input.text == "What is 1 + 2?"
    assert first.tool_choice.mode == "required"
    assert not first.HasField("previous_response_id")
    assert second.previous_response_id == "resp_1"
    assert not second.HasField("tool_choice")
    outputs = [item.function_call_output for item in second.input.items.items]
    assert [output.call_id for output in outputs] == ["call_1a", "call_1b"]
    assert outputs[0].output.text == "3"
    assert outputs[1].output.text.startswith("Error: ValueError: a: expected an integer")
    for create in (first, second):
        assert create.HasField("store") and not create.store
        assert create.instructions == "Be brief."
        assert create.tools[0].function.name == "add"
        assert list(create.include) == ["turnwire.timing"]
        assert dict(create.metadata) == {"k": "v"}
    assert (result.output_text, result.stop_reason) == ("The sum is 3.", "answered")
    assert [item.WhichOneof("item") for item in result.items] == [
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "message",
    ]
    assert [turn.tokens_rendered for turn in result.turns] == [7, 7]
    assert [turn.input_items for turn in result.turns] == [1, 2]
    assert result.response.id == "resp_2"


async def test_a_run_over_http_keeps_the_default_of_store() -> None:
    wire = MemoryWire(tools_then_text(), name="http")
    wire.persistent = False
    async with asyncio.timeout(20), memory_session(wire) as session:
        await session.run("x", tools=[add])
    first, second = (event.response_create for event in wire.sent)
    assert not first.HasField("store")
    assert second.previous_response_id == "resp_1"


async def test_a_run_with_full_history_resends_all_and_names_no_parent() -> None:
    wire = MemoryWire(tools_then_text(2))
    async with asyncio.timeout(20), memory_session(wire) as session:
        result = await session.run("x", tools=[add], history="full", include=[])
    creates = [event.response_create for event in wire.sent]
    assert [len(create.input.items.items) for create in creates] == [0, 5, 9]
    kinds = [item.WhichOneof("item") for item in creates[1].input.items.items]
    assert kinds == ["message", *["function_call"] * 2, *["function_call_output"] * 2]
    assert not any(create.HasField("previous_response_id") for create in creates)
    assert not any(create.store for create in creates)
    assert not any(create.include for create in creates)
    assert [turn.tokens_sent for turn in result.turns] == [None] * 3
    assert len(result.items) == 10


async def test_a_run_stops_at_max_turns_without_running_the_last_calls() -> None:
    ran = []
    wire = MemoryWire(tools_then_text(9))

    def add(a: int, b: int = 0) -> int:
        ran.append(a)
        return a + b

    async with asyncio.timeout(20), memory_session(wire) as session:
        result = await session.run("x", tools=[add], max_turns=2)
    assert result.stop_reason == "max_turns"
    assert len(result.turns) == 2 and len(ran) == 1
    assert len(result.response.function_calls) == 2


async def test_callbacks_get_every_event_and_every_output_in_order() -> None:
    told: list[str] = []
    wire = MemoryWire(tools_then_text())

    async def on_event(event: turnwire.Event) -> None:
        told.append(event.type)

    def on_tool_output(call: turnwire.FunctionCall, text: str) -> None:
        told.append(f"{call.call_id}={text[:5]}")

    async with asyncio.timeout(20), memory_session(wire) as session:
        await session.run("x", tools=[add], on_event=on_event, on_tool_output=on_tool_output)
    middle = told.index("call_1a=3")
    assert told[middle - 1 : middle + 3] == [
        "response.completed",
        "call_1a=3",
        "call_1b=Error",
        "response.created",
    ]


async def test_a_run_that_was_cut_says_so() -> None:
    def script(event: ClientEvent) -> list[ServerEvent]:
        return [*opening(event, "resp_1"), cancelled(event, "resp_1")]

    wire = MemoryWire(script)
    async with asyncio.timeout(20), memory_session(wire) as session:
        result = await session.run("x")
    assert result.stop_reason == "cancelled"


async def test_cancelling_a_run_cancels_its_turn() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        running = asyncio.create_task(session.run("x"))
        await wire.sent_count(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await wire.sent_count(2)
    assert running.cancelled()
    assert wire.sent[1].WhichOneof("event") == "response_cancel"


async def test_a_run_goes_on_from_a_parent_on_its_lane() -> None:
    wire = MemoryWire(lambda event: text_turn(event, "resp_9", "x"))
    async with asyncio.timeout(20), memory_session(wire) as session:
        await session.run("x", previous_response_id="resp_8", stream_id="a")
        with pytest.raises(ValueError, match="previous_response_id"):
            await session.run("x", previous_response_id="resp_8", history="full")
    assert wire.sent[0].stream_id == "a"
    assert wire.sent[0].response_create.previous_response_id == "resp_8"


async def test_a_call_is_run_once_however_often_its_response_tells_of_it() -> None:
    ran: list[int] = []
    told: list[str] = []

    def count(n: int) -> str:
        ran.append(n)
        return f"ran {n}"

    answers = _Answers([turnwire.tool(count)], lambda call, _: told.append(call.call_id), 5.0)
    calls = [FunctionCall("count", f"call_{n}", f'{{"n":{n}}}') for n in range(3)]
    async with asyncio.timeout(20):
        first = await answers.to("resp_1", calls[:2])
        again = await answers.to("resp_1", calls)
        # Another response's calls are its own, whatever ids its server gives them.
        await answers.to("resp_2", calls[:1])
    assert again[:2] == first
    assert ran == [0, 1, 2, 0]
    assert told == ["call_0", "call_1", "call_2", "call_0"]
