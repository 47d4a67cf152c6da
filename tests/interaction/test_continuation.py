"""Continuing a response: chains, forks, the connection's cache and the store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.peers import Peer, Wire
from harness.reading import arm_of, arms, calls_of, code_of, response_of, status_of, text_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import SHELL, call_output, said, script, user
from turnwire import _codec
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.conversation_pb2 import ConversationResource, CreateConversationRequest
from turnwire.v1.response_pb2 import Response
from turnwire.v1.responses_service_pb2 import CountInputTokensResult
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.store import StoredResponse
from turnwire_server.runtime.unary import UnaryApi
from turnwire_server.session.errors import Rejection

_BAD_INPUT = [{"type": "function_call_output", "call_id": "call_of_nobody", "output": "x"}]


async def _say(peer: Peer, text: str, **more: Any) -> Response:
    return response_of(await peer.turn(input=text, metadata=said(f"re: {text}"), **more))


def _ids(connect: Connect, response: Response) -> list[int]:
    return list(connect.stack.engine.request(response.id).ids)


def _grows_from(connect: Connect, child: Response, parent: Response) -> bool:
    """Whether the child's prompt begins with the parent's prompt."""
    prompt = _ids(connect, parent)
    return _ids(connect, child)[: len(prompt)] == prompt


@requirement("chain.unstored")
async def test_a_chain_without_storage_carries_its_whole_context(connect: Connect) -> None:
    peer = await connect()
    parent = await _say(peer, "one", store=False)
    for text in ("two", "three", "four"):
        child = await _say(peer, text, store=False, previous_response_id=parent.id)
        assert child.previous_response_id == parent.id
        assert _grows_from(connect, child, parent)
        assert child.usage.input_tokens > parent.usage.total_tokens
        parent = child


@requirement("chain.older")
async def test_an_older_unstored_response_of_the_lane_is_not_found(connect: Connect) -> None:
    peer = await connect()
    first = await _say(peer, "one", store=False)
    await _say(peer, "two", store=False, previous_response_id=first.id)
    (error,) = await peer.turn(input="three", previous_response_id=first.id)
    assert code_of(error) == "previous_response_not_found"


@requirement("chain.store")
async def test_a_stored_response_is_continued_on_another_connection(connect: Connect) -> None:
    first_peer, second_peer = await connect(), await connect()
    first = await _say(first_peer, "one")
    child = await _say(second_peer, "two", previous_response_id=first.id)
    assert _grows_from(connect, child, first)
    await first_peer.disconnect()
    again = await _say(second_peer, "again", previous_response_id=first.id)
    assert _grows_from(connect, again, first)


@requirement("chain.store_wires")
@pytest.mark.parametrize("other", ["memory", "grpc", "websocket", "http"])
async def test_a_stored_response_is_continued_on_another_wire(
    connect: Connect, other: Wire
) -> None:
    first = await _say(await connect(), "one")
    child = await _say(await connect(other), "two", previous_response_id=first.id)
    assert _grows_from(connect, child, first)


@requirement("chain.store_private")
async def test_an_unstored_response_is_not_found_on_another_connection(connect: Connect) -> None:
    peer, other = await connect(), await connect()
    first = await _say(peer, "one", store=False)
    (error,) = await other.turn(input="two", previous_response_id=first.id)
    assert code_of(error) == "previous_response_not_found"
    child = await _say(peer, "two", store=False, previous_response_id=first.id)
    assert _grows_from(connect, child, first)


@requirement("chain.store_context")
async def test_a_stored_child_of_an_unstored_parent_keeps_the_whole_context(
    connect: Connect,
) -> None:
    peer, other = await connect(), await connect()
    first = await _say(peer, "one", store=False)
    child = await _say(peer, "two", previous_response_id=first.id)
    grandchild = await _say(other, "three", previous_response_id=child.id)
    assert _grows_from(connect, grandchild, child)
    assert _grows_from(connect, grandchild, first)
    # Not its tokens alone: the items of the unstored parent are there too.
    reference = {"type": "item_reference", "id": first.output[0].message.id}
    events = await other.turn(input=[reference, user("four")], previous_response_id=child.id)
    assert arms(events)[-1] == "response_completed"


class _ItemsOnlyStore(MemoryResponseStore):
    """Forgets the token ids of what it keeps, as a store may."""

    async def put(self, record: StoredResponse) -> None:
        await super().put(replace(record, prompt=None))


@requirement("chain.store_rendered")
async def test_a_response_stored_without_its_tokens_is_rendered_to_the_same(
    connect: Connect,
) -> None:
    settings = MemoryStoreSettings()
    connect.parts.store = _ItemsOnlyStore(settings, wall=lambda: 0)
    peer, other = await connect(), await connect()
    create = {"tools": [SHELL], "instructions": "Be brief.", "include": ["turnwire.timing"]}
    first = response_of(await peer.turn(create, input="Run", store=False))
    (call,) = calls_of(first)
    child = response_of(
        await peer.turn(create, input=[call_output(call)], previous_response_id=first.id)
    )
    again = {**create, "input": "On", "previous_response_id": child.id, "metadata": said("x")}
    from_items = response_of(await other.turn(again))
    assert from_items.turnwire.timing.rerender_reason == "store"
    from_tokens = response_of(await peer.turn(again))
    assert from_tokens.turnwire.timing.rerender_reason == ""
    assert _ids(connect, from_items) == _ids(connect, from_tokens)


@requirement("chain.missing")
async def test_an_unknown_parent_is_refused_before_any_engine_work(connect: Connect) -> None:
    peer = await connect()
    (error,) = await peer.turn(input="Hi", previous_response_id="resp_missing")
    assert code_of(error) == "previous_response_not_found"
    assert error.error.error.param == "previous_response_id"
    assert connect.stack.engine.log == []
    # The way out that clients take: the same turn in full, on the same connection.
    assert status_of(await _say(peer, "Hi")) == "completed"


@requirement("chain.missing_evicts_nothing")
async def test_an_unknown_parent_evicts_nothing(connect: Connect) -> None:
    peer = await connect()
    first = await _say(peer, "one", store=False)
    await peer.turn(input="two", previous_response_id="resp_missing")
    assert _grows_from(
        connect, await _say(peer, "two", store=False, previous_response_id=first.id), first
    )


@requirement("evict.continuation")
@pytest.mark.parametrize(
    "failing",
    [
        pytest.param({"input": _BAD_INPUT}, id="refused"),
        pytest.param({"input": "x", "metadata": script(text="a b c", fail_after=1)}, id="failed"),
        pytest.param({"input": "x", "temperature": 9}, id="bad setting"),
    ],
)
async def test_a_failed_continuation_on_the_same_lane_evicts_its_parent(
    connect: Connect, failing: dict[str, Any]
) -> None:
    peer = await connect()
    first = await _say(peer, "one", store=False)
    events = await peer.turn({**failing, "store": False, "previous_response_id": first.id})
    assert arm_of(events[-1]) in ("error", "response_failed")
    (error,) = await peer.turn(input="two", previous_response_id=first.id)
    assert code_of(error) == "previous_response_not_found"


@requirement("evict.undecodable")
async def test_a_continuation_that_is_no_create_at_all_evicts_its_parent_too(
    connect: Connect,
) -> None:
    peer = await connect()
    first = await _say(peer, "one", store=False)
    (error,) = await peer.turn(input=7, store=False, previous_response_id=first.id)
    assert code_of(error) == "invalid_type"
    (error,) = await peer.turn(input="two", previous_response_id=first.id)
    assert code_of(error) == "previous_response_not_found"


@requirement("evict.stored")
async def test_a_stored_parent_is_found_again_after_its_eviction(connect: Connect) -> None:
    peer = await connect()
    first = await _say(peer, "one")
    (error,) = await peer.turn(input=_BAD_INPUT, previous_response_id=first.id)
    assert code_of(error) == "invalid_value"
    assert _grows_from(connect, await _say(peer, "two", previous_response_id=first.id), first)


@requirement("evict.not_without_parent")
async def test_a_failed_turn_without_a_parent_evicts_nothing(connect: Connect) -> None:
    peer = await connect()
    first = await _say(peer, "one", store=False)
    (error,) = await peer.turn(input="x", temperature=9)
    assert code_of(error) == "invalid_value"
    child = await _say(peer, "two", store=False, previous_response_id=first.id)
    assert _grows_from(connect, child, first)


@requirement("fork.other_lane")
async def test_a_fork_continues_another_lane_and_leaves_it_alone(connect: Connect) -> None:
    peer = await connect()
    root = await _say(peer, "root", store=False)
    fork = await _say(peer, "fork", store=False, previous_response_id=root.id, stream_id="side")
    child = await _say(peer, "child", store=False, previous_response_id=root.id)
    assert _grows_from(connect, fork, root)
    assert _grows_from(connect, child, root)
    assert not _grows_from(connect, child, fork)


@requirement("fork.failed")
async def test_a_failed_fork_leaves_the_parent_to_its_lane(connect: Connect) -> None:
    peer = await connect()
    root = await _say(peer, "root", store=False)
    (error,) = await peer.turn(input=_BAD_INPUT, previous_response_id=root.id, stream_id="side")
    assert code_of(error) == "invalid_value"
    assert error.stream_id == "side"
    child = await _say(peer, "child", store=False, previous_response_id=root.id)
    assert _grows_from(connect, child, root)


@requirement("fork.running")
async def test_a_fork_of_a_parent_that_still_runs_waits_for_it(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("root", after_steps=1)
    await peer.create(input="root", store=False, metadata=said("re: root"))
    parent_id = await stack.engine.held(hold)
    await peer.create(input="fork", store=False, previous_response_id=parent_id, stream_id="side")
    other = response_of(await peer.turn(input="meanwhile", stream_id="third", store=False))
    assert status_of(other) == "completed"
    assert parent_id not in [one.request_id for one in stack.engine.requests[1:]]
    stack.engine.release(hold)
    root, fork = response_of(await peer.finish()), response_of(await peer.finish("side"))
    assert root.id == parent_id
    assert _grows_from(connect, fork, root)


@requirement("fork.running")
async def test_a_fork_of_a_running_parent_that_fails_is_not_found(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("root")
    await peer.create(input="root", store=False, metadata=script(text="a b c", fail_after=0))
    parent_id = await stack.engine.held(hold)
    await peer.create(input="fork", previous_response_id=parent_id, stream_id="side")
    stack.engine.release(hold)
    assert arm_of((await peer.finish())[-1]) == "response_failed"
    (error,) = await peer.finish("side")
    assert code_of(error) == "previous_response_not_found"


@requirement("fork.pinned")
async def test_a_queued_fork_keeps_the_parent_that_was_there_when_it_was_sent(
    connect: Connect,
) -> None:
    peer = await connect()
    stack = await connect.start()
    root = await _say(peer, "root", store=False)
    hold = stack.engine.hold("busy")
    await peer.create(input="busy", stream_id="side", store=False)
    await stack.engine.held(hold)
    await peer.create(input="fork", store=False, previous_response_id=root.id, stream_id="side")
    await _say(peer, "on", store=False, previous_response_id=root.id)  # the source moves on
    stack.engine.release(hold)
    await peer.finish("side")
    assert _grows_from(connect, response_of(await peer.finish("side")), root)


@requirement("warm_up.continue")
@pytest.mark.parametrize("text", ["Now answer.", None], ids=["input", "no input"])
async def test_a_warm_up_is_continued_and_its_tokens_are_cached(
    connect: Connect, text: str | None
) -> None:
    peer = await connect()
    instructions = "You are a careful assistant. " * 8
    first = response_of(
        await peer.turn(input="Hello", generate=False, store=False, instructions=instructions)
    )
    more = {} if text is None else {"input": text}
    second = response_of(
        await peer.turn(more, previous_response_id=first.id, store=False, instructions=instructions)
    )
    assert status_of(second) == "completed"
    assert _grows_from(connect, second, first)
    assert second.usage.input_tokens_details.cached_tokens > 0
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 1


@requirement("warm_up.continue")
@pytest.mark.parametrize("said_before", [[], [{"role": "assistant", "content": "Yes."}]])
async def test_a_warm_up_leaves_the_prompt_as_if_it_had_not_been(
    connect: Connect, said_before: list[dict[str, str]]
) -> None:
    peer = await connect()
    items = [{"role": "user", "content": "Hello"}, *said_before]
    warm = response_of(await peer.turn(input=items, generate=False))
    chained = response_of(await peer.turn(input="Go on.", previous_response_id=warm.id))
    whole = response_of(await peer.turn(input=[*items, {"role": "user", "content": "Go on."}]))
    engine = connect.stack.engine
    assert list(engine.request(chained.id).ids) == list(engine.request(whole.id).ids)


@requirement("warm_up.twice")
async def test_two_warm_ups_in_a_row_and_a_later_turn_from_the_first(connect: Connect) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="one", generate=False, store=False))
    second = response_of(
        await peer.turn(input="two", generate=False, store=False, previous_response_id=first.id)
    )
    from_second = await _say(peer, "three", store=False, previous_response_id=second.id)
    assert _grows_from(connect, from_second, second)
    from_first = await _say(peer, "four", store=False, previous_response_id=first.id)
    assert _grows_from(connect, from_first, first)
    assert not _grows_from(connect, from_first, second)


@requirement("warm_up.middle")
async def test_a_warm_up_in_the_middle_of_a_chain(connect: Connect) -> None:
    peer = await connect()
    first = await _say(peer, "one", store=False)
    warm = response_of(
        await peer.turn(generate=False, store=False, previous_response_id=first.id, input="ready?")
    )
    last = await _say(peer, "go", store=False, previous_response_id=warm.id)
    assert _grows_from(connect, last, warm) and _grows_from(connect, last, first)


@requirement("chain.incomplete")
async def test_an_incomplete_response_is_continued_like_any_other(connect: Connect) -> None:
    peer = await connect()
    first = response_of(
        await peer.turn(input="talk", max_output_tokens=2, metadata=script(tokens=20))
    )
    assert status_of(first) == "incomplete"
    assert _grows_from(connect, await _say(peer, "on", previous_response_id=first.id), first)


@requirement("chain.instructions")
async def test_instructions_are_those_of_the_turn_and_not_of_its_parent(connect: Connect) -> None:
    peer = await connect()
    with_them = await _say(peer, "one", instructions="Speak like a pirate.")
    without = await _say(peer, "two", previous_response_id=with_them.id)
    plain = await _say(peer, "one")
    plain_child = await _say(peer, "two", previous_response_id=plain.id)
    assert not without.HasField("instructions")
    assert _ids(connect, without) == _ids(connect, plain_child)


@requirement("chain.tools")
async def test_tools_are_those_of_the_turn_and_not_of_its_parent(connect: Connect) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="run it", tools=[SHELL]))
    (call,) = calls_of(first)
    second = response_of(await peer.turn(input=[call_output(call)], previous_response_id=first.id))
    assert not second.tools
    assert connect.stack.engine.request(second.id).outline.tools.tools == ()


@requirement("chain.item_reference")
async def test_an_item_of_the_connection_may_be_named_instead_of_sent(connect: Connect) -> None:
    peer = await connect()
    first = await _say(peer, "one", store=False)
    reference = {"type": "item_reference", "id": first.output[0].message.id}
    named = response_of(await peer.turn(input=[reference, user("two")], store=False))
    whole = [{"role": "assistant", "content": text_of(first)}, user("two")]
    sent = response_of(await peer.turn(input=whole, store=False))
    assert _ids(connect, named) == _ids(connect, sent)


@requirement("chain.item_reference_stored")
async def test_an_item_that_is_stored_may_be_named_on_another_connection(
    connect: Connect,
) -> None:
    first = await _say(await connect(), "one")
    made = await connect.stack.services.conversations.create(
        _codec.parse(CreateConversationRequest, {"items": [{**user("Plum."), "id": "msg_plum"}]}),
        tenant="default",
    )
    assert isinstance(made, ConversationResource)
    other = await connect()
    reference = {"type": "item_reference", "id": first.output[0].message.id}
    of_conversation = {"type": "item_reference", "id": "msg_plum"}
    named = response_of(await other.turn(input=[reference, of_conversation], store=False))
    whole = [{"role": "assistant", "content": text_of(first)}, user("Plum.")]
    sent = response_of(await other.turn(input=whole, store=False))
    assert _ids(connect, named) == _ids(connect, sent)
    unary = UnaryApi(connect.stack.services)
    create = _codec.parse(ResponseCreate, {"model": "sim", "input": [reference, of_conversation]})
    count = await unary.count_input_tokens(create, tenant="default")
    assert isinstance(count, CountInputTokensResult)
    assert count.input_tokens == len(_ids(connect, sent))
    for item in (reference, of_conversation):
        create = _codec.parse(ResponseCreate, {"model": "sim", "input": [item, user("two")]})
        refused = await unary.count_input_tokens(create, tenant="another")
        assert isinstance(refused, Rejection) and refused.code == "item_not_found"


@requirement("chain.item_reference_parent")
async def test_an_item_of_the_parent_may_be_named(connect: Connect) -> None:
    peer = await connect()
    first = await _say(peer, "one")
    reference = {"type": "item_reference", "id": first.output[0].message.id}
    events = await peer.turn(input=[reference, user("two")], previous_response_id=first.id)
    assert arms(events)[-1] == "response_completed"
    missing = {"type": "item_reference", "id": "msg_missing"}
    (error,) = await peer.turn(input=[missing], previous_response_id=first.id)
    assert code_of(error) == "item_not_found"
    assert error.error.status == 404
    assert error.error.error.param == "input[0].id"
