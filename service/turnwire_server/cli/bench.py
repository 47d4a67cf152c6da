"""`turnwire bench`: measure transports, on this machine."""

from __future__ import annotations

import argparse
from typing import Any

from turnwire_server.cli.failure import CommandFailure

__all__ = ["add_parser"]

_ABSENT = (
    "turnwire bench needs {name}, which is not installed. Install it with: "
    "pip install 'turnwire[bench]'"
)


def add_parser(commands: Any) -> None:
    """Add the command to `commands`, which argparse's `add_subparsers` returned."""
    parser = commands.add_parser(
        "bench",
        help="measure what the transports cost",
        description="Measure what the transports cost, on this machine, on the simulated engine.",
    )
    # The options alone, which need no more than Python: a server that starts must not load what
    # measures it.
    from turnwire_bench.options import add_subcommands

    add_subcommands(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        from turnwire_bench.command import run_bench
    except ModuleNotFoundError as missing:
        raise CommandFailure(_ABSENT.format(name=missing.name)) from None
    return run_bench(options)
