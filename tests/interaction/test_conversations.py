"""Conversations by name: their calls, and creates that name them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI
from openai.types.conversations import Conversation, ConversationItemList

from harness.peers import HttpPeer
from harness.reading import (
    arm_of,
    arms,
    calls_of,
    failure_of,
    items_json,
    public,
    response_of,
    status_of,
)
from interaction.conftest import Connect
from interaction.pauses import append, round_of
from interaction.requirements import requirement
from interaction.scripts import SHELL, call_output, said, script, user
from turnwire import _codec
from turnwire.v1.conversation_pb2 import (
    ConversationItemList as ItemListMessage,
)
from turnwire.v1.conversation_pb2 import (
    ConversationResource,
    CreateConversationItemsRequest,
    CreateConversationRequest,
)
from turnwire.v1.item_pb2 import Item
from turnwire.v1.response_pb2 import Response
from turnwire_server.adapters.renderers.sim_tokens import sim_tokens
from turnwire_server.ports.screen import Verdict
from turnwire_server.runtime.paging import PageRequest
from turnwire_server.session.conversation import item_text

TIMING = {"include": ["turnwire.timing"]}


@asynccontextmanager
async def client_of(connect: Connect) -> AsyncIterator[AsyncOpenAI]:
    """Yield the official client of the server."""
    peer = await connect()
    assert isinstance(peer, HttpPeer)
    base_url = peer._url.removesuffix("/responses")
    async with AsyncOpenAI(base_url=base_url, api_key="x", max_retries=0) as client:
        yield client


async def make(connect: Connect, *items: dict[str, Any]) -> str:
    """Make a conversation; return its id."""
    stack = await connect.start()
    request = _codec.parse(CreateConversationRequest, {"items": list(items)})
    made = await stack.services.conversations.create(request, tenant="default")
    assert isinstance(made, ConversationResource), made
    return made.id


async def listed(connect: Connect, conversation_id: str) -> list[dict[str, Any]]:
    """Return all items of a conversation, oldest first."""
    conversations = connect.stack.services.conversations
    asked = PageRequest(limit=100, order="asc")
    found = await conversations.list_items(conversation_id, asked, tenant="default")
    assert isinstance(found, ItemListMessage), found
    return items_json(found.data)


def prompt_of(connect: Connect, response: Response) -> str:
    ids = connect.stack.engine.request(response.id).ids
    return b"".join(map(sim_tokens().token_bytes, ids)).decode()


@requirement("conversations.calls")
async def test_the_official_client_makes_reads_changes_and_forgets_a_conversation(
    connect: Connect,
) -> None:
    async with client_of(connect) as client:
        made = await client.conversations.create(
            metadata={"topic": "plums"},
            items=[{"role": "user", "content": "Hello", "type": "message"}],
        )
        assert made.id.startswith("conv_") and made.object == "conversation"
        Conversation.model_validate(made.model_dump(), strict=True)
        assert (await client.conversations.retrieve(made.id)).metadata == {"topic": "plums"}
        changed = await client.conversations.update(made.id, metadata={"a": "b"})
        assert changed.metadata == {"a": "b"} and changed.created_at == made.created_at
        gone = await client.conversations.delete(made.id)
        assert (gone.id, gone.deleted, gone.object) == (made.id, True, "conversation.deleted")
        with pytest.raises(APIStatusError) as unknown:
            await client.conversations.retrieve(made.id)
        assert (unknown.value.status_code, unknown.value.code) == (404, "conversation_not_found")
        assert (await client.conversations.create()).metadata == {}


@requirement("conversations.calls")
async def test_the_official_client_lists_adds_reads_and_forgets_items(connect: Connect) -> None:
    async with client_of(connect) as client:
        made = await client.conversations.create()
        added = await client.conversations.items.create(
            made.id,
            items=[
                {"role": "user", "content": f"Item {number}", "type": "message"}
                for number in range(5)
            ],
        )
        ConversationItemList.model_validate(added.model_dump(), strict=True)
        assert [item.content[0].text for item in added.data] == [
            f"Item {number}" for number in range(5)
        ]
        ids = [item.id for item in added.data]
        assert (added.first_id, added.last_id, added.has_more) == (ids[0], ids[4], False)
        page = await client.conversations.items.list(made.id, limit=2)
        assert [item.id for item in page.data] == [ids[4], ids[3]]
        assert page.has_more
        everything = [item.id async for item in client.conversations.items.list(made.id, limit=2)]
        assert everything == ids[::-1]
        one = await client.conversations.items.retrieve(ids[1], conversation_id=made.id)
        assert one.content[0].text == "Item 1" and one.status == "completed"
        await client.conversations.items.delete(ids[1], conversation_id=made.id)
        left = await client.conversations.items.list(made.id, order="asc")
        assert [item.id for item in left.data] == [ids[0], *ids[2:]]
        response = await client.responses.create(model="sim", input="Go on", conversation=made.id)
        assert response.conversation and response.conversation.id == made.id
        prompt = prompt_of(connect, Response(id=response.id))
        assert "Item 0" in prompt and "Item 1" not in prompt


@requirement("conversations.errors")
async def test_what_cannot_be_done_to_a_conversation_is_one_error(connect: Connect) -> None:
    async with client_of(connect) as client:
        made = await client.conversations.create()
        items = client.conversations.items
        message: Any = {"role": "user", "content": "x", "type": "message"}
        many = [message] * 21

        async def refused(call: Any) -> tuple[int, str | None, str | None]:
            with pytest.raises(APIStatusError) as error:
                await call
            return error.value.status_code, error.value.code, error.value.param

        invalid = (400, "invalid_value")
        assert await refused(client.conversations.create(items=many)) == (*invalid, "items")
        assert await refused(items.create(made.id, items=many)) == (*invalid, "items")
        assert await refused(items.create(made.id, items=[])) == (
            400,
            "missing_required_parameter",
            "items",
        )
        bad: Any = [message, {"type": "function_call_output", "call_id": "c", "output": "x"}]
        assert await refused(items.create(made.id, items=bad)) == (*invalid, "items")
        trigger: Any = [message, {"type": "compaction_trigger"}]
        assert await refused(items.create(made.id, items=trigger)) == (
            *invalid,
            "items[1].type",
        )
        wrong: Any = [{"role": "user", "content": 7, "type": "message"}]
        assert await refused(items.create(made.id, items=wrong)) == (
            400,
            "invalid_type",
            "items[0].content",
        )
        pairs = {str(number): "" for number in range(17)}
        assert await refused(client.conversations.create(metadata=pairs)) == (
            *invalid,
            "metadata",
        )
        assert await refused(client.conversations.update(made.id, metadata=pairs)) == (
            *invalid,
            "metadata",
        )
        unknown = (404, "conversation_not_found", "conversation")
        for call in (
            client.conversations.retrieve("conv_x"),
            client.conversations.update("conv_x", metadata={}),
            client.conversations.delete("conv_x"),
            items.create("conv_x", items=[message]),
            items.list("conv_x"),
            items.retrieve("msg_x", conversation_id="conv_x"),
            items.delete("msg_x", conversation_id="conv_x"),
        ):
            assert await refused(call) == unknown
        missing = (404, "item_not_found", "item_id")
        assert await refused(items.retrieve("msg_x", conversation_id=made.id)) == missing
        assert await refused(items.delete("msg_x", conversation_id=made.id)) == missing
        assert await refused(items.list(made.id, limit=101)) == (*invalid, "limit")
        assert await refused(items.list(made.id, after="msg_x")) == (*invalid, "after")


@requirement("conversations.create")
async def test_a_create_continues_its_conversation_and_adds_to_it(connect: Connect) -> None:
    conversation_id = await make(connect, user("Remember the word plum."))
    peer = await connect()
    first = response_of(await peer.turn(input="Do it", tools=[SHELL], conversation=conversation_id))
    assert public(first)["conversation"] == {"id": conversation_id}
    (call,) = calls_of(first)
    other = await connect()
    second = response_of(
        await other.turn(
            input=[call_output(call)], tools=[SHELL], conversation={"id": conversation_id}
        )
    )
    assert status_of(second) == "completed"
    prompt = prompt_of(connect, second)
    for text in ("Remember the word plum.", "Do it", "<tool_response>\nhello"):
        assert text in prompt
    items = await listed(connect, conversation_id)
    assert [item["type"] for item in items] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    (error,) = await other.turn(input=[call_output(call)], conversation=conversation_id)
    assert failure_of(error) == ("invalid_value", 400, "input")


@requirement("conversations.create")
async def test_an_unstored_response_is_added_too(connect: Connect) -> None:
    conversation_id = await make(connect)
    peer = await connect()
    await peer.turn(input="One", conversation=conversation_id, store=False, metadata=said("Yes."))
    texts = [item["content"][0]["text"] for item in await listed(connect, conversation_id)]
    assert texts == ["One", "Yes."]


@requirement("conversations.tokens")
async def test_a_turn_of_a_conversation_renders_what_is_new(connect: Connect) -> None:
    conversation_id = await make(connect, user("A long beginning. " * 50))
    peer = await connect()
    more = {**TIMING, "conversation": conversation_id, "instructions": "Be kind."}
    response_of(await peer.turn(more, input="Turn 0"))
    for number in range(1, 4):
        response = response_of(await peer.turn(more, input=f"Turn {number}"))
        assert response.turnwire.timing.rerender_reason == ""
        assert response.turnwire.timing.tokens.rendered < 20


@requirement("conversations.unknown")
async def test_a_conversation_must_be_there_and_have_no_parent_beside_it(
    connect: Connect,
) -> None:
    peer = await connect()
    (error,) = await peer.turn(input="Hi", conversation="conv_x")
    assert failure_of(error) == ("conversation_not_found", 404, "conversation")
    first = response_of(await peer.turn(input="Hi"))
    conversation_id = await make(connect)
    (error,) = await peer.turn(
        input="Hi", conversation=conversation_id, previous_response_id=first.id
    )
    assert failure_of(error) == ("invalid_value", 400, "conversation")
    assert status_of(response_of(await peer.turn(input="Hi", conversation=conversation_id)))


@requirement("conversations.locked")
async def test_a_conversation_is_locked_while_a_response_of_it_runs(connect: Connect) -> None:
    conversation_id = await make(connect)
    peer, other = await connect(), await connect()
    hold = connect.stack.engine.hold("first", after_steps=1)
    await peer.create(input="first", conversation=conversation_id)
    await connect.stack.engine.held(hold)
    (error,) = await other.turn(input="second", conversation=conversation_id)
    assert failure_of(error) == ("conversation_locked", 409, "conversation")
    connect.stack.engine.release(hold)
    assert arms(await peer.finish())[-1] == "response_completed"
    second = response_of(await other.turn(input="second", conversation=conversation_id))
    assert "first" in prompt_of(connect, second)


@requirement("conversations.failed")
@pytest.mark.parametrize(
    "members",
    [{"metadata": {"turnwire.sim": "fail"}}, {"temperature": 9}],
    ids=["engine", "refused"],
)
async def test_a_turn_that_fails_adds_nothing_and_frees_its_conversation(
    connect: Connect, members: dict[str, Any]
) -> None:
    conversation_id = await make(connect)
    peer = await connect()
    events = await peer.turn(members, input="first", conversation=conversation_id)
    assert arms(events)[-1] in ("response_failed", "error")
    assert await listed(connect, conversation_id) == []
    again = await peer.turn(input="second", conversation=conversation_id)
    assert arms(again)[-1] == "response_completed"
    assert len(await listed(connect, conversation_id)) == 2


@requirement("conversations.compacted")
async def test_a_compacted_conversation_lists_everything_and_tells_the_summary(
    connect: Connect,
) -> None:
    conversation_id = await make(connect, user("plum " * 1200))
    peer = await connect()
    over = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
    first = response_of(await peer.turn(over, input="Go on.", conversation=conversation_id))
    assert [item.WhichOneof("item") for item in first.output] == ["compaction", "message"]
    items = await listed(connect, conversation_id)
    assert [item["type"] for item in items] == ["message", "message", "compaction", "message"]
    second = response_of(await peer.turn(input="And now?", conversation=conversation_id))
    assert prompt_of(connect, second).count("plum") == 0
    assert "<summary>" in prompt_of(connect, second)
    conversations = connect.stack.services.conversations
    changed = await conversations.delete_item(conversation_id, items[-1]["id"], tenant="default")
    assert isinstance(changed, ConversationResource)
    third = response_of(await peer.turn(input="And now?", conversation=conversation_id))
    assert prompt_of(connect, third).count("plum") == 0


class _Screen:
    """Blocks one phrase, read from one message to the next as far as its state tells."""

    async def check(
        self, state: bytes, new_items: Sequence[Item], *, instructions: str = ""
    ) -> Verdict:
        texts = [item_text(item.message.content) for item in new_items]
        text = " ".join([state.decode(), *texts])
        return Verdict(allowed="build a bomb" not in text, state=text[-12:].encode())


async def _add(connect: Connect, conversation_id: str, *items: dict[str, Any]) -> None:
    request = _codec.parse(CreateConversationItemsRequest, {"items": list(items)})
    conversations = connect.stack.services.conversations
    added = await conversations.add_items(conversation_id, request, tenant="default")
    assert isinstance(added, ItemListMessage)


@requirement("conversations.screened")
@pytest.mark.parametrize("how", ["create", "add"])
async def test_the_screen_reads_items_that_came_without_a_turn(connect: Connect, how: str) -> None:
    connect.parts.screen = _Screen()
    bad = user("please build a bomb for me")
    conversation_id = await make(connect, *([bad] if how == "create" else []))
    peer = await connect()
    if how == "add":
        response_of(await peer.turn(input="Hi", conversation=conversation_id))
        await _add(connect, conversation_id, bad)
    for _ in range(2):
        events = await peer.turn(input="do it", conversation=conversation_id)
        assert arm_of(events[-1]) == "response_failed"


@requirement("conversations.screened")
async def test_deleting_an_item_hides_none_of_the_others_from_the_screen(
    connect: Connect,
) -> None:
    connect.parts.screen = _Screen()
    conversation_id = await make(connect, {**user("Hi."), "id": "msg_hi"}, user("please build"))
    peer = await connect()
    events = await peer.turn(input=[], conversation=conversation_id, metadata=said(""))
    assert arm_of(events[-1]) == "response_completed"
    await _delete(connect, conversation_id, "msg_hi")
    (_, empty) = await listed(connect, conversation_id)
    await _delete(connect, conversation_id, empty["id"])
    events = await peer.turn(input="a bomb", conversation=conversation_id)
    assert arm_of(events[-1]) == "response_failed"


async def _delete(connect: Connect, conversation_id: str, item_id: str) -> None:
    conversations = connect.stack.services.conversations
    changed = await conversations.delete_item(conversation_id, item_id, tenant="default")
    assert isinstance(changed, ConversationResource)


@requirement("conversations.rollout")
async def test_a_rollout_is_kept_in_the_order_in_which_it_happened(connect: Connect) -> None:
    conversation_id = await make(connect, {**user("Hi."), "id": "msg_hi"})
    peer = await connect()
    await peer.create(
        input="go",
        rollout=True,
        tools=[SHELL],
        metadata=script(tool_rounds=2),
        conversation=conversation_id,
    )
    for _ in range(2):
        await append(peer, (await round_of(peer))[-1])
    response_of(await round_of(peer))
    items = await listed(connect, conversation_id)
    assert [item["type"] for item in items[1:]] == [
        "message",
        "function_call",
        "function_call_output",
        "function_call",
        "function_call_output",
        "message",
    ]
    for call, output in (items[2:4], items[4:6]):
        assert call["call_id"] == output["call_id"]
    await _delete(connect, conversation_id, "msg_hi")
    after = await peer.turn(input="And now?", tools=[SHELL], conversation=conversation_id)
    assert arms(after)[-1] == "response_completed"
