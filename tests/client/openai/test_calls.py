"""The rest of the API over the drop-in: compaction, the background, conversations."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import openai
import pytest

import turnwire.openai
from harness.drop_in import sdk_over
from harness.server import RunningServer

WIRES = ("grpc", "websocket")
HISTORY: list[Any] = [
    {"role": "user", "content": "My name is Ada."},
    {"role": "assistant", "content": "Hello, Ada."},
]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_conversation_is_compacted_and_goes_on(wire: str, server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.url(wire))
    async with sdk_over(transport) as sdk:
        compacted = await sdk.responses.compact(model="sim", input=HISTORY)
        assert compacted.object == "response.compaction"
        assert [item.type for item in compacted.output].count("compaction") == 1
        items: list[Any] = [
            item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output
        ]
        items.append({"role": "user", "content": "What is my name?"})
        assert (await sdk.responses.create(model="sim", input=items, store=False)).output_text


@pytest.mark.parametrize("wire", WIRES)
async def test_a_refused_compaction_is_the_one_of_http(wire: str, server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.url(wire))
    async with httpx.AsyncClient() as plain, httpx.AsyncClient(transport=transport) as over:
        for body in ({"input": "x"}, {"model": "nobody", "input": "x"}, {"model": 5}, [1]):
            there = await plain.post(f"{server.http_url}/responses/compact", json=body)
            here = await over.post("http://turnwire.invalid/v1/responses/compact", json=body)
            assert here.status_code == there.status_code >= 400
            error, expected = here.json()["error"], there.json()["error"]
            assert (error["code"], error["param"]) == (expected["code"], expected["param"])


@pytest.mark.parametrize("wire", WIRES)
async def test_a_turn_in_the_background_is_on_no_session(wire: str, server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.url(wire))
    async with sdk_over(transport) as sdk:
        begun = await sdk.responses.create(model="sim", input="Say hello.", background=True)
        assert begun.background and begun.status in ("queued", "in_progress", "completed")
        while begun.status != "completed":
            begun = await sdk.responses.retrieve(begun.id)
        assert begun.output_text
        stream = await sdk.responses.create(
            model="sim", input="Say hello.", background=True, stream=True
        )
        events = [event async for event in stream]
        assert events[0].type in ("response.created", "response.queued")
        assert events[-1].type == "response.completed"
        assert transport.stats.turns == 0
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.responses.create(model="sim", input="x", background=True, store=False)
        assert refused.value.param == "store"


async def test_what_a_session_has_nothing_for_passes_on_over_http(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.url("websocket"))
    async with sdk_over(transport) as sdk:
        conversation = await sdk.conversations.create(metadata={"a": "b"})
        assert (await sdk.conversations.retrieve(conversation.id)).metadata == {"a": "b"}
        answer = await sdk.responses.create(
            model="sim", input="Hello.", conversation=conversation.id
        )
        items = await sdk.conversations.items.list(conversation.id, order="asc", limit=1)
        assert items.data[0].content[0].text == "Hello."  # type: ignore[union-attr]
        stored = await sdk.responses.retrieve(answer.id, stream=True)
        assert [event.type async for event in stored][-1] == "response.completed"
        with pytest.raises(openai.NotFoundError) as refused:
            await sdk.conversations.retrieve("conv_none")
        assert refused.value.code == "conversation_not_found"
        assert transport.stats.sessions == 1


async def test_on_grpc_it_goes_to_the_fallback(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with sdk_over(transport) as sdk:
        with pytest.raises(openai.NotFoundError) as refused:
            await sdk.conversations.create()
        assert refused.value.code == "not_found"
    transport = turnwire.openai.Transport(server.grpc_url, fallback=httpx.AsyncHTTPTransport())
    async with sdk_over(transport) as sdk:
        # What is left over goes to the base URL, which is the server's own here.
        sdk = sdk.with_options(base_url=server.http_url)
        conversation = await sdk.conversations.create()
        assert (await sdk.conversations.retrieve(conversation.id)).id == conversation.id
        await sdk.responses.create(model="sim", input="Hello.", conversation=conversation.id)
        assert len((await sdk.conversations.items.list(conversation.id)).data) == 2
        assert transport.stats.turns == 1
