"""Every event of a public type, strictly by the official types and by the shapes of Open Responses.

What `turnwire conformance` asks of any server is asked here of every kind of turn that ours has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.peers import HttpPeer, Peer, WebSocketPeer
from harness.reading import arm_of, response_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import CUSTOM, SHELL, WEATHER, script, user
from turnwire.v1.item_pb2 import Item
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.conformance.findings import Findings
from turnwire_server.conformance.official import OfficialTypes
from turnwire_server.conformance.open_responses import OpenResponses
from turnwire_server.conformance.rules import RULES
from turnwire_server.ports.screen import Verdict
from turnwire_server.runtime.settings import CompatSettings

OFFICIAL = OfficialTypes()
CALL = {"name": "get_weather", "arguments": {"city": "Paris"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
NAMED = {"type": "function", "name": "get_weather"}

# Turns of the five core items and function tools.
CORE: dict[str, dict[str, Any]] = {
    "text": {"metadata": script(text="Hello."), "instructions": "Be brief."},
    "characters": {"metadata": script(text="😀 世界", split_characters=True)},
    "nothing": {"metadata": script(text="")},
    "call": {"tools": [WEATHER], "metadata": script(text="Look:", calls=[CALL, CALL])},
    "forced call": {"tools": [WEATHER, SHELL], "tool_choice": NAMED},
    "allowed tools": {
        "tools": [WEATHER, SHELL],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]},
    },
    "reasoning": {"metadata": script(reasoning="Hm. So.", text="Yes.")},
    "sealed reasoning": {
        "include": ["reasoning.encrypted_content"],
        "metadata": script(reasoning="Hm. So.", text="Yes."),
    },
    "reasoning alone": {"max_output_tokens": 4, "metadata": script(reasoning="and so " * 20)},
    "cut text": {"max_output_tokens": 2, "metadata": script(tokens=20)},
    "cut call": {
        "max_output_tokens": 12,
        "tools": [WEATHER],
        "metadata": script(calls=[{**CALL, "arguments": {"city": "x " * 40}}]),
    },
    "circles": {"metadata": script(text="round and round", repeat_after=2)},
    "failure": {"metadata": script(text="a b c d e f", fail_after=3)},
    "format": {"text": {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}}},
    "history": {
        "input": [
            {"role": "system", "content": "Be brief."},
            user("Weather?"),
            {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "sunny"},
            {"role": "assistant", "content": "Sunny.", "phase": "final_answer"},
            user("Thanks."),
        ]
    },
    "compaction": {
        "input": [user("Remember " + "this " * 1200), user("Go on.")],
        "context_management": [{"type": "compaction", "compact_threshold": 1000}],
    },
    "settings": {
        "reasoning": {"effort": "low"},
        "service_tier": "flex",
        "user": "u",
        "prompt_cache_key": "k",
        "store": False,
        "parallel_tool_calls": False,
        "truncation": "auto",
        "temperature": 0,
        "metadata": {"a": "b"},
    },
}

# Turns with more than that.
MORE: dict[str, dict[str, Any]] = {
    "custom call": {
        "tools": [CUSTOM],
        "metadata": script(calls=[{"name": "apply", "input": "x"}]),
    },
    "hosted tools": {"tools": [{"type": "web_search"}, SHELL], "tool_choice": "none"},
    "namespace": {
        "tools": [
            {"type": "namespace", "name": "ns", "description": "Some.", "tools": [WEATHER]},
        ],
        "metadata": script(calls=[{**CALL, "name": "ns.get_weather"}]),
    },
}


def judged(peer: Peer, *, strict: bool = False) -> dict[str, str]:
    """The findings on everything that came: what a rule found wrong, "" where it holds."""
    assert isinstance(peer, WebSocketPeer | HttpPeer)
    findings = Findings("websocket")
    shapes = OpenResponses("openresponses" if strict else "turnwire")
    for event in peer.raw:
        OFFICIAL.judge(findings, event)
        shapes.judge(findings, event)
        if "response" in event:
            OFFICIAL.judge_response(findings, event["response"])
            shapes.judge_response(findings, event["response"])
    results = findings.results([rule for rule in RULES if rule.id.startswith("types.")])
    return {one.check.id: one.reason for one in results if one.outcome != "skipped"}


CLEAN = {"types.official": "", "types.open_responses": ""}


@requirement("events.strict_types")
@pytest.mark.parametrize("create", [*CORE.values(), *MORE.values()], ids=[*CORE, *MORE])
async def test_every_event_is_strictly_of_its_type(
    connect: Connect, create: dict[str, Any]
) -> None:
    peer = await connect()
    await peer.turn({"input": "Hi", **create})
    found = judged(peer)
    # Of a turn with a custom tool there is no event that Open Responses has a shape for.
    assert found == CLEAN or (CUSTOM in create.get("tools", []) and found == {"types.official": ""})


@requirement("events.strict_types")
@pytest.mark.parametrize("create", CORE.values(), ids=CORE.keys())
async def test_with_summaries_the_core_is_nothing_but_open_responses(
    connect: Connect, create: dict[str, Any]
) -> None:
    connect.parts.settings = replace(
        connect.parts.settings, compat=CompatSettings(reasoning_events="summary")
    )
    peer = await connect()
    await peer.turn({"input": "Hi", **create})
    found = judged(peer, strict=True)
    # The one event that Open Responses has no name for; clients of it do not ask for it.
    foreign = "`response.compaction.compacting`" if "context_management" in create else ""
    assert found.pop("types.open_responses_only").partition(" ")[0] == foreign
    assert found == CLEAN


@requirement("events.strict_types")
async def test_raw_reasoning_is_what_open_responses_does_not_know(connect: Connect) -> None:
    peer = await connect()
    await peer.turn(CORE["reasoning"], input="Hi")
    found = judged(peer, strict=True)
    assert "response.reasoning_text.delta" in found.pop("types.open_responses_only")
    assert found == CLEAN


class _Refusing:
    """A screen that lets nothing pass."""

    async def check(
        self, state: bytes, new_items: Sequence[Item], *, instructions: str = ""
    ) -> Verdict:
        return Verdict(allowed=False, refusal="I cannot help with that.", ending="refuse")


@requirement("events.strict_types")
async def test_a_refusal_is_strictly_of_its_type(connect: Connect) -> None:
    connect.parts.screen = _Refusing()
    peer = await connect()
    response = response_of(await peer.turn(input="Hi"))
    assert response.output or response.error.code
    assert judged(peer, strict=True) == {**CLEAN, "types.open_responses_only": ""}


@requirement("events.strict_session_types")
async def test_what_sessions_have_beside_turns_is_strictly_of_its_type(connect: Connect) -> None:
    connect.parts.sim = SimSettings(step_tokens=1)
    peer = await connect()
    stack = await connect.start()
    warm = response_of(await peer.turn(input="Warm.", generate=False))
    hold = stack.engine.hold("talk", after_steps=2)
    await peer.create(input="talk", previous_response_id=warm.id, stream_id="a")
    target = await stack.engine.held(hold)
    for parent in (target, "resp_none"):
        steer = {"type": "response.steer", "previous_response_id": parent, "input": "More."}
        await peer.send(steer)
    await peer.until("response_steer_accepted", "a")
    failed = await peer.receive()
    assert arm_of(failed) == "response_steer_failed"
    stack.engine.release(hold)
    await peer.finish("a")
    await peer.finish("a")  # the successor
    hold = stack.engine.hold("stop", after_steps=2)
    await peer.create(input="stop")
    running = await stack.engine.held(hold)
    await peer.send({"type": "response.cancel", "response_id": running})
    await peer.finish()
    for bad in ({"temperature": 9}, {"previous_response_id": "resp_none", "stream_id": "a"}):
        await peer.create({"input": "x", **bad})
        assert arm_of((await peer.finish(bad.get("stream_id")))[-1]) == "error"  # type: ignore[arg-type]
    await peer.send({"type": "nothing"})
    assert arm_of(await peer.receive()) == "error"
    assert judged(peer) == CLEAN
