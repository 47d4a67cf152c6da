"""`turnwire bench`: what its subcommands do with their options."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
from rich.console import Console

from turnwire_bench import (
    bars,
    chain,
    converse,
    micro,
    peer_driver,
    peers,
    scale,
    scale_workers,
    tables,
)
from turnwire_bench.bar import Bar
from turnwire_bench.failure import BenchFailure
from turnwire_bench.html_report import html_report
from turnwire_bench.network import PROFILES
from turnwire_bench.progress import Progress, Steps
from turnwire_bench.scenario import load_scenario
from turnwire_bench.transports import BESIDE, TransportsSettings, run_transports

__all__ = ["run_bench"]

Result = dict[str, Any]

_TABLE_WIDTH: Final = 132
_QUICK_REPEATS: Final = 2
_REPEATS: Final = 5
_SCALE_REPEATS: Final = 3


def run_bench(options: argparse.Namespace) -> int:
    """Run a subcommand.

    Returns:
        The exit code.
    """
    console = Console(highlight=False)
    # Not to the standard output: what is sent elsewhere from there has the figures alone.
    steps = Steps(Console(stderr=True, highlight=False))
    runs: Mapping[str, Callable[[argparse.Namespace, Console, Progress], Result | None]] = {
        "transports": _transports,
        "scale": _scale,
        "chain": _chain,
        "micro": _micro,
        "peers": _peers,
        "bars": _bars,
    }
    try:
        for path in (options.json, getattr(options, "html", None)):
            _check_writable(path)
        with steps:
            result = runs[options.subcommand](options, console, steps)
        if result is None:
            return 0
        result["meta"]["notes"] += options.note
        for note in result["meta"]["notes"]:
            console.print(f"[dim]{note}[/dim]")
        if options.json is not None:
            options.json.write_bytes(
                orjson.dumps(_rounded(result), option=orjson.OPT_INDENT_2) + b"\n"
            )
            console.print(f"Figures: {options.json}")
        if getattr(options, "html", None) is not None:
            options.html.write_text(html_report(result), encoding="utf-8")
            console.print(f"Report: {options.html}")
    except (BenchFailure, OSError) as failure:
        sys.stderr.write(f"turnwire bench: {failure}\n")
        return 1
    return 0


def _transports(options: argparse.Namespace, console: Console, progress: Progress) -> Result:
    default = ["quick"] if options.quick else ["agent_rollout"]
    profiles = options.profile or (("loopback",) if options.quick else ("loopback", "internet"))
    settings = TransportsSettings(
        scenarios=tuple(load_scenario(name) for name in options.scenario or default),
        profiles=tuple(PROFILES[name] for name in profiles),
        rates=options.rate,
        transports=_chosen(options.transport, converse.TRANSPORTS),
        repeats=_repeats(options),
        hops=options.hops,
        tls=options.tls,
        held_sessions=8 if options.quick else 20,
        beside=() if options.no_yardstick else BESIDE,
    )
    result = run_transports(settings, progress)
    for place, group in itertools.groupby(result["rows"], key=_place):
        scenario, profile, rate = place
        pace = f"{rate:g} tokens/s" if rate else "as fast as it is read"
        rows = list(group)
        title = f"{scenario}: {rows[0]['turns']} turns, {profile}, {pace}"
        beside = [row for row in result["beside"] if _place(row) == place]
        _print(console, tables.transports_table(rows, beside, title))
    return result


def _place(row: Mapping[str, Any]) -> tuple[str, str, float]:
    return row["scenario"], row["profile"], row["rate"]


def _scale(options: argparse.Namespace, console: Console, progress: Progress) -> Result:
    quick = options.quick
    settings = scale.ScaleSettings(
        rates=options.rate,
        seconds=0.5 if quick else 6.0,
        most_sessions=16 if quick else 2000,
        idle=options.idle or ((20,) if quick else (100, 1000, 5000)),
        opens=options.opens if options.opens is not None else (50 if quick else 5000),
        wires=_chosen(options.transport, scale.WIRES),
        give_back_s=0.0 if quick else 5.0,
        most_at_rest=0 if quick else 1000,
    )
    if options.workers:
        return _scale_workers(options, settings, console, progress)
    result = scale.run_scale(settings, progress)
    for table in tables.scale_table(result["rows"], result["idle"]):
        _print(console, table)
    for opens in result["opens"]:
        console.print(tables.opens_line(opens))
    return result


def _scale_workers(
    options: argparse.Namespace, settings: scale.ScaleSettings, console: Console, progress: Progress
) -> Result:
    if len(set(options.workers)) < 2 or min(options.workers) < 1:
        raise BenchFailure("Two numbers of workers to compare are needed: --workers 1,2.")
    repeats = options.repeats or (1 if options.quick else _SCALE_REPEATS)
    workers = tuple(dict.fromkeys(options.workers))
    result = scale_workers.run_scale_workers(settings, workers, repeats=repeats, progress=progress)
    _print(console, tables.scale_table(result["rows"], [])[0])
    _print(console, tables.ratios_table(result["ratios"]))
    return result


def _chain(options: argparse.Namespace, console: Console, progress: Progress) -> Result:
    turns = options.turns or (10 if options.quick else 200)
    if turns < 4:
        raise BenchFailure("A chain of at least 4 turns is needed.")
    settings = chain.ChainSettings(
        turns=turns,
        tokens=options.tokens or (3_000 if options.quick else 100_000),
        repeats=_repeats(options),
        transports=_chosen(options.transport, chain.CHAIN_TRANSPORTS, converse.TRANSPORTS),
    )
    result = chain.run_chain(settings, progress)
    _print(console, tables.chain_table(result["rows"], result["growth"]))
    return result


def _micro(options: argparse.Namespace, console: Console, progress: Progress) -> Result:
    settings = micro.MicroSettings(
        groups=_chosen(options.group, micro.GROUPS),
        seconds=0.01 if options.quick else 0.2,
        repeats=_repeats(options),
        tools_bytes=6_000 if options.quick else 60_000,
    )
    result = micro.run_micro(settings, progress)
    _print(console, tables.micro_table(result["rows"]))
    return result


def _peers(options: argparse.Namespace, console: Console, progress: Progress) -> Result:
    scenario = options.scenario or ("quick" if options.quick else "answers")
    settings = peers.PeersSettings(
        peers=tuple(peers.parse_peer(text) for text in options.peer),
        scenario=load_scenario(scenario),
        rate=options.rate,
        repeats=_repeats(options),
        transports=_chosen(options.transport, peer_driver.PEER_TRANSPORTS),
        api_key=options.api_key,
        pids=tuple(options.pid),
        is_alone=options.only_peers,
    )
    if settings.is_alone and not settings.peers:
        raise BenchFailure("--only-peers needs a --peer.")
    result = peers.run_peers(settings, progress)
    _print(console, tables.peers_table(result["rows"]))
    for row in result["rows"]:
        if "failure" in row:
            text = f"{row['server']}, {row['transport']}: {row['failure']}"
            console.print(text, style="red", markup=False)
    return result


def _bars(options: argparse.Namespace, console: Console, progress: Progress) -> Result | None:
    if options.list:
        for name in bars.BARS:
            console.print(name)
        return None
    settings = bars.BarsSettings(options.only or (), _repeats(options), options.quick)
    measured: list[Bar] = []
    try:
        return bars.run_bars(settings, progress, on_bar=measured.append)
    finally:
        # What was measured is worth something, also when the next thing cannot be.
        if measured:
            _print(console, tables.bars_table(measured))


def _repeats(options: argparse.Namespace) -> int:
    return max(1, options.repeats or (_QUICK_REPEATS if options.quick else _REPEATS))


def _chosen(
    names: tuple[str, ...] | None, default: tuple[str, ...], known: tuple[str, ...] | None = None
) -> tuple[str, ...]:
    """Return the names asked for, in the usual order."""
    known = known or default
    for name in names or ():
        if name not in known:
            raise BenchFailure(f"There is no {name!r} here; known are {', '.join(known)}.")
    return tuple(name for name in known if name in names) if names else default


def _print(console: Console, table: Any) -> None:
    # A narrow terminal wraps the lines; rich would leave figures out.
    Console(highlight=False, width=max(console.width, _TABLE_WIDTH)).print(table)


def _rounded(value: Any) -> Any:
    """Return a result with numbers of six digits: more say nothing, and files are read."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value


def _check_writable(path: Path | None) -> None:
    """Raise `OSError` now for a file that could not be written after a long run."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
