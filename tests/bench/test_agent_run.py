"""The agent run as turns and as a rollout, small."""

from __future__ import annotations

from turnwire_bench.agent_run import SHAPES, main


def test_a_small_run_has_a_row_for_each_shape(capsys):
    assert main(["--calls", "2", "--repeats", "1", "--rate", "4000"]) == 0
    printed = capsys.readouterr().out
    assert [name for name, _, _ in SHAPES if f"\n{name} " in printed] == [
        "gRPC turns",
        "gRPC rollout",
        "WebSocket turns",
        "WebSocket rollout",
    ]
