"""Conversations of any shape come back as they were, however they were cut into segments."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.stores import Backends, message, sqlite_url, stored
from turnwire.v1 import item_pb2, tool_pb2
from turnwire_server.adapters.stores.packing import ids_of, pack, packed_ids, unpack
from turnwire_server.adapters.stores.segments import SegmentBook, SegmentRow, load
from turnwire_server.session.conversation import EMPTY, Conversation
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tokens import TokenIds

_texts = st.text(max_size=6)
_calls = st.sampled_from(["c1", "c2", "c3"])


@st.composite
def _items(draw: st.DrawFn) -> item_pb2.Item:
    item = item_pb2.Item()
    match draw(st.integers(0, 6)):
        case 0:
            item.message.id, item.message.role = (
                draw(_texts),
                draw(st.sampled_from(["user", "assistant"])),
            )
            item.message.content.text = draw(st.text(max_size=20) | st.just("long " * 2000))
        case 1:
            item.function_call.call_id = draw(_calls)
            if draw(st.booleans()):
                item.function_call.status = item_pb2.ITEM_STATUS_INCOMPLETE
        case 2:
            item.function_call_output.call_id = draw(_calls)
        case 3:
            item.mcp_approval_request.id = draw(_calls)
        case 4:
            for _ in range(draw(st.integers(0, 2))):
                tool = tool_pb2.Tool()
                tool.function.name = draw(_texts)
                item.additional_tools.tools.append(tool)
            item.additional_tools.role = "developer"
        case 5:
            item.configuration_update.reasoning = '{"effort": "low"}'
        case 6:
            item.custom_tool_call.call_id = draw(_calls)
    return item


@dataclass(frozen=True)
class Step:
    """What one response does to one that came before it."""

    parent: int
    given: list[item_pb2.Item]
    output: list[item_pb2.Item]
    screened: Literal["no", "cleared", "unseen"]
    is_summary: bool
    is_stored: bool
    prompt: Literal["none", "grown", "shorter", "other"]
    ids: list[int] = field(default_factory=list)
    is_reopened: bool = False


_steps = st.lists(
    st.builds(
        Step,
        parent=st.integers(0, 100),
        given=st.lists(_items(), max_size=3),
        output=st.lists(_items(), max_size=2),
        screened=st.sampled_from(["no", "cleared", "unseen"]),
        is_summary=st.sampled_from([False, False, False, True]),
        is_stored=st.sampled_from([True, True, True, False]),
        prompt=st.sampled_from(["grown", "grown", "grown", "none", "shorter", "other"]),
        ids=st.lists(st.integers(0, 2**32 - 1), max_size=4),
        is_reopened=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def taken(
    step: Step, conversation: Conversation, prompt: Prompt | None
) -> tuple[Conversation, Prompt | None]:
    """Return a conversation and its prompt after a step, as a turn makes them."""
    following = conversation.extended(step.given)
    if step.is_summary:
        following = following.replaced_by([message("summary"), *step.given[-1:]])
    match step.screened:
        case "cleared":
            state = f"state of {following.item_count}".encode()
            following = replace(following, screen_state=state, unscreened=())
        case "unseen":
            following = following.to_be_screened(step.given)
    following = following.extended(step.output)
    ids = TokenIds() if prompt is None else prompt.ids
    match step.prompt:
        case "none":
            return following, None
        case "grown":
            ids = ids.extended(step.ids)
        case "shorter":
            ids = TokenIds([*ids.as_array(0, len(ids) // 2), *step.ids])
        case "other":
            ids = TokenIds(step.ids)
    return following, Prompt("fingerprint", ids, len(ids) // 2, tuple(step.ids[:2]))


def nodes(conversation: Conversation) -> list[tuple[bytes, ...]]:
    """Return the items of each node that has any, the newest first."""
    found: list[tuple[bytes, ...]] = []
    node: Conversation | None = conversation
    while node is not None:
        found += [node.own_items] if node.own_items else []
        node = node.parent
    return found


def assert_same(one: Conversation, other: Conversation) -> None:
    for member in fields(Conversation):
        if member.name != "parent":
            assert getattr(one, member.name) == getattr(other, member.name), member.name
    assert nodes(one) == nodes(other)


@settings(max_examples=100, deadline=None)
@given(_steps)
def test_every_conversation_comes_back_as_it_was(steps: list[Step]) -> None:
    book, rows = SegmentBook(), dict[str, SegmentRow]()
    made: list[tuple[Conversation, Prompt | None]] = [(EMPTY, None)]
    for step in steps:
        conversation, prompt = taken(step, *made[step.parent % len(made)])
        if not step.is_stored:
            made.append((conversation, prompt))
            continue
        draft = book.draft(conversation, prompt, "a")
        rows[draft.row.id] = draft.row
        book.keep(draft)
        line = [draft.row]
        while line[0].parent_id is not None:
            line.insert(0, rows[line[0].parent_id])
        loaded = load(line)
        assert_same(loaded.conversation, conversation)
        assert loaded.prompt == prompt
        if step.is_reopened:  # as by another process, or after a restart
            book.adopt(loaded)
            conversation, prompt = loaded.conversation, loaded.prompt
        made.append((conversation, prompt))


@settings(max_examples=6, deadline=None)
@given(_steps)
def test_a_database_gives_back_what_it_was_given(steps: list[Step]) -> None:
    async def run(folder: Path) -> None:
        async with AsyncExitStack() as exits, asyncio.timeout(60):
            backend = Backends("sqlite", sqlite_url(folder), exits)
            stores = await backend.open_sql()
            made: list[tuple[Conversation, Prompt | None]] = [(EMPTY, None)]
            kept = {}
            for number, step in enumerate(steps):
                conversation, prompt = taken(step, *made[step.parent % len(made)])
                made.append((conversation, prompt))
                if step.is_stored:
                    record = replace(stored(f"r{number}"), conversation=conversation, prompt=prompt)
                    kept[record.response_id] = record
                    await stores.responses.put(record)
            later = await backend.open_sql()
            for record in kept.values():
                found = await later.responses.get(record.response_id, tenant="a")
                assert found is not None
                assert_same(found.conversation, record.conversation)
                assert replace(found, conversation=record.conversation) == record

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


def test_nothing_is_known_of_conversations_that_are_gone() -> None:
    book = SegmentBook()
    conversation = EMPTY.extended([message("m")])
    book.keep(book.draft(conversation, None, "a"))
    assert book.find(conversation) is not None
    del conversation
    gc.collect()
    assert len(book._segments) == 0


def test_another_tenant_continues_nothing_of_ours() -> None:
    book = SegmentBook()
    conversation = EMPTY.extended([message("m")])
    book.keep(book.draft(conversation, None, "a"))
    following = conversation.extended([message("n")])
    assert book.draft(following, None, "a").row.parent_id is not None
    assert book.draft(following, None, "b").row.parent_id is None


def test_ids_stand_in_the_order_of_time() -> None:
    book = SegmentBook()
    ids = [book.draft(EMPTY, None, "a").row.id for _ in range(50)]
    assert len(set(ids)) == 50 and all(len(each) == 32 for each in ids)
    assert ids == sorted(ids)


@given(st.lists(st.binary(max_size=9)))
def test_what_was_packed_is_unpacked(parts: list[bytes]) -> None:
    assert unpack(pack(parts)) == tuple(parts)


@pytest.mark.parametrize("broken", [b"\1", b"\2\0\0\0a", pack([b"abc"])[:-1]])
def test_what_is_cut_off_is_an_error(broken: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(broken)


def test_token_ids_are_four_bytes_with_the_lowest_first() -> None:
    ids = TokenIds([1, 2**32 - 2]).as_array()
    assert packed_ids(ids) == b"\1\0\0\0\xfe\xff\xff\xff"
    assert ids_of(packed_ids(ids)) == ids
