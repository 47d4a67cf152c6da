"""Items in the stores in memory, found by their ids."""

from __future__ import annotations

from dataclasses import replace

from turnwire.v1 import item_pb2, response_pb2
from turnwire_server.adapters.stores.conversations import MemoryConversationStore
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.conversations import StoredConversation
from turnwire_server.ports.store import StoredResponse
from turnwire_server.session.conversation import EMPTY


def item(item_id: str, text: str = "") -> item_pb2.Item:
    found = item_pb2.Item()
    found.message.id, found.message.content.text = item_id, text or f"of {item_id}"
    return found


def stored(
    response_id: str,
    given: item_pb2.Item,
    output: item_pb2.Item,
    *,
    tenant: str = "a",
    expires_at: int = 100,
) -> StoredResponse:
    return StoredResponse(
        response_id=response_id,
        tenant=tenant,
        response=response_pb2.Response(id=response_id, output=[output]).SerializeToString(),
        input_items=(given.SerializeToString(),),
        conversation=EMPTY,
        prompt=None,
        created_at=0,
        expires_at=expires_at,
        item_ids=(given.message.id, output.message.id),
    )


def response_store(max_bytes: int = 1 << 20) -> MemoryResponseStore:
    return MemoryResponseStore(MemoryStoreSettings(max_bytes), wall=lambda: 50)


async def test_input_and_output_of_a_stored_response_are_found_by_their_tenant_alone() -> None:
    store = response_store()
    await store.put(stored("r1", item("m1"), item("m2")))
    for wanted in ("m1", "m2"):
        assert await store.find_item(wanted, tenant="a") == item(wanted)
        assert await store.find_item(wanted, tenant="b") is None
    assert await store.find_item("m3", tenant="a") is None
    assert await store.find_item("", tenant="a") is None


async def test_an_item_that_several_responses_have_is_the_newest_one_that_is_left() -> None:
    store = response_store()
    await store.put(stored("r1", item("m1", "old"), item("m2")))
    await store.put(stored("r2", item("m1", "new"), item("m3")))
    assert await store.find_item("m1", tenant="a") == item("m1", "new")
    await store.delete("r2", tenant="a")
    assert await store.find_item("m1", tenant="a") == item("m1", "old")
    assert await store.find_item("m3", tenant="a") is None


async def test_an_item_of_a_response_that_expired_is_not_found() -> None:
    store = response_store()
    await store.put(stored("r1", item("m1"), item("m2"), expires_at=50))
    assert await store.find_item("m1", tenant="a") is None


async def test_the_ids_of_items_count_and_go_with_their_records() -> None:
    store = response_store(max_bytes=10_000)
    for number in range(100):
        await store.put(stored(f"r{number}", item(f"i{number}"), item(f"o{number}")))
    assert await store.find_item("i0", tenant="a") is None
    assert await store.find_item("i99", tenant="a") == item("i99")
    kept = 100 - store.dropped["evicted"]
    assert 0 < kept < 12
    assert len(store._items._owners) == 2 * kept
    await store.close()
    assert not store._items._owners


async def test_items_of_a_conversation_are_found_while_it_has_them() -> None:
    store = MemoryConversationStore()
    first, second, third = (item(name).SerializeToString() for name in ("m1", "m2", "m3"))
    record = StoredConversation("c1", "a", 0, items=(first, second))
    await store.put(record)
    longer = replace(record, items=(first, second, third), version=1)
    await store.put(longer)
    for wanted in ("m1", "m2", "m3"):
        assert await store.find_item(wanted, tenant="a") == item(wanted)
        assert await store.find_item(wanted, tenant="b") is None
    await store.put(replace(record, items=(first, third), version=2))
    assert await store.find_item("m2", tenant="a") is None
    assert await store.find_item("m3", tenant="a") == item("m3")
    await store.delete("c1", tenant="a")
    assert not store._items._owners and not store._item_ids
