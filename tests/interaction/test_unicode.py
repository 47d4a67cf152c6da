"""Text in any script, however the engine's tokens cut it."""

from __future__ import annotations

import pytest

from harness.reading import arm_of, calls_of, deltas_of, public, response_of, text_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import CUSTOM, SHELL, script, user
from turnwire_server.adapters.engines.sim import SimSettings

_TEXTS = {
    "emoji": "a 😀 b",
    "ZWJ family": "👨‍👩‍👧‍👦",
    "skin tone": "👍🏽!",
    "flags": "🇺🇳🇰🇷",
    "CJK": "世界 삼겹살 こんにちは",
    "combining": "Zalgo e\u0301\u0323",
    "right to left": "שלום مرحبا",
    "escapes": 'quote " backslash \\ newline \n tab \t nul-ish \u0001',
    "line separators": "a\u2028b\u2029c\u0085d",
}


@requirement("unicode.split")
@pytest.mark.parametrize("text", _TEXTS.values(), ids=_TEXTS.keys())
async def test_a_character_split_over_tokens_arrives_whole(connect: Connect, text: str) -> None:
    connect.parts.sim = SimSettings(step_tokens=1)
    peer = await connect()
    events = await peer.turn(input="Say it", metadata=script(text=text, split_characters=True))
    # The checker has compared deltas, done, part and item with each other.
    assert text_of(response_of(events)) == deltas_of(events) == text
    assert "\ufffd" not in text_of(response_of(events))


@requirement("unicode.cut")
@pytest.mark.parametrize("tokens", [1, 2, 3])
async def test_a_character_that_is_cut_is_one_replacement_everywhere(
    connect: Connect, tokens: int
) -> None:
    connect.parts.sim = SimSettings(step_tokens=1)
    peer = await connect()
    events = await peer.turn(
        input="Say it",
        max_output_tokens=2 + tokens,
        metadata=script(text="ab😀", split_characters=True),
    )
    response = response_of(events)
    assert response.incomplete_details.reason == "max_output_tokens"
    assert text_of(response) == deltas_of(events) == "ab\ufffd"
    assert public(response.output[0])["status"] == "incomplete"


@requirement("unicode.cut")
async def test_a_turn_that_ends_between_characters_has_no_replacement(connect: Connect) -> None:
    peer = await connect()
    events = await peer.turn(
        input="Say it", max_output_tokens=6, metadata=script(text="ab😀c", split_characters=True)
    )
    assert text_of(response_of(events)) == "ab😀"


@requirement("unicode.calls")
async def test_characters_of_calls_arrive_whole(connect: Connect) -> None:
    connect.parts.sim = SimSettings(step_tokens=1)
    peer = await connect()
    calls = [
        {"name": "exec_command", "arguments": '{"cmd": "echo 😀 世界"}'},
        {"name": "apply", "input": "*** 삼겹살 👨‍👩‍👧‍👦\n\\end"},
    ]
    events = await peer.turn(input="x", tools=[SHELL, CUSTOM], metadata=script(calls=calls))
    response = response_of(events)
    (call,) = calls_of(response)
    assert "echo 😀 世界" in call.arguments
    assert response.output[1].custom_tool_call.input == calls[1]["input"]


@requirement("unicode.input")
@pytest.mark.parametrize("text", _TEXTS.values(), ids=_TEXTS.keys())
async def test_text_of_the_client_reaches_the_engine_as_it_was_sent(
    connect: Connect, text: str
) -> None:
    peer = await connect()
    events = await peer.turn(input=[user(text)], metadata={"note": text}, instructions=text)
    response = response_of(events)
    assert connect.stack.engine.request(response.id).outline.last_user_text == text
    assert response.metadata["note"] == text and response.instructions == text
    assert arm_of(events[-1]) == "response_completed"
