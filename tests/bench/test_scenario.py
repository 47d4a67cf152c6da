"""Scenarios are data, and say what each turn brings."""

from __future__ import annotations

import json

import pytest

from turnwire_bench.failure import BenchFailure
from turnwire_bench.scenario import Scenario, load_scenario, scenario_names
from turnwire_server.adapters.engines.sim_script import read_script, read_trace

TOOL = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {}}}


def test_the_scenarios_that_come_along_can_be_read():
    names = scenario_names()
    assert {"agent_rollout", "answers", "long_answer", "quick", "recorded_example"} <= set(names)
    for name in names:
        scenario = load_scenario(name)
        assert scenario.name == name
        assert scenario.about
        assert Scenario.from_json(json.loads(json.dumps(scenario.to_json()))) == scenario


def test_the_agent_rollout_is_that_of_the_design():
    scenario = load_scenario("agent_rollout")
    assert (scenario.tool_calls, scenario.call_tokens) == (25, 60)
    assert scenario.history_tokens == 30_000
    assert scenario.turns == 26


def test_the_scenario_for_slow_rates_takes_seconds_at_65_tokens_per_second():
    scenario = load_scenario("short_answers")
    assert scenario.history_tokens == 30_000
    turns = range(scenario.turns)
    assert sum(scenario.engine_s(turn, scenario.answer_tokens, 65.0) for turn in turns) < 6


def test_the_first_turn_brings_the_history_in_messages_of_both_sides():
    scenario = Scenario("s", history_tokens=600, history_message_tokens=250, message_tokens=7)
    items = scenario.input(0)
    assert [item["role"] for item in items] == ["user", "assistant", "user", "user"]
    assert [len(item["content"].split()) for item in items] == [250, 250, 100, 7]


def test_a_run_is_a_message_then_its_calls_then_an_answer():
    scenario = Scenario("s", messages=2, tool_calls=2, tools=(TOOL,), history_tokens=100)
    turns = range(scenario.turns)
    assert [scenario.begins_run(turn) for turn in turns] == [True, False, False] * 2
    assert [scenario.is_answer(turn) for turn in turns] == [False, False, True] * 2
    assert len(scenario.input(3)) == 1  # only the first message brings the history


def test_outputs_answer_the_calls_and_their_lengths_come_in_turn():
    scenario = Scenario("s", tool_calls=2, tools=(TOOL,), output_tokens=(5, 9))
    (output,) = scenario.outputs(1, ["call_1"])
    assert (output["type"], output["call_id"]) == ("function_call_output", "call_1")
    assert len(output["output"].split()) == 9
    assert len(scenario.outputs(2, ["call_2"])[0]["output"].split()) == 5


def test_the_script_is_one_that_the_simulated_engine_takes():
    scenario = Scenario("s", tool_calls=3, call_tokens=40, answer_tokens=11, tools=(TOOL,))
    script = read_script(scenario.script(500.0))
    assert (script.tool_rounds, script.call_tokens, script.tokens) == (3, 40, 11)
    assert script.tokens_per_second == 500.0
    options = scenario.options("tag 1", 500.0)
    assert options["instructions"].startswith("Conversation tag 1.")
    assert len(options["metadata"]["turnwire.sim"]) <= 512


def test_engine_time_is_a_period_for_each_token_but_the_first():
    scenario = Scenario("s")
    assert scenario.engine_s(0, 101, 1000.0) == pytest.approx(0.1)
    assert scenario.engine_s(0, 101, 0.0) == 0.0


def test_a_trajectory_has_its_own_inputs_outputs_and_trace():
    scenario = load_scenario("recorded_example")
    assert scenario.turns == 3
    assert scenario.script(1000.0) is None
    assert scenario.input(0)[0]["role"] == "user"
    outputs = scenario.outputs(1, ["a", "b"])
    assert [item["call_id"] for item in outputs] == ["a", "b"]
    assert outputs[0]["output"].startswith("test_one.py")
    assert len(read_trace(scenario.trace())) == 3
    assert [scenario.is_answer(turn) for turn in range(3)] == [False, False, True]
    with pytest.raises(BenchFailure, match="2 outputs for 1 calls"):
        scenario.outputs(1, ["a"])


def test_recorded_times_are_the_engines_time(tmp_path):
    path = tmp_path / "run.jsonl"
    says = {"steps": [[0.25, "Hello"], [0.5, " there"]]}
    path.write_text(json.dumps({"input": [{"role": "user", "content": "Hi"}], "says": says}))
    assert load_scenario(str(path)).engine_s(0, 9, 1000.0) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.json", "{", "cannot be read"),
        ("a.json", "[]", "cannot be read"),
        ("a.json", '{"colour": 1}', "This is no scenario"),
        ("a.json", '{"messages": 0}', "sizes that cannot be"),
        ("a.json", '{"tool_calls": 1}', "calls but no tools"),
        ("a.json", '{"tools": "missing.json"}', "cannot be read"),
        ("a.jsonl", '{"says": {"text": "x"}}', "does not begin with an input"),
        ("a.jsonl", "", "does not begin with an input"),
        (
            "a.jsonl",
            '{"input": [], "says": {"text": "x"}}\n{"outputs": []}',
            "Turn 2 of the trajectory 'a' lacks",
        ),
    ],
)
def test_what_is_no_scenario_is_refused(tmp_path, name, text, what):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BenchFailure, match=what):
        load_scenario(str(path))


def test_an_unknown_scenario_is_refused_with_the_known_ones():
    with pytest.raises(BenchFailure, match=r"no scenario 'nothing'; known are agent_rollout"):
        load_scenario("nothing")
