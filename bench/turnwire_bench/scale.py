"""`turnwire bench scale`: how many sessions a core carries, and what idle ones hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

from turnwire_bench.meta import meta_of
from turnwire_bench.processes import Child
from turnwire_bench.stand import Server, Stand

__all__ = [
    "CHANCES",
    "MOST_DELAY_MS",
    "TIMEOUT_S",
    "Progress",
    "ScaleSettings",
    "Trial",
    "is_carried",
    "least_memory_kb",
    "run_scale",
    "searching",
]

Progress = Callable[[str], None]
Trial = dict[str, Any]
"""What came of a number of sessions, as the job `paced` tells it."""

MOST_DELAY_MS: Final = 50.0
"""Of 99 of 100 tokens, behind the engine's schedule: where a core is full."""
WIRES: Final = ("ws", "grpc")
_FINE: Final = 1.1
"""The search ends when what is carried and what is not are this close."""
CHANCES: Final = 3
_FIRST_TOKENS: Final = 2000
"""Tokens per second, in all sessions together, that the search begins with."""
_LOOK_S: Final = 0.5
_LEAST_DELIVERED: Final = 0.95
TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """What to run."""

    rates: tuple[float, ...] = (65.0, 1000.0)
    seconds: float = 6.0
    """How long each number of sessions is tried."""
    most_sessions: int = 2000
    idle: tuple[int, ...] = (100, 1000, 5000)
    turn_bytes: int = 40_000
    """What the turn brings that each idle session has had."""
    opens: int = 5000
    wires: tuple[str, ...] = WIRES
    give_back_s: float = 5.0
    """How long a server may take to give memory back."""


def run_scale(settings: ScaleSettings, progress: Progress) -> dict[str, Any]:
    """Search the number of sessions, then hold idle ones, then open many at once.

    Returns:
        `{"meta", "rows", "idle", "opens"}`; docs/bench.md has the schema.
    """
    rows, idles, opened = [], [], []
    with Stand() as stand:
        worker = stand.worker()
        for wire in settings.wires:
            # A server each: what one measurement leaves behind is not to be in the next.
            held = [
                _idle(stand.server(), worker, wire, count, settings, progress)
                for count in settings.idle
            ]
            idles += held
            server = stand.server()
            progress(f"{wire}: {settings.opens} simultaneous opens")
            job = {"do": "opens", "wire": wire, "port": server.port(wire)}
            result = worker.ask({**job, "count": settings.opens}, timeout_s=TIMEOUT_S)
            opened.append({"transport": wire, "count": settings.opens, **result})
            for rate in settings.rates:
                found = _search(stand.server(), worker, wire, rate, settings, progress)
                per_session = held[-1]["kb_per_session"] if held else None
                rows.append(
                    {"transport": wire, "rate": rate, **found, "idle_kb_per_session": per_session}
                )
    return {
        "meta": meta_of(
            "scale",
            notes=[
                "The load generator is a process of its own on the same machine: HTTP/2 and "
                "WebSocket by hand, no more than counting. Its CPU is given beside the server's.",
                "sessions_per_core is the number carried, divided by the cores that the server "
                "used at that load where it used more than one.",
            ],
            rates=list(settings.rates),
            seconds=settings.seconds,
            most_delay_ms=MOST_DELAY_MS,
            turn_bytes=settings.turn_bytes,
        ),
        "rows": rows,
        "idle": idles,
        "opens": opened,
    }


def _search(
    server: Server,
    worker: Child,
    wire: str,
    rate: float,
    settings: ScaleSettings,
    progress: Progress,
) -> dict[str, Any]:
    """Double the number of sessions until the tokens are late, then halve the gap."""

    def tried(count: int) -> dict[str, Any]:
        # What else runs on the machine only ever makes tokens late: the best of a few counts.
        for chance in range(CHANCES):
            trial = once(count, chance)
            if is_carried(trial):
                break
        return trial

    def once(count: int, chance: int) -> dict[str, Any]:
        again = f" (again, {chance})" if chance else ""
        progress(f"{wire}, {rate:g} tokens/s: {count} sessions{again}")
        job = {
            "do": "paced",
            "wire": wire,
            "port": server.port(wire),
            "rate": rate,
            "sessions": count,
            "seconds": settings.seconds,
            "pids": [server.pid],
        }
        return worker.ask(job, timeout_s=TIMEOUT_S)

    search = searching(rate, settings.most_sessions)
    count = next(search)
    while True:
        try:
            count = search.send(tried(count))
        except StopIteration as end:
            found: dict[str, Any] = end.value
            return found


def searching(rate: float, most_sessions: int) -> Generator[int, Trial, dict[str, Any]]:
    """Yield numbers of sessions, take what came of each, and return what is carried."""
    good: dict[str, Any] | None = None
    bad = 0
    count = max(1, min(most_sessions, round(_FIRST_TOKENS / rate)))
    tries = []
    while True:
        trial = yield count
        tries.append({"sessions": count, "delay_ms_p99": trial["delay_ms"]["p99"]})
        if is_carried(trial):
            good = {**trial, "sessions": count}
            if count == most_sessions:
                break
            after = count * 2 if not bad else (count + bad) // 2
        else:
            bad = count
            after = (count + good["sessions"]) // 2 if good else count // 2
        lowest = good["sessions"] if good else 0
        after = min(after, most_sessions)
        if after in (lowest, bad) or after < 1 or (bad and lowest and bad / lowest <= _FINE):
            break
        count = after
    if good is None:
        return {"sessions_per_core": 0.0, "sessions": 0, "tries": tries}
    server_cores = None
    if good["server_cpu_s"] is not None:
        server_cores = good["server_cpu_s"] / good["wall_s"]
    return {
        "sessions_per_core": good["sessions"] / max(1.0, server_cores or 1.0),
        "sessions": good["sessions"],
        "server_cores": server_cores,
        "client_cores": good["client_cpu_s"] / good["wall_s"],
        "delay_ms_p99": good["delay_ms"]["p99"],
        "delay_ms_p50": good["delay_ms"]["p50"],
        "events_per_second": good["events"] / good["wall_s"],
        "tries": tries,
    }


def is_carried(trial: dict[str, Any]) -> bool:
    """Return whether the tokens came in time, and all of them."""
    late = trial["delay_ms"]["p99"]
    delivered = trial["tokens"] / trial["wanted_tokens"]
    return (
        late is not None
        and late <= MOST_DELAY_MS
        and delivered >= _LEAST_DELIVERED
        and not trial["ended"]
    )


def _idle(
    server: Server,
    worker: Child,
    wire: str,
    count: int,
    settings: ScaleSettings,
    progress: Progress,
) -> dict[str, Any]:
    progress(f"{wire}: {count} idle sessions")
    # A few first: what the first turns load is the process's, not a session's.
    job = {"do": "idle", "wire": wire, "port": server.port(wire)}
    job["turn_bytes"] = settings.turn_bytes
    worker.ask({**job, "count": 20}, timeout_s=TIMEOUT_S)
    worker.ask({"do": "let_go"}, timeout_s=TIMEOUT_S)
    before = server.memory_kb()
    result = worker.ask({**job, "count": count}, timeout_s=TIMEOUT_S)
    held = server.memory_kb()
    worker.ask({"do": "let_go"}, timeout_s=TIMEOUT_S)
    after = least_memory_kb(server, settings.give_back_s)
    known = before is not None and held is not None and after is not None
    return {
        "transport": wire,
        "count": count,
        "alive": result["alive"],
        "connects_per_second": count / result["connect_s"],
        "kb_per_session": (held - before) / count if known else None,  # type: ignore[operator]
        "kb_kept_after_close": (after - before) / count if known else None,  # type: ignore[operator]
    }


def least_memory_kb(server: Server, seconds: float) -> float | None:
    """Return the least that a server holds within a time."""
    least = server.memory_kb()
    for _ in range(round(seconds / _LOOK_S)):
        time.sleep(_LOOK_S)
        now = server.memory_kb()
        if now is not None and least is not None:
            least = min(least, now)
    return least
