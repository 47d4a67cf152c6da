from __future__ import annotations

from faults.plan import ACTIONS, plan_of
from harness.grpc_backends import BACKENDS


def test_a_seed_always_stands_for_the_same_plan() -> None:
    assert [plan_of(seed) for seed in range(50)] == [plan_of(seed) for seed in range(50)]
    assert len({str(plan_of(seed)) for seed in range(50)}) > 45


def test_every_action_strikes_first_in_a_run_of_seeds_and_every_wire_works() -> None:
    plans = [plan_of(seed) for seed in range(len(ACTIONS))]
    assert {plan.faults[0].action for plan in plans} == set(ACTIONS)
    assert all(
        {agent.wire for agent in plan.agents} == {"grpc", "websocket", "http"} for plan in plans
    )


def test_every_action_strikes_first_on_both_back_ends_of_grpc() -> None:
    plans = [plan_of(seed) for seed in range(2 * len(ACTIONS))]
    met = {(plan.faults[0].action, plan.grpc_backend) for plan in plans}
    assert met == {(action, backend) for action in ACTIONS for backend in BACKENDS}


def test_plans_differ_in_what_is_stored_and_in_their_shape() -> None:
    agents = [agent for seed in range(50) for agent in plan_of(seed).agents]
    assert {agent.store for agent in agents} == {True, False}
    assert {agent.rollout for agent in agents if agent.wire != "http"} == {True, False}
    assert not any(agent.rollout or not agent.store for agent in agents if agent.wire == "http")
