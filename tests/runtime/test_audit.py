"""Audits find what was continued wrongly, and nothing else."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import Counter
from dataclasses import replace

import pytest

from harness.conversations import call, message, output, reasoning
from harness.families import write_folder
from harness.peers import MemoryWirePeer
from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.engines.sim import SimEngine, SimSettings
from turnwire_server.adapters.ledgers.memory import MemoryLedger
from turnwire_server.adapters.renderers.chat_template import (
    ChatTemplateRenderer,
    ChatTemplateSettings,
)
from turnwire_server.adapters.renderers.hf_folder import read_folder
from turnwire_server.adapters.renderers.sim_chatml import SimRenderer
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.renderer import RenderRequest
from turnwire_server.runtime.afterwork import AfterWork
from turnwire_server.runtime.audit import Auditor, find_mismatch
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.services import Services
from turnwire_server.runtime.settings import RuntimeSettings
from turnwire_server.session.tokens import TokenIds


@pytest.fixture(scope="module")
def sim():
    return SimRenderer()


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("audit") / "qwen", "qwen")
    return ChatTemplateRenderer(read_folder(folder), ChatTemplateSettings())


@pytest.fixture(params=["sim", "qwen"])
def renderer(request):
    return request.getfixturevalue(request.param)


class Conversation:
    """Turn by turn, as the runtime does it."""

    def __init__(self, renderer, **options):
        self.renderer, self.options = renderer, options
        self.items, self.prompt = [], None

    def ask(self, *items):
        request = RenderRequest(
            new_items=list(items),
            history=lambda kept=tuple(self.items): list(kept),
            previous=self.prompt,
            **self.options,
        )
        self.rendered = self.renderer.render(request)
        self.items += items
        return request

    def say(self, text, *items, finish="stop"):
        """Sample `text`, however the template would write `items`, which is what it means."""
        encode = getattr(self.renderer, "_tokenizer", None) or self.renderer._tokens
        ids = list(encode.encode(text))
        if finish == "stop":
            ids.append(min(self.renderer.stop_ids))
        self.prompt = self.renderer.sampled(self.rendered, ids, finish)
        self.items += items

    def audit(self, request, prompt=None):
        return find_mismatch(self.renderer.cold(), request, prompt or self.rendered.prompt)


def talked(renderer) -> Conversation:
    talk = Conversation(renderer, instructions="Be brief.")
    talk.ask(message("user", "One?"))
    # Not as the template writes it: blanks, and words cut in other places.
    talk.say(
        '<tool_call>\n{"name":"look",  "arguments":{ }}\n</tool_call>', call("call_1", "look", "{}")
    )
    talk.ask(output("call_1", "Two."))
    talk.say("  An  answer\n", message("assistant", "An answer"))
    return talk


def test_a_conversation_that_was_continued_rightly_is_the_same(renderer):
    talk = talked(renderer)
    assert talk.audit(talk.ask(message("user", "Three?"))) == ""


def test_a_turn_that_was_cut_before_it_said_anything_is_no_mismatch(renderer):
    talk = talked(renderer)
    talk.ask(message("user", "Never mind."))
    talk.say("", finish="cancelled")
    talk.ask(message("user", "Four?"))
    talk.say("Yes.", message("assistant", "Yes."))
    assert talk.audit(talk.ask(message("user", "Five?"))) == ""


def test_reasoning_and_items_of_the_client_are_no_mismatch(sim):
    talk = talked(sim)
    talk.ask(message("user", "Why?"))
    said = [reasoning("Because  of"), message("assistant", "So.")]
    talk.say("<think>\nBecause  of\n</think>\nSo.", *said)
    request = talk.ask(message("assistant", "My words."), message("user", "Go on."))
    assert talk.audit(request) == ""


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("beginning", lambda ids: [ids[1], *ids[1:]]),
        ("end", lambda ids: [*ids[:-1], ids[0]]),
        ("end", lambda ids: [*ids, ids[0]]),
    ],
)
def test_a_prompt_with_other_ids_is_found(renderer, where, change):
    talk = talked(renderer)
    request = talk.ask(message("user", "Three?"))
    prompt = talk.rendered.prompt
    changed = replace(prompt, ids=TokenIds(change(list(prompt.ids))))
    assert talk.audit(request, changed) == where


def test_an_item_that_got_lost_on_the_way_is_found(renderer):
    talk = talked(renderer)
    lost = [item for item in talk.items if item.WhichOneof("item") != "function_call_output"]
    other = Conversation(renderer, instructions="Be brief.")
    other.ask(lost[0])
    other.say("  An  answer\n", message("assistant", "An answer"))
    request = talk.ask(message("user", "Three?"))
    other.ask(message("user", "Three?"))
    assert talk.audit(request, other.rendered.prompt) == "middle"


def test_another_conversation_s_ids_are_found(renderer):
    talk, other = talked(renderer), Conversation(renderer, instructions="Be long.")
    other.ask(message("user", "One?"))
    request = talk.ask(message("user", "Three?"))
    assert talk.audit(request, other.rendered.prompt) == "beginning"


def test_a_first_turn_must_be_the_same_id_by_id(renderer):
    talk = Conversation(renderer)
    request = talk.ask(message("user", "One?"))
    prompt = talk.rendered.prompt
    longer = replace(prompt, ids=prompt.ids.extended([0]))
    assert talk.audit(request) == ""
    assert talk.audit(request, longer) == "whole"


class ForgetfulRenderer(SimRenderer):
    """Wrong on purpose: continues without closing what the assistant said."""

    def sampled(self, rendered, ids, finish):
        return replace(super().sampled(rendered, ids, finish), tail=())


class StaleHeadRenderer(SimRenderer):
    """Wrong on purpose: keeps the old head when the instructions change."""

    def render(self, request):
        if request.previous is None:
            return super().render(request)
        fresh = super().render(replace(request, previous=None, new_items=[], history=list))
        stale = replace(request.previous, fingerprint=fresh.prompt.fingerprint)
        return super().render(replace(request, previous=stale))


class ShyRenderer(SimRenderer):
    """Promises nothing."""

    @property
    def keeps_prefixes(self):
        return False


def audited_services(renderer, metrics, rate=1.0):
    clock = SystemClock()
    engine = SimEngine(SimSettings(), clock)
    return Services(
        ModelRegistry([ServedModel("sim", engine, renderer)]),
        store=MemoryResponseStore(MemoryStoreSettings(), wall=clock.wall),
        ledger=MemoryLedger(),
        clock=clock,
        settings=RuntimeSettings(audit_rate=rate),
        metrics=metrics,
    )


async def run_turns(services, instructions=("Be brief.", "Be brief.", "Be brief.")):
    await services.start()
    peer = MemoryWirePeer(services)
    await peer.open()
    previous = None
    async with asyncio.timeout(20):
        for number, text in enumerate(instructions):
            create = {"model": "sim", "input": f"Secret {number}", "instructions": text}
            if previous:
                create["previous_response_id"] = previous
            events = await peer.turn(create)
            previous = events[-1].response_completed.response.id
        await services.afterwork.finish(5)
        await peer.close()
        await services.close()


class Audits:
    """Implements what an audit needs of `ports.Metrics`."""

    def __init__(self):
        self.audits = Counter()

    def turn_ended(self, facts):
        pass

    def audited(self, model, outcome):
        assert model == "sim"
        self.audits[outcome] += 1


def outcomes(metrics) -> dict[str, int]:
    names = ("same", "mismatch", "exempt", "skipped", "failed")
    return {name: metrics.audits[name] for name in names if metrics.audits[name]}


@pytest.mark.parametrize(
    ("renderer", "instructions", "expected"),
    [
        (SimRenderer(), ("a", "a", "b"), {"same": 3}),
        (ForgetfulRenderer(), ("a", "a", "a"), {"same": 1, "mismatch": 2}),
        (StaleHeadRenderer(), ("a", "a", "b"), {"same": 2, "mismatch": 1}),
        (ShyRenderer(), ("a", "a", "a"), {"exempt": 3}),
    ],
)
async def test_turns_are_audited_and_counted(renderer, instructions, expected, caplog):
    metrics = Audits()
    services = audited_services(renderer, metrics)
    with caplog.at_level(logging.ERROR, logger="turnwire"):
        await run_turns(services, instructions)
    assert outcomes(metrics) == expected
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == expected.get("mismatch", 0)
    for line in lines:
        assert "audit mismatch where=" in line
        assert "response_id=resp_" in line
        assert "Secret" not in line


async def test_by_default_nothing_is_audited():
    metrics = Audits()
    services = audited_services(ForgetfulRenderer(), metrics, rate=0.0)
    await run_turns(services)
    assert outcomes(metrics) == {}
    assert RuntimeSettings().audit_rate == 0.0


async def consider(auditor, renderer, count=1):
    talk = Conversation(renderer)
    request = talk.ask(message("user", "One?"))
    for number in range(count):
        auditor.consider(
            renderer,
            request,
            talk.rendered.prompt,
            model="sim",
            response_id=f"resp_{number}",
            log_ids="",
        )


async def test_chance_decides_which_turns_are_audited(sim):
    draws = iter([0.2, 0.1999, 0.9, 0.0])
    metrics, afterwork = Audits(), AfterWork()
    auditor = Auditor(0.2, afterwork, metrics, chance=lambda: next(draws))
    await consider(auditor, sim, count=4)
    await afterwork.finish(5)
    assert outcomes(metrics) == {"same": 2}


async def test_more_audits_than_can_wait_are_skipped(sim):
    metrics, afterwork = Audits(), AfterWork()
    auditor = Auditor(1.0, afterwork, metrics)
    await consider(auditor, sim, count=11)
    await afterwork.finish(5)
    assert outcomes(metrics) == {"same": 8, "skipped": 3}
    await consider(auditor, sim)
    await afterwork.finish(5)
    assert outcomes(metrics)["same"] == 9


async def test_an_audit_that_breaks_is_counted_and_stops_nothing(sim, caplog):
    broken = copy.copy(sim)
    broken.cold = lambda: None
    metrics, afterwork = Audits(), AfterWork()
    await consider(Auditor(1.0, afterwork, metrics), broken)
    await afterwork.finish(5)
    assert outcomes(metrics) == {"failed": 1}
    assert "after work failed response_id=resp_0" in caplog.text


def test_a_cold_renderer_shares_nothing_that_changes(renderer):
    cold = renderer.cold()
    assert cold.fingerprint == renderer.fingerprint
    assert cold._heads is not renderer._heads
    assert not cold._heads
