"""Compaction, all three ways, and the conversation that goes on from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.peers import Peer
from harness.reading import (
    arm_of,
    arms,
    failure_of,
    items_json,
    public,
    response_of,
    status_of,
    text_of,
)
from harness.stack import Parts, running_stack
from harness.waiting import until
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import CUSTOM, SHELL, call_output, said, user
from turnwire.v1.client_event_pb2 import Input
from turnwire.v1.item_pb2 import Item, ItemList
from turnwire.v1.response_pb2 import Response
from turnwire.v1.responses_service_pb2 import CompactRequest, CompactResult
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.renderers.sim_tokens import sim_tokens
from turnwire_server.adapters.sealing import RingSealer
from turnwire_server.ports.engine import EngineRequest
from turnwire_server.ports.screen import Verdict
from turnwire_server.runtime.compaction import INSTRUCTION
from turnwire_server.runtime.unary import UnaryApi
from turnwire_server.session.errors import Rejection

LONG = "A long story, told in many words. " * 200
"""About 1,600 tokens."""
OVER_1000 = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
TRIGGER = {"type": "compaction_trigger"}
TIMING = {"include": ["turnwire.timing"]}
COMPACTED = [
    "response_created",
    "response_in_progress",
    "response_output_item_added",
    "response_compaction_compacting",
    "response_output_item_done",
]


def prompt_text(request: EngineRequest) -> str:
    return b"".join(map(sim_tokens().token_bytes, request.ids)).decode()


def prompt_of(connect: Connect, response: Response) -> str:
    return prompt_text(connect.stack.engine.request(response.id))


def kinds(response: Response) -> list[str]:
    return [item.WhichOneof("item") or "" for item in response.output]


async def compact(connect: Connect, **members: Any) -> CompactResult | Rejection:
    """Call `compact` as the wires do."""
    from turnwire import _codec

    request = _codec.parse(CompactRequest, {"model": "sim", **members})
    unary = UnaryApi((await connect.start()).services)
    return await unary.compact(request, tenant="default")


async def compacted(connect: Connect, **members: Any) -> CompactResult:
    result = await compact(connect, **members)
    assert isinstance(result, CompactResult), result
    return result


async def chain(peer: Peer, turns: int, **more: Any) -> Response:
    """Return the last response of a chain of turns, each with a call and its output."""
    response = response_of(await peer.turn(more, input=user_list("Begin."), tools=[SHELL]))
    for number in range(1, turns):
        call = response.output[-1].function_call
        new = [call_output(call, f"output {number}"), user(f"Step {number}.")]
        response = response_of(
            await peer.turn(more, input=new, tools=[SHELL], previous_response_id=response.id)
        )
    return response


def user_list(text: str) -> list[dict[str, Any]]:
    return [user(text)]


# In a create.


@requirement("compaction.threshold")
async def test_beyond_its_threshold_a_context_is_compacted_and_the_answer_follows(
    connect: Connect,
) -> None:
    peer = await connect()
    events = await peer.turn({**OVER_1000, **TIMING}, input=LONG)
    response = response_of(events)
    assert arms(events)[:5] == COMPACTED
    assert arms(events)[5:] == [
        "response_output_item_added",
        "response_content_part_added",
        "response_output_text_delta",
        "response_output_text_done",
        "response_content_part_done",
        "response_output_item_done",
        "response_completed",
    ]
    assert kinds(response) == ["compaction", "message"]
    assert response.turnwire.timing.rerender_reason == "compaction"
    prompt = prompt_of(connect, response)
    assert "<summary>\nSimulated summary of a conversation of 1" in prompt
    # The latest request is kept word for word, up to half of the threshold.
    assert f"<request>\n{LONG[:500]}" in prompt
    assert len(prompt) < 4000


@requirement("compaction.threshold")
async def test_below_its_threshold_a_context_stays_as_it_is(connect: Connect) -> None:
    peer = await connect()
    response = response_of(await peer.turn(OVER_1000, input="Short."))
    assert kinds(response) == ["message"]
    default = {"context_management": [{"type": "compaction"}]}
    assert kinds(response_of(await peer.turn(default, input=LONG))) == ["message"]


@requirement("compaction.head")
async def test_instructions_above_the_threshold_do_not_compact_every_turn(
    connect: Connect,
) -> None:
    connect.parts.script = lambda one: "plum " * 900 if one.outline.task == "summary" else None
    peer = await connect()
    more = {**OVER_1000, "instructions": LONG}
    response = response_of(await peer.turn(more, input="Hi.", metadata=said("Yes.")))
    assert kinds(response) == ["message"]
    response = response_of(
        await peer.turn(more, input="\u6885" * 600, previous_response_id=response.id)
    )
    assert kinds(response) == ["compaction", "message"]
    # Of the 500 tokens that may follow these instructions: a half and a quarter.
    prompt = prompt_of(connect, response)
    assert 240 <= prompt.count("plum") <= 250
    assert 30 <= prompt.count("\u6885") <= 125
    response = response_of(await peer.turn(more, input="Go on.", previous_response_id=response.id))
    assert kinds(response) == ["message"]


@requirement("compaction.threshold")
async def test_without_a_threshold_four_fifths_of_the_context_are_one(connect: Connect) -> None:
    connect.parts.sim = SimSettings(context_length=2000)
    peer = await connect()
    default = {"context_management": [{"type": "compaction"}]}
    response = response_of(await peer.turn(default, input="word " * 1700))
    assert kinds(response) == ["compaction", "message"]


@requirement("compaction.trigger")
async def test_a_trigger_gives_one_compaction_item_and_no_answer(connect: Connect) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="Remember the word plum.", metadata=said("Yes.")))
    events = await peer.turn(input=[TRIGGER], previous_response_id=first.id)
    assert arms(events) == [*COMPACTED, "response_completed"]
    response = response_of(events)
    assert kinds(response) == ["compaction"]
    assert status_of(response) == "completed"
    whole = [user("Remember the word plum."), *items_json(first.output), TRIGGER]
    replayed = response_of(await peer.turn(input=whole, tools=[SHELL]))
    assert kinds(replayed) == ["compaction"]
    summaries = [
        one for one in connect.stack.engine.requests if one.request_id.endswith("-summary")
    ]
    assert len(summaries) == 2
    for request in summaries:
        text = prompt_text(request)
        assert "Remember the word plum." in text
        assert text.endswith(f"{INSTRUCTION}\nassistant\n")  # markers have no text


@requirement("compaction.goes_on")
async def test_a_chain_goes_on_from_its_compaction_and_renders_what_is_new(
    connect: Connect,
) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input=LONG, metadata=said("Yes.")))
    second = response_of(await peer.turn(input=[TRIGGER], previous_response_id=first.id))
    third = response_of(await peer.turn(TIMING, input="Go on.", previous_response_id=second.id))
    prompt = prompt_of(connect, third)
    alone = [*items_json(second.output), user("Go on.")]
    replayed = response_of(await peer.turn(input=alone))
    ids = connect.stack.engine.request
    assert list(ids(replayed.id).ids) == list(ids(third.id).ids)
    assert prompt.count("<summary>") == 1
    assert prompt.count("A long story") <= len(LONG) / 33 + 30  # the latest request alone
    assert "Yes." not in prompt
    assert third.turnwire.timing.rerender_reason == ""
    assert third.turnwire.timing.tokens.rendered < 20
    fourth = response_of(await peer.turn(TIMING, input="More.", previous_response_id=third.id))
    assert fourth.turnwire.timing.tokens.rendered < 20
    assert fourth.usage.input_tokens_details.cached_tokens > 0


@requirement("compaction.goes_on")
async def test_a_client_may_drop_or_keep_what_stands_before_the_compaction(
    connect: Connect,
) -> None:
    peer = await connect()
    first = response_of(await peer.turn(OVER_1000, input=LONG, metadata=said("Yes.")))
    output = items_json(first.output)
    chained = response_of(await peer.turn(input="Go on.", previous_response_id=first.id))
    kept = [user(LONG), *output, user("Go on.")]
    dropped = [*output, user("Go on.")]
    ids = connect.stack.engine.request
    for items in (kept, dropped):
        replayed = response_of(await peer.turn(input=items))
        assert list(ids(replayed.id).ids) == list(ids(chained.id).ids)


@requirement("compaction.goes_on")
async def test_a_compaction_can_be_compacted_again(connect: Connect) -> None:
    peer = await connect()
    response = response_of(await peer.turn(OVER_1000, input=LONG))
    for _ in range(3):
        response = response_of(
            await peer.turn(OVER_1000, input=LONG, previous_response_id=response.id)
        )
        assert kinds(response) == ["compaction", "message"]
        assert response.usage.input_tokens < 5000


@requirement("compaction.goes_on")
async def test_after_fifty_turns_the_answer_to_a_call_is_still_expected(
    connect: Connect,
) -> None:
    peer = await connect()
    last = await chain(peer, 50, store=False) if connect.wire != "http" else await chain(peer, 8)
    call = last.output[-1].function_call
    (error,) = await peer.turn(input=[TRIGGER], previous_response_id=last.id)
    assert failure_of(error) == ("invalid_value", 400, "input")
    last = await chain(peer, 3)
    call = last.output[-1].function_call
    trigger = [call_output(call, "the last output"), TRIGGER]
    small = response_of(await peer.turn(input=trigger, previous_response_id=last.id))
    assert kinds(small) == ["compaction"]
    next_turn = await peer.turn(input="Go on.", tools=[SHELL], previous_response_id=small.id)
    assert response_of(next_turn).output[-1].function_call.name == "exec_command"


@requirement("compaction.pairs")
@pytest.mark.parametrize("tool", [SHELL, CUSTOM], ids=["function", "custom"])
async def test_a_call_behind_a_compaction_is_answered_as_ever(
    connect: Connect, tool: dict[str, Any]
) -> None:
    peer = await connect()
    first = response_of(await peer.turn(OVER_1000, input=LONG, tools=[tool]))
    assert kinds(first)[0] == "compaction"
    call = getattr(first.output[1], kinds(first)[1])
    second = response_of(
        await peer.turn(input=[call_output(call)], tools=[tool], previous_response_id=first.id)
    )
    assert status_of(second) == "completed"
    assert "<tool_response>\nhello\n</tool_response>" in prompt_of(connect, second)
    replay = [*items_json(first.output), call_output(call)]
    replayed = response_of(await peer.turn(input=replay, tools=[tool]))
    ids = connect.stack.engine.request
    assert list(ids(replayed.id).ids) == list(ids(second.id).ids)
    orphan = {**call_output(call), "call_id": "call_of_before"}
    (error,) = await peer.turn(input=[orphan], tools=[tool], previous_response_id=second.id)
    assert failure_of(error) == ("invalid_value", 400, "input")


@requirement("compaction.configuration")
async def test_a_configuration_in_effect_follows_the_compaction(connect: Connect) -> None:
    peer = await connect()
    update = {"type": "configuration_update", "reasoning": {"effort": "high"}}
    response = response_of(await peer.turn(OVER_1000, input=[user(LONG), update]))
    assert kinds(response) == ["compaction", "configuration_update", "message"]
    assert public(response.output[1])["reasoning"] == {"effort": "high"}
    alone = response_of(await peer.turn(input=[*items_json(response.output), user("Go on.")]))
    assert alone.reasoning.effort == "high"
    chained = response_of(await peer.turn(input="Go on.", previous_response_id=response.id))
    assert chained.reasoning.effort == "high"


@requirement("compaction.usage")
async def test_usage_counts_the_summary_and_the_answer(connect: Connect) -> None:
    peer = await connect()
    response = response_of(await peer.turn(OVER_1000, input=LONG, metadata=said("Yes.")))
    engine = connect.stack.engine
    summary = engine.request(f"{response.id}-summary")
    answer = engine.request(response.id)
    usage = response.usage
    assert usage.input_tokens == len(summary.ids) + len(answer.ids)
    opened = prompt_of(connect, response)
    text = opened.partition("<summary>\n")[2].partition("\n</summary>")[0]
    tokens = sim_tokens()
    assert usage.output_tokens == len(tokens.encode(text)) + 1 + len(tokens.encode("Yes.")) + 1
    trigger = response_of(await peer.turn(input=[TRIGGER], previous_response_id=response.id))
    summary = engine.request(f"{trigger.id}-summary")
    assert trigger.usage.input_tokens == len(summary.ids)
    # The conversation itself was in the engine's cache, which holds blocks of 64 tokens.
    assert trigger.usage.input_tokens_details.cached_tokens > len(answer.ids) - 64
    await connect.stack.services.afterwork.finish(5)
    records = connect.stack.ledger.closed
    assert records[response.id].output_tokens == usage.output_tokens


# The call.


@requirement("compaction.standalone")
async def test_compact_gives_the_user_s_messages_and_one_item_for_a_new_chain(
    connect: Connect,
) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="Remember the word plum.", metadata=said("Yes.")))
    result = await compacted(connect, previous_response_id=first.id, input=[user("And pear.")])
    shown = public(result)
    assert shown["object"] == "response.compaction"
    assert [item["type"] for item in shown["output"]] == ["message", "message", "compaction"]
    assert [item["role"] for item in shown["output"][:2]] == ["user", "user"]
    assert shown["usage"]["input_tokens"] > 0 and shown["usage"]["output_tokens"] > 0
    response = response_of(await peer.turn(input=[*shown["output"], user("Which words?")]))
    prompt = prompt_of(connect, response)
    for text in ("Remember the word plum.", "And pear.", "<summary>", "Which words?"):
        assert text in prompt
    assert "Yes." not in prompt
    (error,) = await peer.turn(input="x", previous_response_id=shown["id"])
    assert failure_of(error)[0] == "previous_response_not_found"
    await connect.stack.services.afterwork.finish(5)
    records = connect.stack.ledger.closed
    assert records[result.id].input_tokens == result.usage.input_tokens


@requirement("compaction.standalone")
async def test_the_wires_have_the_call(connect: Connect) -> None:
    if connect.wire == "grpc":
        import grpc

        from harness.peers import GrpcPeer
        from turnwire.v1.responses_service_pb2_grpc import ResponsesServiceStub

        peer = await connect()
        assert isinstance(peer, GrpcPeer)
        stub = ResponsesServiceStub(peer._channel)
        item = Item()
        item.message.role, item.message.content.text = "user", "hello"
        given = Input(items=ItemList(items=[item]))
        result = await stub.Compact(CompactRequest(model="sim", input=given), timeout=20)
        assert result.output[-1].compaction.encrypted_content
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await stub.Compact(CompactRequest(input=given), timeout=20)
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        return
    from openai import AsyncOpenAI, BadRequestError

    peer = await connect("http")
    async with AsyncOpenAI(
        base_url=str(peer._url).removesuffix("/responses"),  # type: ignore[attr-defined]
        api_key="x",
        max_retries=0,
    ) as client:
        shown = await client.responses.compact(model="sim", input="hello")
        assert [item.type for item in shown.output] == ["message", "compaction"]
        assert shown.usage.output_tokens > 0
        with pytest.raises(BadRequestError) as refused:
            await client.responses.compact(model="sim", input=[])
        assert refused.value.code == "missing_required_parameter"


@requirement("compaction.errors")
async def test_what_cannot_be_compacted_is_one_error(connect: Connect) -> None:
    connect.parts.sim = SimSettings(context_length=400)
    peer = await connect()
    (error,) = await peer.turn(input=[TRIGGER])
    assert failure_of(error) == ("missing_required_parameter", 400, "input")
    (error,) = await peer.turn(input=[TRIGGER, user("x")])
    assert failure_of(error) == ("invalid_value", 400, "input[0].type")
    (error,) = await peer.turn(input=[user("word " * 380), TRIGGER])
    assert failure_of(error) == ("context_length_exceeded", 400, "input")
    if connect.wire != "http":
        (error,) = await peer.turn(input=[user("x"), TRIGGER], generate=False)
        assert failure_of(error) == ("invalid_value", 400, "generate")
    for members, code in (
        ({"input": "x", "model": None}, "missing_required_parameter"),
        ({"input": "x", "model": "nope"}, "model_not_found"),
        ({"input": []}, "missing_required_parameter"),
        ({"input": "x", "previous_response_id": "resp_x"}, "previous_response_not_found"),
        ({"input": "word " * 380}, "context_length_exceeded"),
    ):
        refused = await compact(connect, **members)
        assert isinstance(refused, Rejection) and refused.code == code
    assert status_of(response_of(await peer.turn(input="Still there?"))) == "completed"


@requirement("compaction.errors")
async def test_a_model_that_writes_no_summary_fails_the_turn_and_frees_the_lane(
    connect: Connect,
) -> None:
    connect.parts.script = lambda one: "  " if one.request_id.endswith("-summary") else None
    peer = await connect()
    events = await peer.turn(input=[user("x"), TRIGGER])
    response = response_of(events)
    assert (status_of(response), response.error.code) == ("failed", "server_error")
    assert kinds(response) == []
    assert arms(events) == ["response_created", "response_in_progress", "response_failed"]
    summary = connect.stack.engine.request(f"{response.id}-summary")
    assert response.usage.input_tokens == len(summary.ids)
    assert status_of(response_of(await peer.turn(input="Still there?"))) == "completed"


@requirement("compaction.errors")
async def test_a_summary_beyond_its_bound_is_cut(connect: Connect) -> None:
    connect.parts.script = lambda one: "plum " * 900 if one.outline.task == "summary" else None
    connect.parts.settings = replace(
        connect.parts.settings,
        compaction=replace(connect.parts.settings.compaction, max_summary_tokens=50),
    )
    peer = await connect()
    first = response_of(await peer.turn(input=[user("x"), TRIGGER]))
    assert first.usage.output_tokens == 50
    second = response_of(await peer.turn(input="Go on.", previous_response_id=first.id))
    assert prompt_of(connect, second).count("plum") in (49, 50)


@requirement("compaction.tampered")
async def test_a_compaction_that_was_changed_is_refused_at_its_path(connect: Connect) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input=[user("x"), TRIGGER]))
    (item,) = items_json(first.output)
    sealed = item["encrypted_content"]
    thought = response_of(
        await peer.turn(
            input="x",
            include=["reasoning.encrypted_content"],
            metadata={"turnwire.sim": "think"},
        )
    )
    of_another_kind = thought.output[0].reasoning.encrypted_content
    for changed in (
        "A" + sealed,
        sealed[:-2] + ("AA" if sealed[-2:] != "AA" else "BB"),
        sealed[: len(sealed) // 2],
        of_another_kind,
        "x",
    ):
        again = {**item, "encrypted_content": changed}
        (error,) = await peer.turn(input=[user("x"), again, user("Go on.")])
        assert failure_of(error) == ("invalid_value", 400, "input[1].encrypted_content")
        assert sealed[:40] not in error.error.error.message
    (error,) = await peer.turn(input=[{**item, "encrypted_content": ""}, user("x")])
    assert failure_of(error) == ("missing_required_parameter", 400, "input[0].encrypted_content")
    again = {**item, "id": None, "x_more": 1}
    assert status_of(response_of(await peer.turn(input=[again, user("Go on.")]))) == "completed"


@requirement("compaction.restart")
async def test_another_server_with_the_same_key_goes_on_from_it(connect: Connect) -> None:
    old, new, other = (bytes([number]) * 32 for number in (1, 2, 3))
    connect.parts.sealer = RingSealer([old])
    peer = await connect()
    first = response_of(await peer.turn(OVER_1000, input=LONG, metadata=said("Yes.")))
    replay = [*items_json(first.output), user("Go on.")]
    here = response_of(await peer.turn(input=replay))
    async with running_stack(Parts(sealer=RingSealer([new, old]))) as restarted:
        there = response_of(await (await restarted.connect(connect.wire)).turn(input=replay))
        mine = connect.stack.engine.request(here.id).ids
        assert list(restarted.engine.request(there.id).ids) == list(mine)
    async with running_stack(Parts(sealer=RingSealer([other]))) as stranger:
        (error,) = await (await stranger.connect(connect.wire)).turn(input=replay)
        assert failure_of(error) == ("invalid_value", 400, "input[0].encrypted_content")


# Ending early.


@requirement("compaction.cancel")
@pytest.mark.parametrize("after_steps", [0, 1], ids=["prefill", "first step"])
async def test_a_cancel_amid_a_compaction_leaves_the_conversation_as_it_was(
    connect: Connect, after_steps: int
) -> None:
    connect.parts.sim = SimSettings(step_tokens=4)
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold(LONG[:4096], after_steps=after_steps)
    await peer.create(OVER_1000, input=LONG)
    response_id = (await stack.engine.held(hold)).removesuffix("-summary")
    await peer.send({"type": "response.cancel", "response_id": response_id})
    # Sent is not received: the summary must not end before its cancel comes.
    await until(lambda: ("cancel", f"{response_id}-summary") in stack.engine.log)
    stack.engine.release(hold)
    events = await peer.finish()
    response = response_of(events)
    assert status_of(response) == "cancelled"
    assert kinds(response) == []
    assert "response_output_item_added" not in arms(events)
    # The turn's own prompt was read by nobody.
    summary = stack.engine.request(f"{response_id}-summary")
    assert response.usage.input_tokens == len(summary.ids)
    again = response_of(
        await peer.turn(input="Go on.", previous_response_id=response.id, metadata=said("Yes."))
    )
    assert LONG in prompt_of(connect, again)


class _Screen:
    """Says what it was told to say."""

    def __init__(self) -> None:
        self.verdict = Verdict(allowed=True)

    async def check(
        self, state: bytes, new_items: Sequence[Item], *, instructions: str = ""
    ) -> Verdict:
        return self.verdict


@requirement("compaction.screen")
async def test_nothing_of_a_compaction_leaves_before_the_verdict(connect: Connect) -> None:
    screen = _Screen()
    connect.parts.screen = screen
    peer = await connect()
    screen.verdict = Verdict(allowed=False, refusal="No.")
    events = await peer.turn(OVER_1000, input=LONG)
    assert arms(events) == ["response_created", "response_in_progress", "response_failed"]
    refused = await compact(connect, input="x")
    assert isinstance(refused, Rejection)
    assert (refused.code, refused.message) == ("invalid_prompt", "No.")
    screen.verdict = Verdict(allowed=True)
    allowed = await peer.turn(OVER_1000, input=LONG)
    assert kinds(response_of(allowed)) == ["compaction", "message"]
    assert text_of(response_of(allowed)) and arm_of(allowed[-1]) == "response_completed"
    assert isinstance(await compact(connect, input="x"), CompactResult)
