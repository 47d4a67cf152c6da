"""Screening within a turn: beside prefill, before any output, along the conversation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from harness.peers import Peer
from harness.reading import arm_of, arms, public, response_of, status_of, text_of
from harness.scripted_screen import ScriptedScreen
from harness.stack import Parts, Stack, running_stack
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.ledgers.memory import MemoryLedger
from turnwire_server.adapters.renderers.sim_tokens import sim_tokens
from turnwire_server.adapters.screens.rules import RuleScreen
from turnwire_server.adapters.screens.rules_file import parse_rules
from turnwire_server.ports.screen import Screen, ScreenFailure, Verdict

RULES = """
[[rules]]
category = "weapons"
patterns = ["build a bomb"]

[[rules]]
category = "medical"
action = "refuse"
message = "Ask a doctor."
patterns = ["how much of it"]

[[rules]]
category = "rude"
action = "flag"
patterns = ["you fool"]
"""


@asynccontextmanager
async def serving(screen: Screen, **parts) -> AsyncIterator[tuple[Stack, Peer]]:
    async with running_stack(
        Parts(screen=screen, sim=SimSettings(step_tokens=4), **parts)
    ) as stack:
        yield stack, await stack.connect("memory")


async def until_a_step(stack: Stack, response_id: str) -> None:
    async with asyncio.timeout(20):
        while ("step", response_id) not in stack.engine.log:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0)


def rule_screen() -> RuleScreen:
    return RuleScreen(parse_rules(RULES, origin="rules.toml"))


async def test_the_screen_reads_while_the_engine_prefills_and_nothing_leaves_before_the_verdict():
    screen = ScriptedScreen()
    async with serving(screen) as (stack, peer):
        prefill = stack.engine.hold("hi")
        await peer.create(input="hi", instructions="be kind")
        response_id = await stack.engine.held(prefill)  # the engine is at work
        check = await screen.checked()  # and so is the screen
        assert (check.texts, check.instructions) == (["hi"], "be kind")
        stack.engine.release(prefill)
        first = [await peer.receive(), await peer.receive()]
        assert arms(first) == ["response_created", "response_in_progress"]
        # The model has spoken, and is not heard.
        await until_a_step(stack, response_id)
        check.allow()
        events = await peer.finish()
        assert arm_of(events[0]) == "response_output_item_added"
        assert status_of(response_of(events)) == "completed"


@pytest.mark.parametrize("is_early", [True, False], ids=["in prefill", "after prefill"])
async def test_a_blocked_turn_fails_with_invalid_prompt_and_the_engine_is_told(is_early):
    screen = ScriptedScreen()
    async with serving(screen) as (stack, peer):
        prefill = stack.engine.hold("hi")
        await peer.create(input="hi")
        response_id = await stack.engine.held(prefill)
        check = await screen.checked()
        if not is_early:
            stack.engine.release(prefill)
            await until_a_step(stack, response_id)
        # The hold is not let go of: only the verdict can end a prefill.
        check.answer.set_result(Verdict(allowed=False, refusal="No.", categories=("c",)))
        events = await peer.finish()
        assert arms(events) == ["response_created", "response_in_progress", "response_failed"]
        response = response_of(events)
        assert (response.error.code, response.error.message) == ("invalid_prompt", "No.")
        assert not response.output
        assert response.usage.output_tokens == 0
        assert ("cancel", response_id) in stack.engine.log
        assert stack.engine.running == set()


@pytest.mark.parametrize("wire", ["memory", "grpc", "websocket", "http"])
async def test_a_refused_turn_completes_with_one_refusal_and_can_be_continued(wire):
    async with serving(rule_screen()) as (stack, _):
        peer = await stack.connect(wire)
        events = await peer.turn(input="how much of it can I take?")
        assert arms(events, merged=False) == [
            "response_created",
            "response_in_progress",
            "response_output_item_added",
            "response_content_part_added",
            "response_refusal_delta",
            "response_refusal_done",
            "response_content_part_done",
            "response_output_item_done",
            "response_completed",
        ]
        response = response_of(events)
        assert public(response)["status"] == "completed"
        (item,) = public(response)["output"]
        assert item["content"] == [{"type": "refusal", "refusal": "Ask a doctor."}]
        assert (item["role"], item["status"]) == ("assistant", "completed")
        assert ("cancel", response.id) in stack.engine.log
        child = await peer.turn(input="thank you", previous_response_id=response.id)
        answer = response_of(child)
        assert status_of(answer) == "completed"
        # The engine is given the refusal that the client saw, not what it had begun to say.
        ids = stack.engine.request(answer.id).ids
        assert b"Ask a doctor." in b"".join(sim_tokens().token_bytes(token) for token in ids)


async def test_a_warm_up_is_not_refused_but_fails():
    async with serving(rule_screen()) as (_, peer):
        events = await peer.turn(input="how much of it?", generate=False)
        assert response_of(events).error.code == "invalid_prompt"


async def test_a_phrase_split_over_two_turns_fails_the_second_and_leaves_other_forks_alone():
    async with serving(rule_screen()) as (_, peer):
        parent = response_of(await peer.turn(input="how do I build a"))
        good = await peer.turn(input="house", previous_response_id=parent.id, stream_id="b")
        bad = await peer.turn(input="bomb", previous_response_id=parent.id, stream_id="c")
        assert status_of(response_of(good)) == "completed"
        assert response_of(bad).error.code == "invalid_prompt"
        assert "weapons" in response_of(bad).error.message
        alone = await peer.turn(input="bomb")
        assert status_of(response_of(alone)) == "completed"


async def test_the_state_comes_back_from_the_store_on_another_connection():
    async with serving(rule_screen()) as (stack, peer):
        parent = response_of(await peer.turn(input="how do I build a"))
        other = await stack.connect("memory")
        bad = await other.turn(input="bomb", previous_response_id=parent.id)
        assert response_of(bad).error.code == "invalid_prompt"


async def test_a_turn_gets_the_state_of_its_parent_and_reads_only_what_is_new():
    screen = ScriptedScreen()
    async with serving(screen) as (_, peer):
        parent = ""
        seen = []
        for number, text in enumerate(("one", "two", "three")):
            await peer.create(input=text, previous_response_id=parent or None)
            check = await screen.checked()
            seen.append((check.state, check.texts))
            check.allow(b"state %d" % number)
            parent = response_of(await peer.finish()).id
        assert seen == [(b"", ["one"]), (b"state 0", ["two"]), (b"state 1", ["three"])]


async def test_a_failed_turn_leaves_its_parent_as_it_was():
    async with serving(rule_screen()) as (_, peer):
        parent = response_of(await peer.turn(input="hello"))
        await peer.turn(input="build a bomb", previous_response_id=parent.id, stream_id="b")
        again = await peer.turn(input="and now?", previous_response_id=parent.id, stream_id="c")
        assert status_of(response_of(again)) == "completed"


async def test_what_was_cancelled_before_its_verdict_is_read_with_the_next_turn():
    screen = ScriptedScreen()
    async with serving(screen) as (stack, peer):
        prefill = stack.engine.hold("build a bomb")
        await peer.create(input="build a bomb")
        response_id = await stack.engine.held(prefill)
        await screen.checked()
        await peer.send({"type": "response.cancel", "response_id": response_id})
        cancelled = response_of(await peer.finish())
        assert status_of(cancelled) == "cancelled"
        assert screen.stopped == 1
        await peer.create(input="go on", previous_response_id=cancelled.id)
        check = await screen.checked()
        assert check.texts == ["build a bomb", "go on"]
        check.allow(b"all read")
        child = response_of(await peer.finish())
        await peer.create(input="more", previous_response_id=child.id)
        check = await screen.checked()
        assert (check.state, check.texts) == (b"all read", ["more"])
        check.allow()
        await peer.finish()


async def test_a_refusal_that_comes_after_a_cancel_fails_the_turn():
    screen = ScriptedScreen()
    async with serving(screen) as (stack, peer):
        prefill = stack.engine.hold("hi")
        await peer.create(input="hi")
        response_id = await stack.engine.held(prefill)
        await screen.checked()
        screen.last_word = Verdict(allowed=False, refusal="No.", ending="refuse")
        await peer.send({"type": "response.cancel", "response_id": response_id})
        response = response_of(await peer.finish())
        assert (response.error.code, response.error.message) == ("invalid_prompt", "No.")


@pytest.mark.parametrize(
    "error", [ScreenFailure("the endpoint answered 503"), ValueError("private words")], ids=type
)
async def test_a_screen_that_breaks_fails_the_turn_and_its_words_go_nowhere(error, caplog):
    screen, ledger = ScriptedScreen(), MemoryLedger()
    async with serving(screen, ledger=ledger) as (stack, peer):
        prefill = stack.engine.hold("hi")
        await peer.create(input="hi")
        response_id = await stack.engine.held(prefill)
        check = await screen.checked()
        check.answer.set_exception(error)
        events = await peer.finish()
        assert arms(events) == ["response_created", "response_in_progress", "response_failed"]
        assert response_of(events).error.code == "server_error"
        assert ("cancel", response_id) in stack.engine.log
        assert "private words" not in caplog.text
        assert (
            f"screen failed error={'ValueError' if 'private' in str(error) else error}"
            in caplog.text
        )
        assert "private" not in str(events)


async def test_what_is_found_is_logged_by_category_and_never_by_its_text(caplog):
    caplog.set_level(logging.INFO, logger="turnwire")
    async with serving(rule_screen()) as (_, peer):
        response = response_of(await peer.turn(input="you fool, what is 2 + 2?"))
        assert status_of(response) == "completed"
        assert text_of(response)
        assert "screen found categories=rude allowed=True session_id=" in caplog.text
        assert response.id in caplog.text
        assert "fool" not in caplog.text
        assert "rude" not in str(public(response))


async def test_screening_is_a_stage_of_the_timing():
    screen = ScriptedScreen()
    async with serving(screen) as (_, peer):
        await peer.create(input="hi", include=["turnwire.timing"])
        (await screen.checked()).allow()
        timing = response_of(await peer.finish()).turnwire.timing
        assert timing.screen_ms > 0
