"""Rows: what is made of the turns that were measured."""

from __future__ import annotations

import pytest

from turnwire_bench.echo_drivers import Plan, plan_of, plans_of
from turnwire_bench.network import Profile
from turnwire_bench.rows import Way, overheads_ms, row_of
from turnwire_bench.samples import Conversation, TurnSample
from turnwire_bench.scenario import Scenario

SCENARIO = Scenario("s", messages=3, answer_tokens=100)
LOOPBACK = Way(Profile("loopback"))
STABLE = {
    *("turns", "e2e_s", "ttft_ms_p50", "overhead_ms_p50", "overhead_ms_p99", "delivered_tps"),
    *("server_cpu_ms_per_turn", "client_cpu_ms_per_turn", "bytes_up", "bytes_down"),
}


def turn(total_s: float, **more: object) -> TurnSample:
    values = {"ttft_s": 0.01, "output_tokens": 101, "bytes_up": 1000, **more}
    return TurnSample(total_s=total_s, **values)  # type: ignore[arg-type]


def conversation(*turns: TurnSample, **more: object) -> Conversation:
    values = {"e2e_s": 1.0, "client_cpu_s": 0.03, "bytes_up": 10, "bytes_down": 20, **more}
    return Conversation(list(turns), **values)  # type: ignore[arg-type]


def test_overhead_is_what_the_client_saw_without_the_engine():
    found = overheads_ms(conversation(turn(0.105)), SCENARIO, 1000.0, LOOPBACK)
    assert found == [pytest.approx(5.0)]


def test_overhead_is_without_the_round_trips_and_the_upload_of_the_network():
    way = Way(Profile("", round_trip_s=0.03, bits_per_second=8e6), round_trips=3)
    found = overheads_ms(conversation(turn(0.2)), SCENARIO, 1000.0, way)
    assert found == [pytest.approx(200 - 100 - 90 - 1)]


def test_overhead_of_the_yardstick_is_behind_its_last_message():
    plan = Plan(request_size=0, messages=[(0.0, 1), (0.1, 1)], first_delta=0, tokens=101)
    found = overheads_ms(conversation(turn(0.103)), SCENARIO, 1000.0, LOOPBACK, [plan])
    assert found == [pytest.approx(3.0)]


def test_a_row_has_every_stable_key_and_leaves_the_first_turn_out_of_its_medians():
    row = row_of(
        [conversation(turn(0.9), turn(0.101), turn(0.103), server_cpu_s=0.06)],
        SCENARIO,
        1000.0,
        LOOPBACK,
    )
    assert set(row) >= STABLE
    assert row["turns"] == 3
    assert row["overhead_ms_p50"] == pytest.approx(2.0)
    assert row["overhead_ms_p99"] == pytest.approx(3.0)
    assert row["first_overhead_ms"] == pytest.approx(800.0)
    assert row["server_cpu_ms_per_turn"] == pytest.approx(20.0)
    assert row["client_cpu_ms_per_turn"] == pytest.approx(10.0)
    assert (row["bytes_up"], row["bytes_down"]) == (10, 20)


def test_a_row_tells_the_figures_of_each_repetition():
    row = row_of(
        [
            conversation(turn(0.9), turn(0.101), turn(0.103), e2e_s=3.0, server_cpu_s=0.06),
            conversation(turn(0.9), *[turn(0.109, ttft_s=None)] * 2, e2e_s=1.0),
        ],
        SCENARIO,
        1000.0,
        LOOPBACK,
    )
    told = row["by_repetition"]
    assert told["e2e_s"] == [3.0, 1.0]
    assert told["overhead_ms_p50"] == [pytest.approx(2.0), pytest.approx(9.0)]
    # What one of them does not have keeps its place, so that rows can be compared by repetition.
    assert told["ttft_ms_p50"] == [pytest.approx(10.0), None]
    assert told["server_cpu_ms_per_turn"] == [pytest.approx(20.0), None]
    assert set(told) == set(row["spread"])


def test_delivered_tokens_are_those_of_answers_behind_their_first_delta():
    row = row_of([conversation(turn(0.11), turn(0.11), turn(0.11))], SCENARIO, 1000.0, LOOPBACK)
    assert row["delivered_tps"] == pytest.approx(1000.0)
    calls = Scenario("s", tool_calls=9, tools=({"type": "function"},))
    turns = [turn(0.11), turn(0.11)]
    assert row_of([conversation(*turns)], calls, 1000.0, LOOPBACK)["delivered_tps"] is None


def test_figures_that_the_system_does_not_tell_are_null():
    row = row_of([conversation(turn(0.1, ttft_s=None), bytes_up=None)], SCENARIO, 1000.0, LOOPBACK)
    names = ("server_cpu_ms_per_turn", "ttft_ms_p50", "bytes_up")
    assert [row[name] for name in names] == [None] * 3


def test_stages_are_medians_and_those_of_a_rollout_the_mean_of_its_rounds():
    turns = [turn(0.1), *(turn(0.1, stages_ms={"render": ms}) for ms in (1.0, 2.0, 9.0))]
    assert row_of([conversation(*turns)], SCENARIO, 0.0, LOOPBACK)["stages_ms"]["render"] == 2.0
    rollout = conversation(turn(0.1), turn(0.1), run_stages_ms={"render": 5.0})
    assert row_of([rollout], SCENARIO, 0.0, LOOPBACK)["stages_ms"]["render"] == 2.5


def test_the_yardstick_sends_the_same_events_at_the_engines_pace():
    events = [(False, 500), (True, 60), (True, 61), (True, 62), (False, 900)]
    plan = plan_of(turn(0.0, output_tokens=4, events=events), 100.0)
    assert plan.messages == [(0.0, 500), (0.0, 60), (0.01, 61), (0.02, 62), (0.03, 900)]
    assert (plan.first_delta, plan.request_size, plan.tokens) == (1, 1000, 4)


def test_deltas_behind_a_calls_opening_come_with_the_last_tokens():
    events = [(False, 500), (True, 60), (True, 60), (False, 900)]
    plan = plan_of(turn(0.0, output_tokens=11, events=events), 1000.0)
    assert [due for due, _ in plan.messages] == [0.0, 0.008, 0.009, 0.01]


def test_of_calls_alike_the_one_with_the_most_events_is_the_plan_of_all():
    calls = Scenario("s", tool_calls=9, tools=({"type": "function"},))
    whole = [(False, 1), (True, 60), (True, 60), (False, 1)]
    joined = [(False, 1), (True, 120), (False, 1)]
    turns = [turn(0.0, output_tokens=9, events=events) for events in (joined, whole)]
    assert [len(plan.messages) for plan in plans_of(turns, calls, 1000.0)] == [4, 4]


def test_an_answer_has_a_message_for_each_token_however_few_the_server_sent():
    joined = [(False, 500), (True, 60), (True, 180), (False, 900)]
    (plan,) = plans_of([turn(0.0, output_tokens=5, events=joined)], SCENARIO, 1000.0)
    assert [size for _, size in plan.messages] == [500, 60, 60, 60, 60, 900]
    assert [due for due, _ in plan.messages] == [0.0, 0.0, 0.001, 0.002, 0.003, 0.004]
