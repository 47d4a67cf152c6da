"""The options of `turnwire bench`. Imports nothing that an install may lack."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from turnwire_bench.repetitions import SHORT_FACTOR, SHORT_GROUPS

__all__ = ["add_subcommands"]

_EPILOG: Final = """\
Everything runs on this machine: the server on its simulated engine, the networks, and the load are
processes of their own. docs/bench.md has the method, and what each figure is.
"""
_PROFILES: Final = ("loopback", "region", "internet")


def add_subcommands(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands to the parser of `turnwire bench`; each sets `subcommand`."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(
        title="benchmarks", metavar="BENCHMARK", dest="subcommand", required=True
    )
    _add_transports(commands)
    _add_scale(commands)
    _add_chain(commands)
    _add_micro(commands)
    _add_peers(commands)
    _add_bars(commands)


def _add_transports(commands: Any) -> None:
    parser = _command(
        commands, "transports", "the same agent run over every transport", with_html=True
    )
    parser.add_argument(
        "--scenario",
        action="append",
        metavar="NAME|FILE",
        help="a name or a file, JSON or JSON lines; may be repeated (default agent_rollout)",
    )
    parser.add_argument(
        "--profile",
        type=_profiles,
        metavar="NAME,…",
        help="loopback, region (2 ms), internet (30 ms, 50 Mbit/s) (default loopback,internet; "
        "loopback with --quick)",
    )
    parser.add_argument(
        "--rate",
        type=_rates,
        default=(1000.0,),
        metavar="N,…",
        help="tokens per second of the simulated engine (default 1000)",
    )
    parser.add_argument(
        "--transport", type=_names, metavar="NAME,…", help="these rows only (default all)"
    )
    parser.add_argument(
        "--hops",
        type=_count,
        default=0,
        metavar="N",
        help="pass-through services in the way of http_stateless (default 0)",
    )
    parser.add_argument(
        "--tls",
        choices=("none", "stateless", "all"),
        default="stateless",
        help="which rows are encrypted (default stateless: the one that connects for each call)",
    )
    parser.add_argument(
        "--no-yardstick", action="store_true", help="leave out the echo and the slow sinks"
    )


def _add_scale(commands: Any) -> None:
    parser = _command(commands, "scale", "sessions per core, idle sessions, simultaneous opens")
    parser.add_argument(
        "--rate", type=_rates, default=(65.0, 1000.0), metavar="N,…", help="default 65,1000"
    )
    parser.add_argument("--transport", type=_names, metavar="NAME,…", help="ws, grpc (both)")
    parser.add_argument(
        "--idle", type=_counts, metavar="N,…", help="idle sessions (default 100,1000,5000)"
    )
    parser.add_argument("--opens", type=_count, metavar="N", help="opens at once (default 5000)")
    parser.add_argument(
        "--workers",
        type=_counts,
        metavar="N,…",
        help="compare servers with so many workers, for example 1,2, and nothing else",
    )


def _add_chain(commands: Any) -> None:
    parser = _command(commands, "chain", "what a turn costs as its conversation grows")
    parser.add_argument("--turns", type=_count, metavar="N", help="default 200")
    parser.add_argument(
        "--tokens", type=_count, metavar="N", help="length at the end (default 100000)"
    )
    parser.add_argument(
        "--transport",
        type=_names,
        metavar="NAME,…",
        help="default http_full,http_chain,ws,grpc",
    )


def _add_micro(commands: Any) -> None:
    parser = _command(commands, "micro", "single pieces of code: codec, session, render, outbox")
    parser.add_argument("--group", type=_names, metavar="NAME,…", help="these groups only")


def _add_peers(commands: Any) -> None:
    parser = _command(commands, "peers", "other servers of the same API beside this one")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=URL[,MODEL]",
        help="base URL of a server; may be repeated",
    )
    parser.add_argument("--scenario", metavar="NAME|FILE", help="default answers")
    parser.add_argument("--rate", type=_rate, default=1000.0, metavar="N", help="default 1000")
    parser.add_argument(
        "--transport", type=_names, metavar="NAME,…", help="default http_full,http_chain,ws"
    )
    parser.add_argument("--api-key", metavar="KEY", help="sent to the peers as a bearer token")
    parser.add_argument(
        "--pid",
        action="append",
        type=_count,
        default=[],
        metavar="N",
        help="process of the peers in their order, to show its CPU; 0 for none",
    )
    parser.add_argument("--only-peers", action="store_true", help="leave this server out")


def _add_bars(commands: Any) -> None:
    parser = _command(
        commands,
        "bars",
        "the bars of the design, each measured by itself",
        repeated=f"; {SHORT_FACTOR} times as many of what takes seconds: {', '.join(SHORT_GROUPS)}",
    )
    parser.add_argument("--only", type=_names, metavar="NAME,…", help="these groups, see --list")
    parser.add_argument("--list", action="store_true", help="print the groups and stop")


def _command(
    commands: Any, name: str, what: str, *, with_html: bool = False, repeated: str = ""
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}."
    )
    parser.add_argument(
        "--quick", action="store_true", help="smallest sizes: to see that it works, not to quote"
    )
    parser.add_argument(
        "--repeats", type=_count, metavar="N", help=f"repetitions (default 5{repeated})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    if with_html:
        parser.add_argument("--html", type=Path, metavar="FILE", help="write a report with plots")
    parser.add_argument(
        "--note", action="append", default=[], metavar="TEXT", help="goes into the figures' notes"
    )
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _profiles(text: str) -> tuple[str, ...]:
    names = _names(text)
    for name in names:
        if name not in _PROFILES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(_PROFILES)}")
    return names


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 <= rate <= 1e6:
        raise argparse.ArgumentTypeError("a rate is from 0 to 1,000,000")
    return rate


def _rates(text: str) -> tuple[float, ...]:
    return tuple(_rate(part) for part in _names(text))


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no count")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in _names(text))
