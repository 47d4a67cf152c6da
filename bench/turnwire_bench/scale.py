"""`turnwire bench scale`: how many sessions a core carries, and what idle ones hold."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from turnwire_bench.meta import meta_of
from turnwire_bench.paced import PACED_NOTE
from turnwire_bench.processes import Child
from turnwire_bench.progress import Progress
from turnwire_bench.search import MOST_DELAY_MS, NOTE, Trial, best_of, searching
from turnwire_bench.stand import Server, Stand

__all__ = [
    "TIMEOUT_S",
    "WIRES",
    "ScaleSettings",
    "least_memory_kb",
    "paced_job",
    "run_scale",
]

WIRES: Final = ("ws", "grpc")
_LOOK_S: Final = 0.5
_REST_S: Final = 7.0
_REST_EACH_S: Final = 0.015
"""How long sessions take until they rest: all together, and each of them, as it takes its turn."""
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
    most_at_rest: int = 1000
    """More idle sessions are not waited for until they rest: that takes minutes."""


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
                rows.append(
                    {
                        "transport": wire,
                        "rate": rate,
                        **found,
                        "idle_kb_per_session": _idle_kb(held),
                    }
                )
    return {
        "meta": meta_of(
            "scale",
            notes=[
                "The load generator is a process of its own on the same machine: HTTP/2 and "
                "WebSocket by hand, no more than counting. Its CPU is given beside the server's.",
                "sessions_per_core is the number carried, divided by the cores that the server "
                "used at that load where it used more than one.",
                "kb_per_session of idle sessions is right after their turn, kb_at_rest once the "
                "server has compressed what it keeps of them, for up to "
                f"{settings.most_at_rest:,} of them. idle_kb_per_session is that of the most "
                "sessions at rest, where there is one.",
                NOTE,
                PACED_NOTE,
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
    """Search the number of sessions of one server."""

    def tried(count: int) -> Trial:
        def once(before: int) -> Trial:
            again = f" (again, {before})" if before else ""
            progress(f"{wire}, {rate:g} tokens/s: {count} sessions{again}")
            job = paced_job(server, wire, rate, count, settings.seconds)
            return worker.ask(job, timeout_s=TIMEOUT_S)

        return best_of(once)

    search = searching(rate, settings.most_sessions)
    count = next(search)
    while True:
        try:
            count = search.send(tried(count))
        except StopIteration as end:
            found: dict[str, Any] = end.value
            return found


def paced_job(
    server: Server, wire: str, rate: float, sessions: int, seconds: float
) -> dict[str, Any]:
    """Return the job of a try, which ends early when it is far too much."""
    return {
        "do": "paced",
        "wire": wire,
        "port": server.port(wire),
        "rate": rate,
        "sessions": sessions,
        "seconds": seconds,
        "pids": [server.pid],
        "give_up_ms": MOST_DELAY_MS,
    }


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
    rest = None
    if count <= settings.most_at_rest:
        progress(f"{wire}: {count} idle sessions until they rest")
        rest = least_memory_kb(server, _REST_S + count * _REST_EACH_S)
    worker.ask({"do": "let_go"}, timeout_s=TIMEOUT_S)
    after = least_memory_kb(server, settings.give_back_s)

    def each(now: float | None) -> float | None:
        return None if now is None or before is None else (now - before) / count

    return {
        "transport": wire,
        "count": count,
        "alive": result["alive"],
        "connects_per_second": count / result["connect_s"],
        "kb_per_session": each(held),
        "kb_at_rest": each(rest),
        "kb_kept_after_close": each(after),
    }


def _idle_kb(held: Sequence[dict[str, Any]]) -> float | None:
    """Return what an idle session holds: of the most that rest, else of the most."""
    at_rest = [row["kb_at_rest"] for row in held if row["kb_at_rest"] is not None]
    at_once = [row["kb_per_session"] for row in held]
    values: list[float | None] = at_rest or at_once or [None]
    return values[-1]


def least_memory_kb(server: Server, seconds: float) -> float | None:
    """Return the least that a server holds within a time."""
    least = server.memory_kb()
    for _ in range(round(seconds / _LOOK_S)):
        time.sleep(_LOOK_S)
        now = server.memory_kb()
        if now is not None and least is not None:
            least = min(least, now)
    return least
