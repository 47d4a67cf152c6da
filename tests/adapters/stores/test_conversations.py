"""What every conversation store promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, select

from harness.stores import Backends, message, stored
from turnwire.v1 import item_pb2
from turnwire_server.adapters.database.tables import conversation_items, segments
from turnwire_server.ports.conversations import ConversationConflict, StoredConversation
from turnwire_server.session.conversation import EMPTY
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tokens import TokenIds


def conversation(*items: item_pb2.Item, **members: object) -> StoredConversation:
    return replace(
        StoredConversation("c1", "a", 7, {"topic": "\0 삶"}),
        items=tuple(item.SerializeToString() for item in items),
        context=EMPTY.extended(items).to_be_screened(items),
        **members,
    )


def grown(record: StoredConversation, *items: item_pb2.Item) -> StoredConversation:
    added = tuple(item.SerializeToString() for item in items)
    context = record.context.extended(items)
    return replace(record, items=record.items + added, context=context)


def names(encoded: Sequence[bytes]) -> list[str]:
    return [item_pb2.Item.FromString(item).message.id for item in encoded]


async def test_a_conversation_is_found_with_all_that_it_had(backend: Backends) -> None:
    store = (await backend.open()).conversations
    record = conversation(
        message("m1"), message("m2"), prompt=Prompt("f", TokenIds([1, 2, 2**32 - 1]), 1, (5,))
    )
    await store.put(record)
    found = await store.get("c1", tenant="a")
    assert found is not None
    assert replace(found, context=record.context) == replace(record, version=1)
    assert found.context.encoded_items() == record.context.encoded_items()
    assert found.context.unscreened == record.items
    assert await store.get("c1", tenant="b") is None
    assert await store.get("c2", tenant="a") is None
    assert await store.find_item("m1", tenant="b") is None


async def test_a_change_needs_the_newest_version(backend: Backends) -> None:
    store = (await backend.open()).conversations
    await store.put(conversation(message("m1")))
    with pytest.raises(ConversationConflict):
        await store.put(conversation(message("m9")))
    first = await store.get("c1", tenant="a")
    assert first is not None
    await store.put(grown(first, message("m2")))
    with pytest.raises(ConversationConflict):
        await store.put(grown(first, message("m3")))
    found = await store.get("c1", tenant="a")
    assert found is not None
    assert names(found.items) == ["m1", "m2"]
    assert found.version == 2
    assert await store.delete("c1", tenant="a") is True
    with pytest.raises(ConversationConflict):
        await store.put(found)
    assert await store.get("c1", tenant="a") is None
    assert await store.delete("c1", tenant="a") is False


async def test_items_are_added_and_taken_away_anywhere(backend: Backends) -> None:
    store = (await backend.open()).conversations
    await store.put(conversation(*(message(f"m{number}") for number in range(6))))
    for wanted in (
        ["m0", "m1", "m3", "m4", "m5"],
        ["m0", "m1", "m3", "m4", "m5", "m6", "m7"],
        ["m1", "m3", "m4", "m5", "m6"],
        ["m1", "m8", "m3"],
        [],
        ["m3", "m3"],
    ):
        known = await store.get("c1", tenant="a")
        assert known is not None
        await store.put(conversation(*map(message, wanted), version=known.version))
        found = await store.get("c1", tenant="a")
        assert found is not None
        assert names(found.items) == wanted
        assert names(found.context.encoded_items()) == wanted
        for number in range(9):
            item = await store.find_item(f"m{number}", tenant="a")
            assert (item == message(f"m{number}")) is (f"m{number}" in wanted)


async def test_metadata_alone_may_change(backend: Backends) -> None:
    store = (await backend.open()).conversations
    await store.put(conversation(message("m1")))
    known = await store.get("c1", tenant="a")
    assert known is not None
    await store.put(replace(known, metadata={}))
    found = await store.get("c1", tenant="a")
    assert found is not None
    assert (dict(found.metadata), names(found.items)) == ({}, ["m1"])


async def test_another_process_sees_each_change_and_cannot_overwrite_it(
    sql_backend: Backends,
) -> None:
    ours, theirs = [(await sql_backend.open_sql()).conversations for _ in range(2)]
    await ours.put(conversation(message("m1")))
    seen = await theirs.get("c1", tenant="a")
    known = await ours.get("c1", tenant="a")
    assert seen is not None and known is not None
    await theirs.put(grown(seen, message("m2")))
    with pytest.raises(ConversationConflict):
        await ours.put(grown(known, message("m3")))
    found = await ours.get("c1", tenant="a")
    assert found is not None
    assert names(found.items) == names(found.context.encoded_items()) == ["m1", "m2"]
    await ours.put(grown(found, message("m3")))
    seen = await theirs.get("c1", tenant="a")
    assert seen is not None
    assert names(seen.items) == ["m1", "m2", "m3"]
    await ours.delete("c1", tenant="a")
    assert await theirs.get("c1", tenant="a") is None


async def test_a_turn_writes_the_new_items_only(sql_backend: Backends) -> None:
    stores = await sql_backend.open_sql()
    await stores.conversations.put(conversation(*(message(f"m{n}") for n in range(200))))
    known = await stores.conversations.get("c1", tenant="a")
    assert known is not None
    written: list[object] = []

    def note(*arguments: Any) -> None:
        values = arguments[3]
        for row in values if isinstance(values, list) else [values]:
            written.extend(row.values() if isinstance(row, dict) else row)

    for engine in stores.database.sync_engines:
        event.listen(engine, "before_cursor_execute", note)
    await stores.conversations.put(grown(known, message("new")))
    binary = [bytes(value) for value in written if isinstance(value, bytes | memoryview)]
    assert any(b"of new" in value for value in binary)
    assert sum(map(len, binary)) < 1000
    async with stores.database.read() as connection:
        rows = (await connection.execute(select(conversation_items.c.position))).all()
        assert [row.position for row in rows] == list(range(201))


async def test_what_no_state_of_a_conversation_needs_is_gone(sql_backend: Backends) -> None:
    stores = await sql_backend.open_sql()
    store = stores.conversations
    await store.put(conversation(message("m1")))
    for number in range(5):
        known = await store.get("c1", tenant="a")
        assert known is not None
        await store.put(grown(known, message(f"n{number}")))
    known = await store.get("c1", tenant="a")
    assert known is not None
    await store.put(conversation(message("m1"), version=known.version))
    async with stores.database.read() as connection:
        rows = (await connection.execute(select(segments.c.parent_id))).all()
    assert [row.parent_id for row in rows] == [None]
    await store.delete("c1", tenant="a")
    async with stores.database.read() as connection:
        assert (await connection.execute(select(segments.c.id))).all() == []


async def test_a_conversation_goes_on_after_the_response_was_deleted_that_it_shares_items_with(
    sql_backend: Backends,
) -> None:
    stores = await sql_backend.open_sql()
    await stores.conversations.put(conversation(message("m1")))
    known = await stores.conversations.get("c1", tenant="a")
    assert known is not None
    turn = stored("r1", message("m2"), base=known.context)
    await stores.responses.put(turn)
    await stores.responses.delete("r1", tenant="a")
    # The response's segment, which the conversation would have continued, is gone by now.
    added = replace(known, items=known.items + turn.input_items, context=turn.conversation)
    await stores.conversations.put(added)
    fresh = (await sql_backend.open_sql()).conversations
    found = await fresh.get("c1", tenant="a")
    assert found is not None
    assert names(found.context.encoded_items()) == ["m1", "m2"]
