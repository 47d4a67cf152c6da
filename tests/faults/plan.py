"""What a seed stands for: which agents run, and what breaks when."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal, get_args

from harness.grpc_backends import BACKENDS
from turnwire_server.transports.grpc import GrpcBackend

__all__ = ["ACTIONS", "Action", "AgentPlan", "Fault", "Plan", "Wire", "plan_of"]

Wire = Literal["grpc", "websocket", "http"]

Action = Literal["kill", "drain", "freeze", "cut", "stall", "stall_and_cut"]
"""What breaks: the server is killed (and started again), told to end (and started again) or
stopped for a while; the connections of one agent are reset, are stalled for a while, or are
stalled and then reset."""

ACTIONS: Final[tuple[Action, ...]] = get_args(Action)

_LAST_EVENT: Final = 60
"""A run has about so many events: a fault strikes at one of them, or between two runs."""
_MOST_FAULTS: Final = 3
_SHORTEST_S: Final = 0.05
_LONGEST_S: Final = 0.6


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """One agent that works."""

    name: str
    wire: Wire
    store: bool
    """Whether its responses are stored."""
    runs: int
    """How many runs of three tool calls it does, one after another."""
    rollout: bool
    """Whether a run is one response; persistent wires only."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that breaks."""

    agent: int
    """Index of the agent whose events are counted, and whose connections break."""
    at_event: int
    """It strikes when that agent has seen so many events."""
    action: Action
    seconds: float
    """How long the server or the connection stands still, where it does."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a seed decides."""

    seed: int
    agents: tuple[AgentPlan, ...]
    faults: tuple[Fault, ...]
    grpc_backend: GrpcBackend
    """What serves gRPC."""

    def __str__(self) -> str:
        """Return it in one line, for a report."""
        agents = ", ".join(
            f"{agent.wire}{'' if agent.store else ' store:false'}"
            f"{' rollout' if agent.rollout else ''}"
            for agent in self.agents
        )
        faults = ", ".join(
            f"{fault.action} at event {fault.at_event} of {self.agents[fault.agent].name}"
            for fault in self.faults
        )
        return f"{self.grpc_backend}; {agents}; {faults}"


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed: the same one every time."""
    chance = random.Random(f"turnwire faults {seed}")
    agents = []
    for wire in ("grpc", "websocket", "http"):
        is_persistent = wire != "http"
        agents.append(
            AgentPlan(
                name=wire,
                wire=wire,
                store=not is_persistent or chance.random() < 0.6,
                runs=chance.choice((1, 1, 2)),
                rollout=is_persistent and chance.random() < 0.2,
            )
        )
    faults = [
        Fault(
            agent=chance.randrange(len(agents)),
            at_event=chance.randrange(_LAST_EVENT),
            action=chance.choice(ACTIONS),
            seconds=chance.uniform(_SHORTEST_S, _LONGEST_S),
        )
        for _ in range(chance.randint(1, _MOST_FAULTS))
    ]
    # The first action goes round, so that a short run of seeds has met every one of them.
    first = faults[0]
    faults[0] = Fault(first.agent, first.at_event, ACTIONS[seed % len(ACTIONS)], first.seconds)
    # Each action meets both back ends within twice as many seeds as there are actions.
    backend = BACKENDS[(seed // len(ACTIONS) + seed) % len(BACKENDS)]
    return Plan(seed, tuple(agents), tuple(faults), backend)
