"""Two servers that change one conversation at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from harness.stack import Parts, Stack, running_stack
from harness.stores import sqlite_url
from turnwire.v1 import conversation_pb2, item_pb2
from turnwire_server.runtime.paging import PageRequest
from turnwire_server.runtime.services import DEFAULT_TENANT
from turnwire_server.session.errors import Rejection, error_code


@pytest.fixture
async def stacks(tmp_path: Path) -> AsyncIterator[tuple[Stack, Stack]]:
    """Two servers on one database."""
    async with AsyncExitStack() as exits:
        url = sqlite_url(tmp_path)
        one, other = [
            await exits.enter_async_context(running_stack(Parts(database=url))) for _ in range(2)
        ]
        yield one, other


async def new_conversation(stack: Stack) -> str:
    made = await stack.services.conversations.create(
        conversation_pb2.CreateConversationRequest(), tenant=DEFAULT_TENANT
    )
    assert not isinstance(made, Rejection)
    return made.id


async def add(stack: Stack, conversation_id: str, text: str) -> object:
    item = item_pb2.Item()
    item.message.role, item.message.content.text = "user", text
    return await stack.services.conversations.add_items(
        conversation_id,
        conversation_pb2.CreateConversationItemsRequest(items=[item]),
        tenant=DEFAULT_TENANT,
    )


async def count(stack: Stack, conversation_id: str) -> int:
    listed = await stack.services.conversations.list_items(
        conversation_id, PageRequest(), tenant=DEFAULT_TENANT
    )
    assert not isinstance(listed, Rejection)
    return len(listed.data)


async def test_a_turn_whose_conversation_another_server_changed_fails_and_keeps_nothing(
    stacks: tuple[Stack, Stack],
) -> None:
    one, other = stacks
    conversation_id = await new_conversation(one)
    peer = await one.connect("memory")
    hold = one.engine.hold("first")
    await peer.create(input="first", conversation=conversation_id)
    response_id = await one.engine.held(hold)
    assert not isinstance(await add(other, conversation_id, "from elsewhere"), Rejection)
    one.engine.release(hold)
    events = await peer.finish()
    failed = events[-1].response_failed.response
    assert failed.error.code == "conversation_locked"
    assert await one.services.store.get(response_id, tenant=DEFAULT_TENANT) is None
    assert await count(one, conversation_id) == await count(other, conversation_id) == 1
    # The next turn goes on from what is there.
    again = await peer.turn(input="first", conversation=conversation_id)
    assert again[-1].WhichOneof("event") == "response_completed"
    assert await count(other, conversation_id) == 3


async def test_a_turn_whose_conversation_another_server_deleted_completes(
    stacks: tuple[Stack, Stack],
) -> None:
    one, other = stacks
    conversation_id = await new_conversation(one)
    peer = await one.connect("memory")
    hold = one.engine.hold("first")
    await peer.create(input="first", conversation=conversation_id)
    await one.engine.held(hold)
    await other.services.conversations.delete(conversation_id, tenant=DEFAULT_TENANT)
    one.engine.release(hold)
    events = await peer.finish()
    assert events[-1].WhichOneof("event") == "response_completed"
    found = await one.services.conversations.find(conversation_id, tenant=DEFAULT_TENANT)
    assert isinstance(found, Rejection)


async def test_two_servers_that_add_at_once_lose_nothing(
    stacks: tuple[Stack, Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stacks
    conversation_id = await new_conversation(one)
    store = one.services.conversations._store
    put, added = store.put, []

    async def late(record: object) -> None:
        if not added:  # the other one comes between reading and writing
            added.append(await add(other, conversation_id, "theirs"))
        await put(record)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "put", late)
    refused = await add(one, conversation_id, "ours")
    assert isinstance(refused, Rejection)
    assert error_code(refused.reason) == "conversation_locked"
    assert await count(one, conversation_id) == 1
    assert not isinstance(await add(one, conversation_id, "ours"), Rejection)
    assert await count(other, conversation_id) == 2
