"""Every turn is counted once, with what it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from harness.held_engine import HeldEngine
from harness.peers import MemoryWirePeer
from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.engines.sim import SimEngine, SimSettings
from turnwire_server.adapters.ledgers.memory import MemoryLedger
from turnwire_server.adapters.renderers.sim_chatml import SimRenderer
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.ports.metrics import AuditOutcome, Exposition, Levels, TurnFacts
from turnwire_server.runtime.metering import turn_facts
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.services import Services
from turnwire_server.runtime.settings import RuntimeSettings


@dataclass
class Notes:
    """Implements `ports.Metrics`: a list."""

    turns: list[TurnFacts] = field(default_factory=list)

    def turn_ended(self, facts: TurnFacts) -> None:
        self.turns.append(facts)

    def audited(self, model: str, outcome: AuditOutcome) -> None:
        raise AssertionError

    def exposition(self, levels: Levels) -> Exposition:
        raise AssertionError


@asynccontextmanager
async def counted(notes: Notes | None) -> AsyncIterator[tuple[Services, HeldEngine]]:
    clock = SystemClock()
    engine = HeldEngine(SimEngine(SimSettings(), clock))
    services = Services(
        ModelRegistry([ServedModel("sim", engine, SimRenderer())], any_model=True),
        store=MemoryResponseStore(MemoryStoreSettings(max_bytes=1), wall=clock.wall),
        ledger=MemoryLedger(),
        clock=clock,
        settings=RuntimeSettings(),
        metrics=notes,
    )
    await services.start()
    try:
        async with asyncio.timeout(20):
            yield services, engine
    finally:
        await services.close()


@asynccontextmanager
async def peer_of(services: Services) -> AsyncIterator[MemoryWirePeer]:
    peer = MemoryWirePeer(services)
    await peer.open()
    try:
        yield peer
    finally:
        await peer.close()


async def test_a_turn_is_told_with_its_tokens_and_stages():
    notes = Notes()
    async with counted(notes) as (services, _), peer_of(services) as peer:
        events = await peer.turn(model="an alias", input="Hello", instructions="a")
        response = events[-1].response_completed.response
        await peer.turn(
            model="sim", input="And", instructions="b", previous_response_id=response.id
        )
        await services.afterwork.finish(5)
        first, second = notes.turns
    # The name is that of the model that was served: what clients write has no bound.
    assert (first.model, first.status, first.transport) == ("sim", "completed", "memory")
    assert first.input_tokens == response.usage.input_tokens > 0
    assert first.output_tokens == response.usage.output_tokens > 0
    assert first.rendered_tokens == first.input_tokens
    assert (first.rerender_reason, second.rerender_reason) == ("first", "instructions")
    assert second.cached_tokens < second.input_tokens
    assert {"queue", "validate", "render", "prefill", "decode", "commit"} <= first.stages.keys()


async def test_turns_without_a_response_are_counted_too():
    notes = Notes()
    async with counted(notes) as (services, engine), peer_of(services) as peer:
        await peer.turn(model="sim", input="Hello", previous_response_id="resp_missing")
        hold = engine.hold("Stay")
        await peer.create(model="sim", input="Stay")
        await engine.held(hold)
        await peer.close()
        await services.afterwork.finish(5)
    assert [turn.status for turn in notes.turns] == ["refused", "cancelled"]
    assert notes.turns[0] == TurnFacts("", "refused", "memory")


async def test_a_turn_that_never_comes_to_its_end_is_counted_as_abandoned():
    notes = Notes()
    async with counted(notes) as (services, engine), peer_of(services) as peer:
        hold = engine.hold("Stay")
        await peer.create(model="sim", input="Stay")
        await engine.held(hold)
        (host,) = services.hosts
        (run,) = host.runs
        facts = turn_facts(run, "memory")
        await peer.close()
        await services.afterwork.finish(5)
        after = turn_facts(run, "memory")
    assert (facts.model, facts.status, facts.output_tokens) == ("sim", "abandoned", 0)
    assert facts.rendered_tokens == after.rendered_tokens > 0
    assert (after.status, after.input_tokens > 0) == ("cancelled", True)


async def test_levels_are_read_off_the_server():
    async with counted(None) as (services, engine), peer_of(services) as peer:
        hold = engine.hold("Stay")
        for text in ("Stay", "Wait", "Wait"):
            await peer.create(model="sim", input=text)
        await engine.held(hold)
        levels = services.levels()
        assert (levels.connections, levels.running, levels.queued) == ({"memory": 1}, 1, 2)
        assert levels.dropped == {"expired": 0, "evicted": 0}
        engine.release(hold)
        for _ in range(3):
            await peer.finish()
        levels = services.levels()
        assert (levels.running, levels.queued) == (0, 0)
        assert levels.dropped == {"expired": 0, "evicted": 2}  # the store has room for one
        assert levels.restarts == {}
