"""The benchmark: its figures come from its samples, and a small run works."""

from __future__ import annotations

import json

import pytest

import turnwire
from turnwire_bench.__main__ import main
from turnwire_bench.measure import Conversation, TurnSample
from turnwire_bench.report import Figure, summarize
from turnwire_bench.scenario import ROWS, Scenario


def sample(overhead_ms: float, rendered: int = 10) -> TurnSample:
    return TurnSample(
        overhead_ms=overhead_ms,
        ttft_ms=overhead_ms / 2,
        total_ms=overhead_ms + 100,
        tokens_sent=10,
        tokens_rendered=rendered,
        tokens_input=500,
        bytes_up=300,
        bytes_down=4000,
    )


def stats(*, prompt: int, cached: int, output: int) -> turnwire.TurnStats:
    return turnwire.TurnStats(
        response_id="resp_1",
        status="completed",
        ttft_s=0.1,
        total_s=1.0,
        input_items=1,
        tokens_input=prompt,
        tokens_sent=10,
        tokens_rendered=10,
        tokens_cached=cached,
        tokens_output=output,
        bytes_up=1,
        bytes_down=1,
        overhead_ms=None,
        timing=None,
    )


def test_engine_time_is_prefill_of_what_is_not_cached_and_a_period_per_further_token():
    scenario = Scenario(rate=1000.0, prefill_rate=2000.0)
    assert scenario.engine_s(stats(prompt=3000, cached=1000, output=101)) == pytest.approx(1.1)


def test_an_engine_as_fast_as_it_is_read_takes_no_time():
    assert Scenario(rate=0.0).engine_s(stats(prompt=3000, cached=0, output=101)) == 0.0


def test_a_figure_is_the_median_and_the_spread_of_the_conversations():
    assert Figure.of([[1, 2, 9], [3, 4, 5]]) == Figure(3.5, 2, 4)


def test_the_first_turn_is_apart_from_the_later_ones():
    conversations = [
        Conversation((sample(90.0, rendered=8000), sample(1.0), sample(3.0)), server_cpu_ms=None)
    ]
    (summary,) = summarize({"row": conversations})
    assert summary.overhead_ms.median == 2.0
    assert summary.first_overhead_ms.median == 90.0
    assert summary.tokens_rendered == 10
    assert summary.server_cpu_ms is None


def test_messages_are_as_long_as_the_scenario_says_and_differ():
    scenario = Scenario(history_words=100, message_words=7)
    first, second, third = (scenario.message(turn)["content"] for turn in range(3))
    assert (len(first.split()), len(second.split())) == (100, 7)
    assert second != third


def test_a_small_run_measures_every_row_and_writes_its_samples(tmp_path, capsys):
    target = tmp_path / "result.json"
    arguments = ["--turns", "3", "--repeats", "1", "--history-words", "300", "--rate", "0"]
    assert main([*arguments, "--output-tokens", "20", "--json", str(target)]) == 0
    said = capsys.readouterr().out
    written = json.loads(target.read_bytes())
    assert set(written["conversations"]) == {row.name for row in ROWS}
    by_row = {summary["row"]: summary for summary in written["summary"]}
    for row in ROWS:
        assert row.name in said
        assert by_row[row.name]["overhead_ms"]["median"] > 0
        if row.history == "session":
            # Only what is new is tokenized, on every wire that can continue.
            assert by_row[row.name]["tokens_rendered"] == by_row[row.name]["tokens_sent"] < 100
        else:
            assert by_row[row.name]["tokens_rendered"] > 300


def test_options_that_measure_nothing_are_refused(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--turns", "1"])
    assert left.value.code == 2
    assert "at least 2 turns" in capsys.readouterr().err
