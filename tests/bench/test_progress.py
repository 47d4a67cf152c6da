"""What a run says while it works, on a terminal and where there is none."""

from __future__ import annotations

import io

from rich.console import Console

from turnwire_bench.progress import Steps


def said(*, is_terminal: bool) -> str:
    seconds = iter([0.0, 1.0, 1.4, 75.2])
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=40, highlight=False)
    with Steps(console, clock=lambda: next(seconds)) as steps:
        steps("warm-up: [ws]")
        steps("ws, 65 tokens/s: a step whose line is longer than the width")
    return out.getvalue()


def test_without_a_terminal_each_step_is_a_line_with_the_time_since_the_start():
    assert said(is_terminal=False).splitlines() == [
        " 0:00  warm-up: [ws]",
        " 1:14  ws, 65 tokens/s: a step whose line is longer than the width",
    ]


def test_on_a_terminal_one_line_changes_and_is_gone_at_the_end():
    text = said(is_terminal=True)
    assert "0:00  warm-up: [ws]\n 1:14" not in text
    assert text.endswith("\x1b[2K")  # the line is cleared
