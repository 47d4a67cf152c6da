"""Bars of many sessions: opens, readers that stop, idle and cached ones."""

from __future__ import annotations

import re
import statistics
import time
import urllib.request
from typing import Final

from turnwire_bench.bar import Bar
from turnwire_bench.failure import BenchFailure
from turnwire_bench.processes import Child
from turnwire_bench.progress import Progress
from turnwire_bench.scale import least_memory_kb
from turnwire_bench.stand import Server, Stand

__all__ = ["cached_bars", "idle_bars", "opens_bars", "stalled_bars"]

_WIRES: Final = ("ws", "grpc")
_NAMES: Final = {"ws": "WebSocket", "grpc": "gRPC"}
_TIMEOUT_S: Final = 600.0
_TURN_BYTES: Final = 40_000
_STALLED_WORK: Final = {"turns": 60, "tokens": 4000}
"""Some 6 MB of events: more than an outbox and the kernel take. Queued turns of some length, since
what the simulation itself keeps of one long turn would be in the figure."""
_RUNNING: Final = re.compile(rb"^turnwire_turns_running (\S+)$", re.MULTILINE)
_AT_REST_S: Final = 20.0
"""How long idle sessions may take until all of them rest."""
_REST_S: Final = 60.0
_RESTS_BELOW: Final = 0.02
"""Of a core."""


def opens_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """Simultaneous opens that were refused."""
    count = 500 if quick else 5000
    bars = []
    with Stand() as stand:
        worker = stand.worker()
        for wire in _WIRES:
            refused, rates, reasons = [], [], []
            for repeat in range(repeats):
                progress(f"{wire}: {count} opens: {repeat + 1} of {repeats}")
                server = stand.server()
                job = {"do": "opens", "wire": wire, "port": server.port(wire), "count": count}
                answer = worker.ask(job, timeout_s=_TIMEOUT_S)
                refused.append(float(answer["refused"]))
                reasons.append(answer["reasons"])
                rates.append(count / answer["seconds"])
            bars.append(
                Bar(
                    f"opens_{wire}",
                    f"of {count:,} simultaneous {_NAMES[wire]} opens, refused",
                    0.0,
                    refused,
                    unit="",
                    details={
                        "opens_and_turns_per_second": statistics.median(rates),
                        "reasons": reasons,
                    },
                )
            )
    return bars


def stalled_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """What a reader that stops costs: more is generated for it than may wait."""
    streams, watch_s = (2, 1.0) if quick else (5, 3.0)
    bars = []
    with Stand() as stand:
        worker = stand.worker()
        for wire in _WIRES:
            grown, cores, running = [], [], []
            for repeat in range(repeats):
                progress(f"{wire}: readers that stop: {repeat + 1} of {repeats}")
                server = stand.server()
                job = {"do": "stalled", "wire": wire, "port": server.port(wire)}
                idle = {**job, "do": "idle", "turn_bytes": 200, "count": streams}
                worker.ask(idle, timeout_s=_TIMEOUT_S)  # what any session costs
                before = _known(server.memory_kb())
                worker.ask({**job, "count": streams, **_STALLED_WORK}, timeout_s=_TIMEOUT_S)
                _wait_for_rest(server, watch_s)
                grown.append((_known(server.memory_kb()) - before) / streams)
                cpu = _known(server.cpu_seconds())
                time.sleep(watch_s)
                cores.append((_known(server.cpu_seconds()) - cpu) / watch_s * 100)
                running.append(_running(server))
                worker.ask({"do": "let_go", "cut": True}, timeout_s=_TIMEOUT_S)
            name = _NAMES[wire]
            details = {"streams": streams, "turns_still_running": running}
            bars += [
                Bar(
                    f"stalled_memory_{wire}",
                    f"growth per {name} stream whose reader stops",
                    1024.0,
                    grown,
                    unit="kB",
                    details=details,
                ),
                Bar(
                    f"stalled_cpu_{wire}",
                    f"a core's time for {streams} {name} streams whose readers stopped",
                    2.0,
                    cores,
                    unit="%",
                    details=details,
                ),
            ]
    return bars


def idle_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """What an idle session holds after a turn of 40 kB, and whether it is given back.

    The server keeps nothing of it elsewhere: its responses are not stored.
    """
    count = 50 if quick else 1000
    bars = []
    with Stand() as stand:
        worker = stand.worker()
        for wire, limit in (("ws", 110.0), ("grpc", 140.0)):
            held, at_once, kept, kept_again = [], [], [], []
            for repeat in range(repeats):
                progress(f"{wire}: idle sessions: {repeat + 1} of {repeats}")
                server = stand.server()
                before = _warm(worker, server, wire)
                _open(worker, server, wire, count, _TURN_BYTES)
                at_once.append((_known(server.memory_kb()) - before) / count)
                rest_s, close_s = (8.0, 1.0) if quick else (_AT_REST_S, 5.0)
                rests = _known(least_memory_kb(server, rest_s))
                held.append((rests - before) / count)
                worker.ask({"do": "let_go"}, timeout_s=_TIMEOUT_S)
                after = _known(least_memory_kb(server, close_s))
                kept.append((after - before) / count)
                # As many once more: memory that waits to be used again is no leak.
                _open(worker, server, wire, count, _TURN_BYTES)
                least_memory_kb(server, rest_s)  # until they rest, as the first did
                worker.ask({"do": "let_go"}, timeout_s=_TIMEOUT_S)
                again = _known(least_memory_kb(server, close_s))
                kept_again.append((again - after) / count)
            name = _NAMES[wire]
            bars += [
                Bar(
                    f"idle_{wire}",
                    f"an idle {name} session after a turn of 40 kB",
                    limit,
                    held,
                    unit="kB",
                    details={"before_it_rests_kb": statistics.median(at_once)},
                ),
                Bar(
                    f"idle_kept_{wire}",
                    f"of it, kept 5 s after a {name} session was closed",
                    limit / 10,
                    kept,
                    unit="kB",
                ),
                Bar(
                    f"idle_kept_again_{wire}",
                    f"the same of as many {name} sessions once more, beyond what the first kept",
                    limit / 10,
                    kept_again,
                    unit="kB",
                ),
            ]
    return bars


def cached_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """Whether the tokens of some sessions come later beside 2,000 that hold 100 items each."""
    count, seconds, pairs = (100, 2.0, 1) if quick else (2000, 4.0, 3)
    late: dict[str, list[float]] = {"none": [], "cached": []}
    ratios = []
    with Stand() as stand:
        worker = stand.worker()
        servers = {"none": stand.server(), "cached": stand.server()}
        job = {
            "do": "idle",
            "wire": "ws",
            "port": servers["cached"].port("ws"),
            "count": count,
            "turn_bytes": 40_000,
            "items": 100,
        }
        progress(f"{count} sessions of 100 items")
        worker.ask(job, timeout_s=_TIMEOUT_S)
        for pair in range(repeats * pairs):
            progress(f"token delay beside cached sessions: {pair + 1} of {repeats * pairs}")
            # What else runs on the machine changes from second to second: the two are compared
            # pair by pair, and who is first changes.
            names = ("none", "cached") if pair % 2 else ("cached", "none")
            for name in names:
                server = servers[name]
                load = {
                    "do": "paced",
                    "wire": "ws",
                    "port": server.port("ws"),
                    "rate": 65.0,
                    "sessions": 20,
                    "seconds": seconds,
                    "pids": [server.pid],
                }
                answer = worker.ask(load, timeout_s=_TIMEOUT_S)
                late[name].append(answer["delay_ms"]["p99"])
            ratios.append(late["cached"][-1] / max(late["none"][-1], 0.01))
        worker.ask({"do": "let_go"}, timeout_s=_TIMEOUT_S)
    return [
        Bar(
            "cached_p99",
            f"p99 of the token delay beside {count:,} cached sessions against none",
            1.3,
            ratios,
            details={f"{name}_ms": statistics.median(values) for name, values in late.items()},
        )
    ]


def _running(server: Server) -> int:
    """Return how many turns run, by the server's own metrics."""
    url = f"http://127.0.0.1:{server.http_port}/metrics"
    with urllib.request.urlopen(url, timeout=20.0) as answer:
        found = _RUNNING.search(answer.read())
    if found is None:
        raise BenchFailure("The server does not tell how many turns run.")
    return int(float(found[1]))


def _wait_for_rest(server: Server, watch_s: float) -> None:
    """Wait until a server does next to nothing for `watch_s`, or for what it may take at most."""
    until = time.monotonic() + _REST_S
    while time.monotonic() < until:
        before = _known(server.cpu_seconds())
        time.sleep(watch_s)
        if _known(server.cpu_seconds()) - before < watch_s * _RESTS_BELOW:
            return


def _warm(worker: Child, server: Server, wire: str) -> float:
    """Have a few sessions pay for what the process loads, and return what it then holds."""
    _open(worker, server, wire, 20, _TURN_BYTES)
    worker.ask({"do": "let_go"}, timeout_s=_TIMEOUT_S)
    return _known(server.memory_kb())


def _open(worker: Child, server: Server, wire: str, count: int, turn_bytes: int) -> None:
    job = {"do": "idle", "wire": wire, "port": server.port(wire), "count": count}
    answer = worker.ask({**job, "turn_bytes": turn_bytes}, timeout_s=_TIMEOUT_S)
    if answer["alive"] != count or answer["completed"] != count:
        raise BenchFailure(f"Of {count} idle sessions {answer['alive']} stayed open.")


def _known(value: float | None) -> float:
    if value is None:
        raise BenchFailure("This system does not tell what a process uses.")
    return value
