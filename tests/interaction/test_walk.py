"""Random clients: whatever they do, each response has its own chain for a context."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.peers import ends_turn, lane_of
from harness.reading import arm_of, response_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import script
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.renderers.sim_tokens import sim_tokens

_LANES = ("a", "b", "c", None)
_ACTIONS = 60


@dataclass
class _Model:
    """What a client knows: the chain of every response, and what it waits for."""

    chains: dict[str, list[str]] = field(default_factory=dict)
    """Response id -> the user texts of its context, oldest first."""
    sent: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """`event_id` -> its own text and its parent."""
    waiting: dict[str | None, int] = field(default_factory=dict)
    """Creates without an end so far, by lane."""
    running: dict[str | None, str] = field(default_factory=dict)
    """Response that is open, by lane."""
    steered: set[str] = field(default_factory=set)
    """Responses whose successor was not seen so far; it counts as waiting."""


def _create(model: _Model, random_: random.Random, number: int) -> dict[str, Any]:
    text, lane = f"user{number}word", random_.choice(_LANES)
    parents = [None, "resp_missing", *list(model.chains)[-6:], *model.running.values()]
    parent = random_.choice(parents)
    model.sent[f"e{number}"] = (text, parent)
    model.waiting[lane] = model.waiting.get(lane, 0) + 1
    create: dict[str, Any] = {
        "input": text,
        "event_id": f"e{number}",
        "store": random_.random() < 0.3,
        "metadata": script(
            tokens=random_.randint(0, 40), **({"fail_after": 5} if number % 11 == 0 else {})
        ),
    }
    if parent is not None:
        create["previous_response_id"] = parent
    if lane is not None:
        create["stream_id"] = lane
    if number % 9 == 0:
        create["temperature"] = 9
    return create


def _take(model: _Model, event: ServerEvent) -> None:
    lane, arm = lane_of(event), arm_of(event)
    if arm == "response_created":
        response = event.response_created.response
        if response.turnwire.HasField("event_id"):
            text, parent = model.sent[response.turnwire.event_id]
            own = [text]
        else:
            parent, own = response.previous_response_id, []
            model.steered.remove(parent)
        assert (parent or "") == response.previous_response_id
        assert parent is None or parent in model.chains, "continues what nobody completed"
        model.chains[response.id] = [*model.chains.get(parent or "", []), *own]
        model.running[lane] = response.id
    elif arm == "response_steer_accepted":
        target = event.response_steer_accepted.steer.previous_response_id
        if target not in model.steered:
            model.steered.add(target)
            model.waiting[lane] += 1
    elif arm == "response_steer_failed" and event.response_steer_failed.steer.id:
        target = event.response_steer_failed.steer.previous_response_id
        if target in model.steered:
            model.steered.remove(target)
            model.waiting[lane] -= 1
    if not ends_turn(event):
        return
    model.waiting[lane] -= 1
    if arm != "error":
        assert model.running.pop(lane) == response_of([event]).id
        if arm == "response_failed":
            del model.chains[response_of([event]).id]


@requirement("lanes.walk")
@pytest.mark.parametrize("seed", range(6))
async def test_a_random_client_finds_no_response_with_another_ones_context(
    connect: Connect, seed: int
) -> None:
    connect.parts.sim = SimSettings(step_tokens=3)
    random_ = random.Random(seed)
    peer = await connect()
    model = _Model()
    everything: dict[str, list[str]] = {}
    for number in range(_ACTIONS):
        action = random_.random()
        if action < 0.6:
            await peer.create(_create(model, random_, number))
        elif action < 0.7 and model.running:
            target = random_.choice(list(model.running.values()))
            await peer.send({"type": "response.cancel", "response_id": target})
        elif action < 0.75:
            target = random_.choice([*model.chains, "resp_missing"])
            await peer.send(
                {"type": "response.steer", "previous_response_id": target, "input": "no"}
            )
        for _ in range(random_.randint(0, 12)):
            if not any(model.waiting.values()):
                break
            _take(model, await peer.receive())
            everything |= model.chains
    while any(model.waiting.values()):
        _take(model, await peer.receive())
        everything |= model.chains
    engine = connect.stack.engine
    assert len(engine.requests) > 10
    for request in engine.requests:
        text = b"".join(map(sim_tokens().token_bytes, request.ids)).decode()
        said = [word for word in text.replace("\n", " ").split() if word.startswith("user")]
        found = [word.removeprefix("user\n") for word in said if word.endswith("word")]
        assert found == everything[request.request_id]
