"""`python -m turnwire_bench`: the same as `turnwire bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from turnwire_bench.command import run_bench
from turnwire_bench.options import add_subcommands

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark; return the exit code."""
    parser = argparse.ArgumentParser(prog="turnwire_bench")
    add_subcommands(parser)
    return run_bench(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
