"""A long conversation: each turn renders what is new in it, and nothing else."""

from __future__ import annotations

import asyncio

from harness.peers import MemoryWirePeer
from harness.server import make_sim_services
from turnwire_server.adapters.renderers.sim_chatml import SimRenderer
from turnwire_server.runtime.settings import RuntimeSettings

TURNS = 100
SCRIPT = {"turnwire.sim": '{"tokens": 100, "tool_rounds": 0}'}


def text_of(turn: int) -> str:
    return f"Turn {turn}. " + "the session keeps what is there " * (30 + turn % 7)


async def test_a_turn_of_a_long_chain_renders_its_new_tokens_only():
    services = make_sim_services(runtime=RuntimeSettings(audit_rate=0.0))
    await services.start()
    peer = MemoryWirePeer(services)
    await peer.open()
    renderer = SimRenderer()
    seen = 0
    around: set[int] = set()
    previous: dict[str, str] = {}
    async with asyncio.timeout(60):
        for turn in range(1, TURNS + 1):
            text = text_of(turn)
            events = await peer.turn(
                model="sim",
                input=text,
                store=False,
                metadata=SCRIPT,
                include=["turnwire.timing"],
                **previous,
            )
            response = events[-1].response_completed.response
            previous = {"previous_response_id": response.id}
            tokens = response.turnwire.timing.tokens
            # Everything in the prompt is from the turn before, or rendered by this one.
            assert tokens.rendered == tokens.input - seen
            if turn > 1:
                assert response.turnwire.timing.rerender_reason == ""
                around.add(tokens.rendered - renderer.count(text))
            # But for the id that ended the turn: it is written again, with what closes a turn.
            seen = tokens.input + tokens.output - 1
        await peer.close()
        await services.close()
    assert seen > 30_000
    # The same few tokens of markup around each message, however long the history is.
    assert len(around) == 1
    assert 0 < around.pop() < 16
