"""`python -m turnwire_bench`: overhead per turn on each transport."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson
from rich.console import Console

import turnwire
from turnwire_bench.measure import run_all
from turnwire_bench.report import results_of, summarize, table_of
from turnwire_bench.scenario import ROWS, Scenario
from turnwire_server.cli.child import child_server
from turnwire_server.cli.failure import CommandFailure

__all__ = ["main"]

_TABLE_WIDTH = 120
_NOTES = """\
Overhead is what the client saw minus what the engine takes by its settings: wire, server, client \
library and the jitter of the simulated pace. Median over all turns, in parentheses the lowest and \
highest median of one conversation. The engine is simulated: its tokens cost nothing, a real one \
competes for the CPU. Loopback, one conversation at a time, connections kept alive in every row, \
no TLS: what a network adds is not in here, and it is in favour of the rows that send less."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark.

    Returns:
        The exit code.
    """
    plain = Scenario()
    parser = argparse.ArgumentParser(
        prog="turnwire_bench", description="Measure the overhead per turn on each transport."
    )
    for name, kind in (
        ("rate", float),
        ("prefill-rate", float),
        ("turns", int),
        ("history-words", int),
        ("message-words", int),
        ("output-tokens", int),
        ("repeats", int),
    ):
        default = getattr(plain, name.replace("-", "_"))
        parser.add_argument(
            f"--{name}", type=kind, default=default, metavar="N", help=f"default {default:g}"
        )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to a file")
    options = vars(parser.parse_args(arguments))
    target: Path | None = options.pop("json")
    scenario = Scenario(**options)
    if scenario.turns < 2 or scenario.repeats < 1 or min(options.values()) < 0:
        parser.error("at least 2 turns and 1 repeat are needed, and nothing below 0")
    console = Console(highlight=False)
    server_arguments = ["--engine", "sim", "--rate", str(scenario.rate)]
    server_arguments += ["--prefill-rate", str(scenario.prefill_rate)]
    try:
        with child_server(server_arguments) as server, console.status("") as status:
            results = run_all(server, ROWS, scenario, progress=status.update)
    except (CommandFailure, turnwire.TurnwireError) as failure:
        sys.stderr.write(f"turnwire_bench: {failure}\n")
        return 1
    summaries = summarize(results)
    pace = f"{scenario.rate:g} tokens/s" if scenario.rate else "as fast as possible"
    console.print(
        f"{scenario.turns} turns, {scenario.history_words} words of history, "
        f"{scenario.output_tokens} tokens said per turn, {pace}; "
        f"conversations per row: {scenario.repeats}\n"
    )
    # A narrow terminal wraps the lines; rich would leave figures out.
    Console(highlight=False, width=max(console.width, _TABLE_WIDTH)).print(table_of(summaries))
    console.print(_NOTES)
    if target is not None:
        content = results_of(scenario, results, summaries)
        target.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
        console.print(f"All samples: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
