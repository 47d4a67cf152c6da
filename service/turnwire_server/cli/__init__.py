"""The command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from turnwire_server.cli import bench, chat, conformance, db, demo, models, serve, usage
from turnwire_server.cli.failure import CommandFailure

__all__ = ["main"]

_DESCRIPTION = "The Responses API over persistent connections: gRPC, WebSocket and HTTP."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments; those of the process when None.

    Returns:
        The exit code: 0 done, 1 failed with one clear message, 2 misused, 130 interrupted.
    """
    parser = argparse.ArgumentParser(prog="turnwire", description=_DESCRIPTION)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (serve, chat, models, demo, conformance, usage, db, bench):
        command.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        code = options.run(options)
    except CommandFailure as failure:
        sys.stderr.write(f"turnwire: {failure}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    assert isinstance(code, int)  # every command's `run` returns one
    return code
