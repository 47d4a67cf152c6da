"""`turnwire bench scale --workers 1,2`: how many more sessions more workers carry."""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from turnwire_bench.figures import Figure
from turnwire_bench.meta import meta_of
from turnwire_bench.paced import PACED_NOTE
from turnwire_bench.processes import Child
from turnwire_bench.progress import Progress
from turnwire_bench.scale import TIMEOUT_S, ScaleSettings, paced_job
from turnwire_bench.search import MOST_DELAY_MS, NOTE, Search, Trial, best_of, searching
from turnwire_bench.stand import Server, Stand

__all__ = ["accounted", "in_turn", "run_scale_workers"]

_NOTES: Final = (
    "Servers with each number of workers run side by side; their searches take turns, one try "
    "each, and the one that begins changes with the repetition. A search that is repeated begins "
    "at what its first repetition found, in steps of 1.1 x.",
    "The load comes from as many processes as the most workers, whichever server it is for.",
    "Load and server share the machine. cores_left is what the load leaves of the cores that the "
    "workers could use: min(workers, cpus - client_cores). sessions_accounted is sessions x "
    "workers / cores_left: what they would carry if the load ran elsewhere, given that the "
    "cores were full (server_cores + client_cores near cpus): on a busy machine it is too high. "
    "ratio is that of sessions_accounted, ratio_measured that of sessions.",
    "The kernel gives each connection to a worker by chance. With few sessions one worker gets "
    "clearly more than the other, and is full first.",
)


def run_scale_workers(
    settings: ScaleSettings, workers: Sequence[int], *, repeats: int, progress: Progress
) -> dict[str, Any]:
    """Search the number of sessions for each number of workers, in turns.

    Args:
        settings: What to run; idle sessions and opens are left out.
        workers: How many, the one to compare with first.
        repeats: How often each search is repeated.
        progress: Hears what is done.

    Returns:
        `{"meta", "rows", "ratios"}`; docs/bench.md has the schema.
    """
    cpus = os.cpu_count() or 1
    rows: list[dict[str, Any]] = []
    ratios: list[dict[str, Any]] = []
    for wire, rate in itertools.product(settings.wires, settings.rates):
        found: dict[int, list[dict[str, Any]]] = {count: [] for count in workers}
        with Stand() as stand:
            loads = [stand.worker() for _ in range(max(workers))]
            tries = {
                count: _tried(stand.server(workers=count), loads, wire, rate, settings, progress)
                for count in workers
            }
            near: dict[int, int] = {}
            for repetition in range(repeats):
                begin = repetition % len(workers)
                order = {count: tries[count] for count in (*workers[begin:], *workers[:begin])}
                said = f"{wire}, {rate:g} tokens/s, repetition {repetition + 1}"
                outcomes = in_turn(rate, settings.most_sessions, order, said, progress, near)
                for count, outcome in outcomes.items():
                    found[count].append(accounted(outcome, count, cpus))
                    near.setdefault(count, outcome["sessions"])
        rows += [_row(wire, rate, count, found[count]) for count in workers]
        ratios += [_ratio(wire, rate, (workers[0], count), found) for count in workers[1:]]
    return {
        "meta": meta_of(
            "scale",
            notes=[*_NOTES, NOTE, PACED_NOTE],
            rates=list(settings.rates),
            seconds=settings.seconds,
            most_delay_ms=MOST_DELAY_MS,
            workers=list(workers),
            repeats=repeats,
        ),
        "rows": rows,
        "ratios": ratios,
    }


def in_turn(
    rate: float,
    most_sessions: int,
    tries: dict[int, Callable[[int], Trial]],
    said: str,
    progress: Progress,
    near: Mapping[int, int] | None = None,
) -> dict[int, dict[str, Any]]:
    """Let searches take turns, one try each, until all have ended.

    Args:
        rate: Tokens per second of a session.
        most_sessions: How many may be tried.
        tries: For each number of workers, what tries a number of sessions.
        said: What is measured, for `progress`.
        progress: Hears what is done.
        near: For each number of workers, where to begin; see `searching`.

    Returns:
        What each found; see `searching`.
    """
    searches: dict[int, Search] = {
        workers: searching(rate, most_sessions, workers=workers, near=(near or {}).get(workers, 0))
        for workers in tries
    }
    wanted = {workers: next(search) for workers, search in searches.items()}
    found: dict[int, dict[str, Any]] = {}
    while wanted:
        for workers, count in list(wanted.items()):
            progress(f"{said}: {workers} worker{'s' * (workers > 1)}, {count} sessions")
            try:
                wanted[workers] = searches[workers].send(tries[workers](count))
            except StopIteration as end:
                found[workers] = end.value
                del wanted[workers]
    return found


def accounted(found: dict[str, Any], workers: int, cpus: int) -> dict[str, Any]:
    """Add what the load took of the cores, and what the workers would carry without it."""
    client = found.get("client_cores") or 0.0
    left = min(float(workers), max(cpus - client, 0.01))
    return {
        **found,
        "cores_left": left,
        "sessions_accounted": found["sessions"] * workers / left,
    }


def _tried(
    server: Server,
    loads: Sequence[Child],
    wire: str,
    rate: float,
    settings: ScaleSettings,
    progress: Progress,
) -> Callable[[int], Trial]:
    """Return what tries a number of sessions on a server."""

    def once(count: int, before: int) -> Trial:
        if before:
            progress(f"again, {before}: {count} sessions")
        parts = [len(range(index, count, len(loads))) for index in range(len(loads))]
        jobs = [paced_job(server, wire, rate, part, settings.seconds) for part in parts if part]
        with ThreadPoolExecutor(len(jobs)) as pool:
            asked = [
                pool.submit(load.ask, job, timeout_s=TIMEOUT_S)
                for load, job in zip(loads, jobs, strict=False)
            ]
        return _joined([one.result() for one in asked])

    return lambda count: best_of(lambda before: once(count, before))


def _joined(parts: Sequence[Trial]) -> Trial:
    """Join what several load processes saw of one server: the later of their delays."""
    server = [part["server_cpu_s"] for part in parts]
    delays = [part["delay_ms"] for part in parts]
    return {
        "wall_s": statistics.mean(part["wall_s"] for part in parts),
        "server_cpu_s": None if None in server else statistics.mean(server),
        "delay_ms": {
            name: None
            if any(one[name] is None for one in delays)
            else max(one[name] for one in delays)
            for name in delays[0]
        },
        "gave_up": any(part["gave_up"] for part in parts),
        **{
            name: sum(part[name] for part in parts)
            for name in ("events", "tokens", "wanted_tokens", "client_cpu_s", "ended")
        },
    }


def _row(wire: str, rate: float, workers: int, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    figures = {
        name: Figure.of_values(one[name] for one in found)
        for name in ("sessions", "sessions_accounted")
    }
    medians = {
        name: _median([one[name] for one in found if one.get(name) is not None])
        for name in ("server_cores", "client_cores", "cores_left", "delay_ms_p50", "delay_ms_p99")
    }
    return {
        "transport": wire,
        "rate": rate,
        "workers": workers,
        "sessions_per_core": figures["sessions_accounted"].median / workers,
        "idle_kb_per_session": None,
        **{name: figure.median for name, figure in figures.items()},
        **medians,
        "spread": {name: [figure.low, figure.high] for name, figure in figures.items()},
        "tries": [one["tries"] for one in found],
    }


def _ratio(
    wire: str, rate: float, pair: tuple[int, int], found: dict[int, list[dict[str, Any]]]
) -> dict[str, Any]:
    """Compare within each repetition, whose tries were side by side."""
    few, many = pair

    def of(name: str) -> list[float]:
        return [
            more[name] / less[name]
            for less, more in zip(found[few], found[many], strict=True)
            if less[name]
        ]

    ratios, measured = of("sessions_accounted"), of("sessions")
    return {
        "transport": wire,
        "rate": rate,
        "workers": list(pair),
        "ratio": _median(ratios),
        "ratio_measured": _median(measured),
        "spread": [min(ratios), max(ratios)] if ratios else None,
        "by_repetition": ratios,
    }


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
