"""What every response store promises."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from harness.stores import Backends, message, stored
from turnwire.v1 import response_pb2
from turnwire_server.ports.store import IdempotencyKeyTaken


async def test_what_was_put_is_found_with_all_that_it_had(backend: Backends) -> None:
    store = (await backend.open()).responses
    record = stored(
        "r1",
        message("m1"),
        output=(message("m2", role="assistant"),),
        status="incomplete",
        background=True,
        idempotency_key="key",
        request_digest=b"\0digest",
    )
    await store.put(record)
    found = await store.get("r1", tenant="a")
    assert found is not None
    assert replace(found, conversation=record.conversation) == record
    assert found.conversation.encoded_items() == record.conversation.encoded_items()
    assert await store.get("r2", tenant="a") is None


async def test_a_response_is_found_by_its_tenant_alone(backend: Backends) -> None:
    store = (await backend.open()).responses
    await store.put(stored("r1", message("m1"), idempotency_key="key"))
    assert await store.get("r1", tenant="b") is None
    assert await store.find_item("m1", tenant="b") is None
    assert await store.find_by_key("b", "key") is None
    assert await store.delete("r1", tenant="b") is False
    assert await store.get("r1", tenant="a") is not None


async def test_a_response_is_found_until_it_expires(backend: Backends) -> None:
    store = (await backend.open()).responses
    await store.put(stored("r1", message("m1"), idempotency_key="key"))
    backend.clock.advance(99)
    assert await store.get("r1", tenant="a") is not None
    backend.clock.advance(1)
    assert await store.get("r1", tenant="a") is None
    assert await store.find_item("m1", tenant="a") is None
    assert await store.find_by_key("a", "key") is None
    assert await store.delete("r1", tenant="a") is False


async def test_a_deleted_response_is_gone_and_its_child_goes_on(backend: Backends) -> None:
    store = (await backend.open()).responses
    first = stored("r1", message("m1"), output=(message("m2"),))
    await store.put(first)
    second = stored("r2", message("m3"), parent=first)
    await store.put(second)
    assert await store.delete("r1", tenant="a") is True
    assert await store.delete("r1", tenant="a") is False
    assert await store.get("r1", tenant="a") is None
    assert await store.find_item("m1", tenant="a") is None
    found = await store.get("r2", tenant="a")
    assert found is not None
    assert [item.message.id for item in found.conversation.items()] == ["m1", "m2", "m3"]


async def test_a_put_with_the_same_id_takes_the_place_of_the_first(backend: Backends) -> None:
    store = (await backend.open()).responses
    running = stored("r1", message("m1"), status="in_progress", owner="i1", idempotency_key="key")
    await store.put(running)
    found = await store.get("r1", tenant="a")
    assert found is not None
    assert (found.status, found.owner, found.is_over) == ("in_progress", "i1", False)
    done = stored("r1", message("m1"), output=(message("m2"),), idempotency_key="key")
    await store.put(done)
    found = await store.find_by_key("a", "key")
    assert found is not None
    assert (found.status, found.owner, found.is_over) == ("completed", "", True)
    assert found.response == done.response
    assert await store.find_item("m2", tenant="a") == message("m2")
    plain = stored("r1", message("m9"))
    await store.put(plain)
    assert await store.find_item("m2", tenant="a") is None
    assert await store.find_by_key("a", "key") is None
    found = await store.get("r1", tenant="a")
    assert found is not None
    assert found.input_items == plain.input_items


async def test_an_idempotency_key_is_one_responses_of_a_tenant_until_it_expires(
    backend: Backends,
) -> None:
    store = (await backend.open()).responses
    await store.put(stored("r1", message("m1"), idempotency_key="key", request_digest=b"d"))
    with pytest.raises(IdempotencyKeyTaken):
        await store.put(stored("r2", message("m2"), idempotency_key="key"))
    assert await store.get("r2", tenant="a") is None
    await store.put(stored("r3", message("m3"), idempotency_key="key", tenant="b"))
    holders = [await store.find_by_key(tenant, "key") for tenant in "ab"]
    assert [holder and holder.response_id for holder in holders] == ["r1", "r3"]
    backend.clock.advance(200)
    expires_at = backend.clock.wall() + 100
    await store.put(stored("r4", message("m4"), idempotency_key="key", expires_at=expires_at))
    holder = await store.find_by_key("a", "key")
    assert holder is not None
    assert holder.response_id == "r4"


async def test_what_a_dead_instance_ran_is_marked_failed(backend: Backends) -> None:
    store = (await backend.open()).responses
    for number, (status, owner) in enumerate(
        [("in_progress", "dead"), ("queued", "dead"), ("in_progress", "alive"), ("completed", "")]
    ):
        await store.put(stored(f"r{number}", message(f"m{number}"), status=status, owner=owner))
    assert await store.fail_orphans(["dead", "unknown", ""]) == 2
    found = [await store.get(f"r{number}", tenant="a") for number in range(4)]
    statuses = [record and (record.status, record.owner) for record in found]
    assert statuses == [("failed", ""), ("failed", ""), ("in_progress", "alive"), ("completed", "")]
    assert found[0] is not None
    response = response_pb2.Response.FromString(found[0].response)
    assert response.status == response_pb2.RESPONSE_STATUS_FAILED
    assert response.error.code == "server_error"
    assert await store.fail_orphans(["dead"]) == 0


async def test_items_are_found_by_their_ids_newest_first(backend: Backends) -> None:
    store = (await backend.open()).responses
    await store.put(stored("r1", message("m1", "old"), output=(message("m2"),)))
    await store.put(stored("r2", message("m1", "new"), output=(message("m3"),)))
    assert await store.find_item("m1", tenant="a") == message("m1", "new")
    assert await store.find_item("m2", tenant="a") == message("m2")
    assert await store.find_item("m4", tenant="a") is None
    assert await store.find_item("", tenant="a") is None
    await store.delete("r2", tenant="a")
    assert await store.find_item("m1", tenant="a") == message("m1", "old")
    assert await store.find_item("m3", tenant="a") is None


@pytest.mark.parametrize("wanted", ["", "a\0b", "é", "x" * 10_000, "' OR 1=1 --", "\ud800"])
async def test_ids_that_no_response_can_have_are_unknown(backend: Backends, wanted: str) -> None:
    store = (await backend.open()).responses
    await store.put(stored("r1", message("m1")))
    assert await store.get(wanted, tenant="a") is None
    assert await store.delete(wanted, tenant="a") is False
    assert await store.find_by_key("a", wanted) is None


@pytest.mark.parametrize("item_id", ["é삶😀", "x" * 10_000, "\0", "' --"])
async def test_items_may_have_any_id(backend: Backends, item_id: str) -> None:
    store = (await backend.open()).responses
    await store.put(stored("r1", message(item_id, "\0 and 😀")))
    assert await store.find_item(item_id, tenant="a") == message(item_id, "\0 and 😀")


async def test_many_puts_at_once_are_all_kept(backend: Backends) -> None:
    store = (await backend.open()).responses
    first = stored("r", message("m"))
    await store.put(first)
    children = [stored(f"r{number}", message(f"m{number}"), parent=first) for number in range(300)]
    async with asyncio.timeout(20):
        await asyncio.gather(*map(store.put, children))
        for child in children:
            found = await store.get(child.response_id, tenant="a")
            assert found is not None
            assert found.conversation.item_count == 2
