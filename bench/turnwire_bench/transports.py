"""`turnwire bench transports`: the same agent run over every transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from turnwire_bench.converse import TRANSPORTS, YARDSTICKS
from turnwire_bench.echo_drivers import Plan, plans_of
from turnwire_bench.meta import meta_of
from turnwire_bench.network import PROFILES, Profile
from turnwire_bench.processes import Child
from turnwire_bench.progress import Progress
from turnwire_bench.rows import Way, row_of
from turnwire_bench.samples import Conversation
from turnwire_bench.scenario import Scenario
from turnwire_bench.stand import Server, Stand, Tls, notes_of

__all__ = ["TransportsSettings", "run_transports"]

SLOW_SINKS: Final = {"ws_slow_sink": "ws", "grpc_slow_sink": "grpc"}
"""Rows that run against a server with slow after work, and what they are otherwise."""
_PLAN_OF: Final = {"echo_grpc": "grpc", "echo_ws": "ws"}
_TIMEOUT_S: Final = 900.0
_LOOPBACK: Final = PROFILES["loopback"]

_Key = tuple[str, bool, bool]
"""What a server is: the trajectory that it replays, whether it has TLS, and a slow sink."""


@dataclass(frozen=True, slots=True)
class TransportsSettings:
    """What to run."""

    scenarios: tuple[Scenario, ...]
    profiles: tuple[Profile, ...] = (_LOOPBACK,)
    rates: tuple[float, ...] = (1000.0,)
    """Tokens per second of the simulated engine."""
    transports: tuple[str, ...] = TRANSPORTS
    repeats: int = 5
    hops: int = 0
    tls: Tls = "stateless"
    held_sessions: int = 20
    """Sessions that memory is measured with; 0 leaves it out."""
    beside: tuple[str, ...] = (*YARDSTICKS, *SLOW_SINKS, "sdk_plain")
    """What runs beside the transports."""


def run_transports(settings: TransportsSettings, progress: Progress) -> dict[str, Any]:
    """Run every row, interleaved, so that a drift of the machine hits all alike.

    Returns:
        `{"meta", "rows", "beside"}`; docs/bench.md has the schema.

    Raises:
        BenchFailure: Something cannot be measured.
    """
    rows: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    with Stand(tls=settings.tls, hops=settings.hops) as stand:
        bench = _Bench(stand, settings, progress)
        for scenario in settings.scenarios:
            for rate in settings.rates:
                bench.prepare(scenario, rate)
                for profile in settings.profiles:
                    shown, extra = bench.measure(scenario, rate, profile)
                    rows += shown
                    beside += extra
        if settings.held_sessions:
            bench.weigh(rows)
    return {
        "meta": meta_of(
            "transports",
            notes=notes_of(settings.tls, settings.hops, settings.profiles),
            scenarios=[scenario.to_json() for scenario in settings.scenarios],
            profiles=[
                {
                    "name": each.name,
                    "round_trip_ms": each.round_trip_s * 1e3,
                    "mbit_per_second": each.bits_per_second / 1e6 or None,
                }
                for each in settings.profiles
            ],
            rates=list(settings.rates),
            repeats=settings.repeats,
            hops=settings.hops,
            tls=settings.tls,
        ),
        "rows": rows,
        "beside": beside,
    }


class _Bench:
    """The processes of a run, and what was learned of a scenario so far."""

    def __init__(self, stand: Stand, settings: TransportsSettings, progress: Progress) -> None:
        self._stand = stand
        self._settings = settings
        self._progress = progress
        self._worker: Child = stand.worker()
        self._echo: Child | None = None
        self._servers: dict[_Key, Server] = {}
        self._warm: set[tuple[_Key, str]] = set()
        self._plans: dict[str, list[Plan]] = {}
        self._count = 0

    # Servers.

    def _server(
        self, transport: str, scenario: Scenario, rate: float, *, is_slow: bool = False
    ) -> Server:
        """Return the server of a row; those that need the same one share it."""
        is_secure = self._stand.wants_tls(transport)
        # A script in each create sets the pace; a trajectory's pace is its server's.
        replayed = f"{scenario.name} {rate:g}" if scenario.recorded else ""
        key = (replayed, is_secure, is_slow)
        if key not in self._servers:
            self._servers[key] = self._stand.server(
                is_secure=is_secure, has_slow_sink=is_slow, scenario=scenario, rate=rate
            )
        server = self._servers[key]
        if (key, transport) not in self._warm:
            # Both sides pay for imports, caches and compiled codecs.
            self._warm.add((key, transport))
            self._progress(f"warm-up: {transport}")
            self._converse(server, transport, scenario, 0.0, _LOOPBACK)
        return server

    # Rows.

    def prepare(self, scenario: Scenario, rate: float) -> None:
        """Learn what the yardstick has to send."""
        for transport in self._settings.transports:
            self._server(transport, scenario, rate)
        for yardstick in set(self._settings.beside) & set(_PLAN_OF):
            transport = _PLAN_OF[yardstick]
            self._progress(f"{scenario.name}, {rate:g} tokens/s: learning the events")
            server = self._server(transport, scenario, rate)
            learned = self._converse(server, transport, scenario, rate, _LOOPBACK, learn=True)
            self._plans[yardstick] = plans_of(learned.turns, scenario, rate)

    def measure(
        self, scenario: Scenario, rate: float, profile: Profile
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the rows of the transports, and of what runs beside them."""
        settings = self._settings
        extra = settings.beside
        names = [*settings.transports, *extra]
        found: dict[str, list[Conversation]] = {name: [] for name in names}
        for repeat in range(settings.repeats):
            shift = repeat * 3 % len(names)
            for name in (*names[shift:], *names[:shift]):
                self._progress(
                    f"{scenario.name}, {profile.name}, {rate:g} tokens/s: "
                    f"{repeat + 1} of {settings.repeats}: {name}"
                )
                found[name].append(self._one(name, scenario, rate, profile))
        shown = [self._row(name, found[name], scenario, rate, profile) for name in names]
        return shown[: len(settings.transports)], shown[len(settings.transports) :]

    def _one(self, name: str, scenario: Scenario, rate: float, profile: Profile) -> Conversation:
        if name in _PLAN_OF:
            return self._converse_echo(name, profile)
        transport = SLOW_SINKS.get(name, name)
        server = self._server(transport, scenario, rate, is_slow=name in SLOW_SINKS)
        return self._converse(server, transport, scenario, rate, profile)

    def _row(
        self,
        name: str,
        conversations: Sequence[Conversation],
        scenario: Scenario,
        rate: float,
        profile: Profile,
    ) -> dict[str, Any]:
        way = Way(profile, self._stand.round_trips(name))
        plans = self._plans[name] if name in _PLAN_OF else None
        return {
            "scenario": scenario.name,
            "profile": profile.name,
            "rate": rate,
            "transport": name,
            **row_of(conversations, scenario, rate, way, plans),
        }

    # Conversations.

    def _converse(
        self,
        server: Server,
        transport: str,
        scenario: Scenario,
        rate: float,
        profile: Profile,
        *,
        learn: bool = False,
    ) -> Conversation:
        self._count += 1
        job = {
            "do": "conversation",
            "transport": transport,
            "place": self._stand.place(server, transport, profile),
            "scenario": scenario.to_json(),
            "rate": rate,
            # First in the prompt, so that no conversation finds another's prefix.
            "tag": f"{self._count} {transport}",
            "learn": learn,
        }
        pids = self._stand.server_pids(server, transport)
        return self._timed(job, pids)

    def _converse_echo(self, yardstick: str, profile: Profile) -> Conversation:
        if self._echo is None:
            self._echo = self._stand.echo()
        port = self._echo.ready["grpc_port" if yardstick == "echo_grpc" else "http_port"]
        job = {
            "do": "echo",
            "transport": yardstick,
            "port": self._stand.through(port, profile),
            "plans": self._plans[yardstick],
        }
        return self._timed(job, [self._echo.pid])

    def _timed(self, job: dict[str, Any], pids: Sequence[int]) -> Conversation:
        before = self._stand.cpu_seconds(pids)
        answer = self._worker.ask(job, timeout_s=_TIMEOUT_S)
        after = self._stand.cpu_seconds(pids)
        conversation = Conversation.from_json(answer)
        if before is not None and after is not None:
            conversation.server_cpu_s = after - before
        return conversation

    # Memory.

    def weigh(self, rows: Sequence[dict[str, Any]]) -> None:
        """Note with each row what a session holds after the first turn of its scenario."""
        settings = self._settings
        for scenario in settings.scenarios:
            for transport in settings.transports:
                kb = self._weighed(scenario, transport)
                for row in rows:
                    if (row["scenario"], row["transport"]) == (scenario.name, transport):
                        row["memory_kb_per_session"] = kb

    def _weighed(self, scenario: Scenario, transport: str) -> float | None:
        self._progress(f"{scenario.name}: memory: {transport}")
        server = self._server(transport, scenario, self._settings.rates[0])
        count = self._settings.held_sessions
        before = server.memory_kb()
        self._count += 1
        job = {
            "do": "hold",
            "transport": transport,
            "place": self._stand.place(server, transport, _LOOPBACK),
            "scenario": scenario.to_json(),
            "count": count,
            "tag": f"{self._count} held",
        }
        self._worker.ask(job, timeout_s=_TIMEOUT_S)
        after = server.memory_kb()
        self._worker.ask({"do": "release"}, timeout_s=_TIMEOUT_S)
        if before is None or after is None:
            return None
        return max(0.0, (after - before) / count)
