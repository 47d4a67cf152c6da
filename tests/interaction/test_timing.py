"""What a turn costs: new tokens only, and what the timing says of it."""

from __future__ import annotations

from typing import Any

from harness.reading import calls_of, public, response_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import SHELL, WEATHER, call_output, said, user
from turnwire.v1.response_pb2 import Response, TimingTokens

_INSTRUCTIONS = "You are a careful agent. Think, act, look, and go on. " * 20
_TIMING = {"include": ["turnwire.timing"]}


def _tokens(response: Response) -> TimingTokens:
    return response.turnwire.timing.tokens


@requirement("timing.new_only")
async def test_in_a_chain_of_50_turns_each_renders_its_new_tokens_only(connect: Connect) -> None:
    peer = await connect()
    tools = [SHELL, WEATHER]
    same = {"instructions": _INSTRUCTIONS, "tools": tools, "store": False, **_TIMING}
    first = response_of(await peer.turn(same, input="Begin."))
    assert first.turnwire.timing.rerender_reason == "first"
    assert _tokens(first).rendered == first.usage.input_tokens
    previous, call = first, calls_of(first)[0]
    for number in range(1, 50):
        new = [call_output(call, f"output {number}"), user(f"Step {number}.")]
        turn = response_of(await peer.turn(same, input=new, previous_response_id=previous.id))
        tokens = _tokens(turn)
        assert turn.turnwire.timing.rerender_reason == ""
        # New are the tokens that the parent had neither as prompt nor as output. The parent's
        # end-of-turn id is not counted twice: it is rendered with what follows.
        grown = turn.usage.input_tokens - previous.usage.total_tokens
        assert grown <= tokens.rendered <= grown + 2
        assert tokens.rendered == tokens.sent < 60
        assert tokens.cached >= turn.usage.input_tokens - tokens.rendered - 2
        assert (tokens.input, tokens.output) == (
            turn.usage.input_tokens,
            turn.usage.output_tokens,
        )
        previous, call = turn, calls_of(turn)[0]
    # All that was ever rendered is about what the last prompt holds, and not 50 times that.
    assert previous.usage.input_tokens > 50 * 40


@requirement("timing.members")
async def test_timing_is_there_when_it_was_asked_for_and_only_then(connect: Connect) -> None:
    peer = await connect()
    asked = response_of(await peer.turn(_TIMING, input="Hi"))
    timing = public(asked)["turnwire"]["timing"]
    assert set(timing) == {
        "queue_ms", "resolve_ms", "validate_ms", "render_ms", "screen_ms", "prefill_ms",
        "decode_ms", "commit_ms", "overhead_ms", "tokens", "rerender_reason",
    }  # fmt: skip
    assert set(timing["tokens"]) == {"input", "sent", "rendered", "cached", "output"}
    assert all(timing[name] >= 0 for name in timing if name.endswith("_ms"))
    stages = sum(timing[name] for name in timing if name.endswith("_ms")) - timing["overhead_ms"]
    engine = timing["prefill_ms"] + timing["decode_ms"]
    assert abs(timing["overhead_ms"] - (stages - engine)) < 1e-6
    assert "turnwire" not in public(response_of(await peer.turn(input="Hi")))


@requirement("timing.rerender")
async def test_a_change_of_the_head_is_said_and_keeps_what_came_before(connect: Connect) -> None:
    peer = await connect()
    first = response_of(
        await peer.turn(_TIMING, input="Hi", instructions="One.", metadata=said("a"))
    )
    changes: list[tuple[str, dict[str, Any]]] = [
        ("instructions", {"instructions": "Two."}),
        ("tools", {"instructions": "Two.", "tools": [SHELL]}),
        ("tools", {"instructions": "Two.", "tools": [WEATHER, SHELL]}),
        ("", {"instructions": "Two.", "tools": [WEATHER, SHELL]}),
    ]
    previous = first
    for reason, head in changes:
        turn = response_of(
            await peer.turn(
                {**_TIMING, **head},
                input="Go",
                previous_response_id=previous.id,
                metadata=said("b"),
            )
        )
        assert turn.turnwire.timing.rerender_reason == reason
        whole = list(connect.stack.engine.request(turn.id).ids)
        body = list(connect.stack.engine.request(previous.id).ids)[-8:]
        assert str(body)[1:-1] in str(whole)
        previous = turn


@requirement("timing.one_pass")
async def test_the_engine_gets_each_call_and_output_once(connect: Connect) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="Run", tools=[SHELL]))
    (call,) = calls_of(first)
    second = response_of(
        await peer.turn(
            input=[call_output(call, "uniqueword")], tools=[SHELL], previous_response_id=first.id
        )
    )
    engine = connect.stack.engine
    prompt = list(engine.request(second.id).ids)
    assert prompt[: len(engine.request(first.id).ids)] == list(engine.request(first.id).ids)
    renderer = connect.stack.services.models.models[0].renderer
    grown = len(prompt) - first.usage.total_tokens
    assert grown < renderer.count("uniqueword") + 20
