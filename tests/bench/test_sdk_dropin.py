"""The official SDK, plain and with the drop-in, small."""

from __future__ import annotations

from turnwire_bench.sdk_dropin import SHAPES, main


def test_a_small_run_has_a_row_for_each_shape(capsys):
    assert main(["--turns", "2", "--words", "50", "--repeats", "1"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{shape} " in printed for shape in SHAPES)
