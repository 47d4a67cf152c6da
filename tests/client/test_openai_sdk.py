"""The official SDK as a judge from outside: only its base URL is changed."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from harness.server import RunningServer

TURNS = 10
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
async def sdk(server: RunningServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.http_url, api_key="x", max_retries=0) as client:
        yield client


async def until_terminal(connection: Any) -> list[Any]:
    events = []
    async with asyncio.timeout(20):
        async for event in connection:
            events.append(event)
            if event.type in ("response.completed", "response.failed", "error"):
                return events
    raise AssertionError("the connection ended before its turn")


def check_events(events: list[Any]) -> Any:
    """Return the final response of one whole turn."""
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed", events[-1]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1].response
    assert final.id == events[0].response.id
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text
    return final


async def test_ten_turns_without_a_store_chain_over_one_websocket(
    server: RunningServer, sdk: openai.AsyncOpenAI
):
    parent: Any = openai.omit
    seen = []
    async with sdk.responses.connect() as connection:
        for number in range(TURNS):
            await connection.response.create(
                model="sim",
                store=False,
                instructions="Be brief.",
                input=f"Message number {number}.",
                previous_response_id=parent,
                include=["turnwire.timing"],  # type: ignore[list-item]  # our own extra
            )
            final = check_events(await until_terminal(connection))
            assert final.output_text
            assert final.usage.total_tokens == final.usage.input_tokens + final.usage.output_tokens
            seen.append(final)
            parent = final.id
            assert server.services.connection_count == 1
    assert len({final.id for final in seen}) == TURNS
    assert [final.previous_response_id for final in seen[1:]] == [final.id for final in seen[:-1]]
    tokens = [final.turnwire["timing"]["tokens"] for final in seen]
    for before, now in itertools.pairwise(tokens):
        # The whole conversation is in the prompt, and only the new message was tokenized.
        assert now["input"] >= before["input"] + before["output"]
        assert now["rendered"] == now["sent"] < 30
    # Nothing was stored: another connection cannot continue it.
    with pytest.raises(openai.APIStatusError) as refused:
        await sdk.responses.create(model="sim", input="x", previous_response_id=seen[-1].id)
    assert refused.value.code == "previous_response_not_found"


async def test_a_tool_runs_between_two_turns_of_a_websocket(sdk: openai.AsyncOpenAI):
    async with sdk.responses.connect() as connection:
        create: dict[str, Any] = {"model": "sim", "store": False, "tools": [WEATHER]}
        await connection.response.create(input="How is the weather in Paris?", **create)
        first = check_events(await until_terminal(connection))
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert call.name == "get_weather"
        assert list(json.loads(call.arguments)) == ["city"]
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        await connection.response.create(
            input=[output],  # type: ignore[list-item]  # a plain dict is what users write
            previous_response_id=first.id,
            **create,
        )
        second = check_events(await until_terminal(connection))
        assert [item.type for item in second.output] == ["message"]


async def test_a_refused_create_leaves_the_websocket_usable(sdk: openai.AsyncOpenAI):
    async with sdk.responses.connect() as connection:
        await connection.response.create(model="sim", input="x", previous_response_id="resp_none")
        (error,) = await until_terminal(connection)
        assert error.error.code == "previous_response_not_found"
        await connection.response.create(model="sim", input="Still there?", store=False)
        assert check_events(await until_terminal(connection)).output_text


async def test_an_http_stream_has_the_events_of_the_websocket(sdk: openai.AsyncOpenAI):
    async with asyncio.timeout(20):
        stream = await sdk.responses.create(model="sim", input="Hello.", stream=True)
        events = [event async for event in stream]
    assert check_events(events).status == "completed"


async def test_the_sdk_accumulates_a_stream_and_continues_it_by_id(sdk: openai.AsyncOpenAI):
    async with asyncio.timeout(20):
        async with sdk.responses.stream(model="sim", input="Weather?", tools=[WEATHER]) as stream:  # type: ignore[list-item]
            async for _ in stream:
                pass
            first = await stream.get_final_response()
        (call,) = [item for item in first.output if item.type == "function_call"]
        second = await sdk.responses.create(
            model="sim",
            previous_response_id=first.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
            tools=[WEATHER],  # type: ignore[list-item]
        )
    assert second.output_text
    assert second.previous_response_id == first.id


async def test_stored_responses_are_fetched_listed_and_deleted(sdk: openai.AsyncOpenAI):
    async with asyncio.timeout(20):
        made = await sdk.responses.create(model="sim", input="Remember this.")
        fetched = await sdk.responses.retrieve(made.id)
        items = await sdk.responses.input_items.list(made.id)
        models = await sdk.models.list()
        await sdk.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(made.id)
    assert fetched.output_text == made.output_text
    assert items.data[0].content[0].text == "Remember this."  # type: ignore[union-attr]
    assert [model.id for model in models.data] == ["sim"]
