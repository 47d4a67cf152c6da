"""`turnwire bench`, as a user runs it: every row is there, and the keys are the stable ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from turnwire_bench import __main__ as module
from turnwire_bench.converse import TRANSPORTS
from turnwire_server.cli import main

ROOT = Path(__file__).parents[2]
SCENARIO = {
    "about": "Two turns.",
    "tools": str(ROOT / "bench" / "scenarios" / "tools_coding.json"),
    "history_tokens": 100,
    "tool_calls": 1,
    "call_tokens": 20,
    "output_tokens": [5],
    "answer_tokens": 20,
}
ROW_KEYS = {
    *("scenario", "profile", "rate", "transport", "turns", "e2e_s", "ttft_ms_p50"),
    *("overhead_ms_p50", "overhead_ms_p99", "delivered_tps", "server_cpu_ms_per_turn"),
    *("client_cpu_ms_per_turn", "bytes_up", "bytes_down"),
}


def run(tmp_path, *arguments: str) -> dict:
    target = tmp_path / "result.json"
    assert main(["bench", *arguments, "--quick", "--repeats", "1", "--json", str(target)]) == 0
    result = json.loads(target.read_bytes())
    assert {"command", "machine", "versions", "commit", "notes"} <= set(result["meta"])
    assert set(result["meta"]["machine"]["memory"]) == {"hot_ns", "cold_ns", "pause_ms"}
    return result


def test_transports_has_every_row(tmp_path, capsys):
    scenario, page = tmp_path / "two.json", tmp_path / "report.html"
    scenario.write_text(json.dumps(SCENARIO))
    arguments = ["--scenario", str(scenario), "--profile", "region", "--rate", "4000"]
    result = run(tmp_path, "transports", *arguments, "--html", str(page), "--note", "A note.")
    rows = result["rows"]
    assert [(row["profile"], row["transport"]) for row in rows] == [
        ("region", transport) for transport in TRANSPORTS
    ]
    for row in rows:
        assert set(row) >= ROW_KEYS
        assert (row["scenario"], row["rate"], row["turns"]) == ("two", 4000.0, 2)
        assert row["e2e_s"] > 0
    by_name = {row["transport"]: row for row in rows}
    assert by_name["http_full"]["bytes_up"] > by_name["grpc"]["bytes_up"] > 0
    assert {row["transport"] for row in result["beside"]} == {
        *(
            "echo_grpc",
            "echo_ws",
            "ws_bare",
            "grpc_bare",
            "ws_slow_sink",
            "grpc_slow_sink",
            "sdk_plain",
        ),
    }
    assert "A note." in result["meta"]["notes"]
    said = capsys.readouterr().out
    assert all(name in said for name in TRANSPORTS)
    assert all(f">{name}<" in page.read_text(encoding="utf-8") for name in TRANSPORTS)


def test_hops_and_tls_are_in_the_way_of_the_stateless_row(tmp_path):
    scenario = tmp_path / "two.json"
    scenario.write_text(json.dumps(SCENARIO))
    result = run(
        tmp_path,
        *("transports", "--scenario", str(scenario), "--hops", "1", "--rate", "0"),
        *("--transport", "http_stateless", "--no-yardstick"),
    )
    (row,) = result["rows"]
    assert row["transport"] == "http_stateless"
    assert any("1 pass-through services" in note for note in result["meta"]["notes"])


def test_a_trajectory_is_replayed(tmp_path):
    arguments = ["--scenario", "recorded_example", "--transport", "grpc,grpc_rollout"]
    result = run(tmp_path, "transports", *arguments, "--no-yardstick", "--tls", "all")
    assert [row["turns"] for row in result["rows"]] == [3, 3]


def test_chain_has_a_row_for_each_turn(tmp_path):
    arguments = ["--turns", "4", "--tokens", "600", "--transport", "grpc,http_full"]
    result = run(tmp_path, "chain", *arguments)
    assert [(row["transport"], row["turn"]) for row in result["rows"]] == [
        (transport, turn) for transport in ("http_full", "grpc") for turn in (1, 2, 3, 4)
    ]
    assert all(row["overhead_ms"] > 0 for row in result["rows"])


def test_scale_has_a_row_for_each_rate(tmp_path, capsys):
    arguments = ["--rate", "1000", "--transport", "grpc", "--idle", "5", "--opens", "5"]
    result = run(tmp_path, "scale", *arguments)
    (row,) = result["rows"]
    assert {"transport", "rate", "sessions_per_core", "idle_kb_per_session"} <= set(row)
    assert (row["transport"], row["rate"]) == ("grpc", 1000.0)
    assert any("How the number is searched" in note for note in result["meta"]["notes"])
    # Nothing here is a terminal: each step is a line, beside the figures.
    said = capsys.readouterr()
    steps = [line.partition("  ") for line in said.err.splitlines()]
    assert "grpc, 1000 tokens/s: 16 sessions" in [step for _, _, step in steps]
    assert all(":" in time for time, _, _ in steps)
    assert "16 sessions" not in said.out


def test_scale_compares_numbers_of_workers(tmp_path):
    arguments = ["--workers", "1,2", "--rate", "1000", "--transport", "ws"]
    result = run(tmp_path, "scale", *arguments)
    assert [(row["transport"], row["workers"]) for row in result["rows"]] == [("ws", 1), ("ws", 2)]
    (ratio,) = result["ratios"]
    assert ratio["workers"] == [1, 2]
    assert set(ratio) >= {"ratio", "ratio_measured", "spread"}
    assert len(ratio["by_repetition"]) == 1
    assert any("cores_left" in note for note in result["meta"]["notes"])
    assert any("How the number is searched" in note for note in result["meta"]["notes"])


def test_micro_measures_every_group(tmp_path):
    target = tmp_path / "result.json"
    # In a process of its own: nothing traces the pieces, and what this one holds is not collected.
    subprocess.run(
        [sys.executable, "-m", "turnwire", "bench", "micro", "--quick", "--json", str(target)],
        check=True,
        capture_output=True,
        timeout=240,
    )
    rows = json.loads(target.read_bytes())["rows"]
    assert {row["group"] for row in rows} == {"codec", "session", "render", "outbox"}
    assert all(row["us"] > 0 for row in rows)


def test_peers_says_what_a_server_lacks(tmp_path, unused_tcp_port, capsys):
    peer = f"nobody=http://127.0.0.1:{unused_tcp_port}/v1"
    result = run(tmp_path, "peers", "--peer", peer, "--transport", "ws")
    ours, theirs = result["rows"]
    assert (ours["server"], ours["transport"]) == ("turnwire", "ws")
    assert set(ours) >= ROW_KEYS - {"memory_kb_per_session"}
    assert "failure" in theirs
    assert "nobody, ws:" in capsys.readouterr().out


def test_a_bar_is_measured_by_itself(tmp_path, capsys):
    bars = run(tmp_path, "bars", "--only", "burst")["bars"]
    assert bars[0]["bar"] == "burst"
    assert {"limit", "measured", "spread", "met", "what"} <= set(bars[0])
    assert "208 events" in capsys.readouterr().out


def test_the_help_says_which_bars_are_repeated_more_often(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "bars", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "5 times as many of what takes seconds: overhead, burst, history, chain" in said


def test_the_groups_of_bars_are_listed(capsys):
    assert main(["bench", "bars", "--list"]) == 0
    assert "internet" in capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["transports", "--scenario", "nothing"], "There is no scenario 'nothing'"),
        (["transports", "--transport", "pigeon"], "There is no 'pigeon' here"),
        (["chain", "--turns", "2"], "at least 4 turns"),
        (["peers", "--only-peers"], "--only-peers needs a --peer"),
        (["peers", "--peer", "x"], "is no peer"),
        (["bars", "--only", "height"], "There is no bar 'height'"),
        (["micro", "--json", "."], "Is a directory"),
    ],
)
def test_what_cannot_be_measured_is_one_message(arguments, what, capsys):
    assert main(["bench", *arguments]) == 1
    said = capsys.readouterr().err
    assert said.startswith("turnwire bench: ")
    assert what in said


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["transports", "--profile", "moon"],
        ["transports", "--rate", "fast"],
        ["transports", "--rate", "-1"],
        ["scale", "--opens", "-1"],
        ["transports", "--tls", "some"],
    ],
)
def test_options_that_mean_nothing_are_misuse(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        main(["bench", *arguments])
    assert left.value.code == 2


def test_the_module_runs_as_the_command_does(capsys):
    assert module.main(["bars", "--list"]) == 0
    assert "overhead" in capsys.readouterr().out


def test_an_install_without_the_extra_says_what_to_install(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "turnwire_bench.command", raising=False)
    monkeypatch.setitem(sys.modules, "turnwire_bench.command", None)
    assert main(["bench", "micro"]) == 1
    assert "pip install 'turnwire[bench]'" in capsys.readouterr().err
