"""Bars of a server under load: bursts, CPU for each token, times to stop."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

from turnwire_bench.bar import Bar, ratios_of
from turnwire_bench.failure import BenchFailure
from turnwire_bench.progress import Progress
from turnwire_bench.repetitions import order_of
from turnwire_bench.samples import EventSize
from turnwire_bench.stand import Stand

__all__ = [
    "burst_bars",
    "cpu_bars",
    "stop_bars",
]

_WIRES: Final = ("ws", "grpc")
_NAMES: Final = {"ws": "WebSocket", "grpc": "gRPC"}
_TIMEOUT_S: Final = 600.0
_BURST_TOKENS: Final = 200
_DELTA_BYTES: Final = 60
_CPU_LOADS: Final[Sequence[Sequence[tuple[str, str, int, float, bool, int]]]] = (
    (
        ("grpc 65", "grpc", 100, 65.0, False, 0),
        ("echo 65", "grpc", 100, 65.0, True, 0),
        ("ws 65", "ws", 100, 65.0, False, 0),
    ),
    (
        ("grpc 65 shared", "grpc", 100, 65.0, False, 1),
        ("echo 65 shared", "grpc", 100, 65.0, True, 1),
    ),
    (
        ("grpc 1000", "grpc", 10, 1000.0, False, 0),
        ("ws 1000", "ws", 10, 1000.0, False, 0),
    ),
)
"""What is compared stands together: name, wire, sessions, tokens per second, whether it is the
echo, and the connections that the sessions share (0: each has its own)."""


def burst_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """A turn of 200 tokens from an engine as fast as it is read, against the bare echo.

    With an event for each token these are 208 events, which is what the echo sends. The server
    may join the tokens of one step of its engine.
    """
    turns = 10 if quick else 50
    ours: list[float] = []
    theirs: list[float] = []
    ours_cpu: list[float] = []
    theirs_cpu: list[float] = []
    with Stand() as stand:
        server, worker, echo = stand.server(), stand.worker(), stand.echo()
        job: dict[str, Any] = {"do": "burst", "port": server.grpc_port, "tokens": _BURST_TOKENS}
        learned = worker.ask({**job, "turns": 5}, timeout_s=_TIMEOUT_S)
        echoed = {
            **job,
            "echo": True,
            "port": echo.ready["grpc_port"],
            "sizes": _one_by_one(learned["events"]),
            "request_size": learned["request_size"],
        }
        worker.ask({**echoed, "turns": 5}, timeout_s=_TIMEOUT_S)
        for repeat in range(repeats):
            progress(f"burst: {repeat + 1} of {repeats}")
            sides = ((job, server.pid, ours, ours_cpu), (echoed, echo.pid, theirs, theirs_cpu))
            for wanted, pid, times, cpu in order_of(sides, repeat):
                before = stand.cpu_seconds([pid])
                answer = worker.ask({**wanted, "turns": turns}, timeout_s=_TIMEOUT_S)
                after = stand.cpu_seconds([pid])
                times.append(statistics.median(answer["seconds"]) * 1e3)
                if before is not None and after is not None:
                    cpu.append((after - before) / turns * 1e3)
    details = {
        "events_sent": len(learned["events"]),
        "frames_sent": learned["frames"],
        "echo_messages": len(echoed["sizes"]),
        "turn_ms": statistics.median(ours),
        "echo_ms": statistics.median(theirs),
    }
    what = f"a turn of {len(echoed['sizes'])} events from an engine as fast as it is read, gRPC "
    bars = [
        Bar(
            "burst",
            f"{what}against the bare grpc.aio echo, time",
            0.1,
            ratios_of(ours, theirs),
            details=details,
        )
    ]
    if ours_cpu and theirs_cpu:
        bars.append(
            Bar(
                "burst_cpu",
                f"{what}against the bare grpc.aio echo, server CPU",
                0.1,
                ratios_of(ours_cpu, theirs_cpu),
                details=details,
            )
        )
    return bars


def cpu_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """Server CPU per event."""
    seconds = 2.0 if quick else 6.0
    with Stand() as stand:
        server, worker, echo = stand.server(), stand.worker(), stand.echo()

        def per_event(
            wire: str, sessions: int, rate: float, *, bare: bool = False, connections: int = 0
        ) -> float:
            port = server.port(wire)
            if bare:
                port = echo.ready["grpc_port" if wire == "grpc" else "http_port"]
            job = {
                "do": "paced",
                "wire": wire,
                "echo": bare,
                "port": port,
                "rate": rate,
                "sessions": sessions,
                "connections": connections,
                "seconds": seconds,
                "pids": [echo.pid if bare else server.pid],
            }
            answer = worker.ask(job, timeout_s=_TIMEOUT_S)
            if answer["server_cpu_s"] is None:
                raise BenchFailure("This system does not tell the CPU time of a process.")
            # By token, which is the same in both: the server joins those that come together.
            return float(answer["server_cpu_s"] / answer["tokens"] * 1e6)

        found: dict[str, list[float]] = {}
        for repeat in range(repeats):
            progress(f"CPU per event: {repeat + 1} of {repeats}")
            for compared in order_of(_CPU_LOADS, repeat):
                for name, wire, sessions, rate, bare, connections in order_of(compared, repeat):
                    spent = per_event(wire, sessions, rate, bare=bare, connections=connections)
                    found.setdefault(name, []).append(spent)
    details = {f"{name} µs": statistics.median(values) for name, values in found.items()}
    return [
        Bar(
            "cpu_65",
            "server CPU per token, 65 tokens/s × 100 gRPC sessions, against the bare grpc.aio echo",
            0.5,
            ratios_of(found["grpc 65"], found["echo 65"]),
            details=details,
        ),
        Bar(
            "cpu_65_shared",
            "server CPU per token, 65 tokens/s × 100 gRPC sessions on one connection, "
            "as a gateway's, against the bare grpc.aio echo on one",
            0.5,
            ratios_of(found["grpc 65 shared"], found["echo 65 shared"]),
            details=details,
        ),
        Bar(
            "cpu_1000",
            "server CPU per token, 1,000 tokens/s × 10 sessions, gRPC against WebSocket",
            1.0,
            ratios_of(found["grpc 1000"], found["ws 1000"]),
            details=details,
        ),
    ]


def stop_bars(repeats: int, progress: Progress, *, quick: bool) -> list[Bar]:
    """Times to stop."""
    bars = []
    with Stand() as stand:
        server, worker = stand.server(), stand.worker()
        urls = {name: server.ready[key] for name, key in _URLS.items()}
        for transport, url in urls.items():
            progress(f"{transport}: cancel and disconnect")
            job = {
                "do": "stop",
                "transport": transport,
                "url": url,
                "port": server.port(transport),
                "metrics": f"http://127.0.0.1:{server.http_port}/metrics",
                "repeats": max(3, repeats) if quick else 4 * repeats,
            }
            answer = worker.ask(job, timeout_s=_TIMEOUT_S)
            for name, key, what in (
                ("cancel", "cancel_ms", "from a cancel to the terminal event"),
                ("disconnect", "disconnect_ms", "from a client that is gone to the turn's end"),
            ):
                bars.append(
                    Bar(
                        f"{name}_{transport}",
                        f"{what}, {transport}",
                        100.0,
                        answer[key],
                        unit="ms",
                    )
                )
    return bars


_URLS: Final = {"http": "http", "ws": "websocket", "grpc": "grpc"}


def _one_by_one(events: list[EventSize]) -> list[int]:
    """Return the sizes of a turn's events with a delta for each token instead of a few."""
    deltas = [number for number, (is_delta, _) in enumerate(events) if is_delta]
    before = [size for _, size in events[: deltas[0]]]
    after = [size for _, size in events[deltas[-1] + 1 :]]
    return [*before, *[_DELTA_BYTES] * _BURST_TOKENS, *after]
