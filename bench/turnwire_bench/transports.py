"""`turnwire bench transports`: the same agent run over every transport."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from turnwire_bench.converse import TRANSPORTS, YARDSTICKS
from turnwire_bench.echo_drivers import Plan, plans_of
from turnwire_bench.meta import meta_of
from turnwire_bench.network import PROFILES, Profile
from turnwire_bench.processes import Child
from turnwire_bench.progress import Progress
from turnwire_bench.repetitions import order_of
from turnwire_bench.rows import Way, row_of
from turnwire_bench.samples import Conversation
from turnwire_bench.scenario import Scenario
from turnwire_bench.stand import Server, Stand, Tls, notes_of

__all__ = ["BESIDE", "TransportsSettings", "run_transports"]

SLOW_SINKS: Final = {"ws_slow_sink": "ws", "grpc_slow_sink": "grpc"}
"""Rows that run against a server with slow after work, and what they are otherwise."""
BESIDE: Final = (*YARDSTICKS, "ws_bare", "grpc_bare", *SLOW_SINKS, "sdk_plain")
"""What can run beside the transports."""
_PLAN_OF: Final = {"echo_grpc": "grpc", "echo_ws": "ws"}
_WARM_TURNS: Final = 2
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
    beside: tuple[str, ...] = BESIDE
    """Of `BESIDE`."""
    side_by_side: bool = False
    """Whether each repetition runs a row at all places, where it is these that are compared; else
    one place is measured after the other."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a table of rows is measured."""

    scenario: Scenario
    rate: float
    profile: Profile
    plans: dict[str, list[Plan]]
    """What the yardsticks send there."""


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
        places = [
            _Place(scenario, rate, profile, plans)
            for scenario, rate in itertools.product(settings.scenarios, settings.rates)
            for plans in [bench.prepare(scenario, rate)]
            for profile in settings.profiles
        ]
        for together in [places] if settings.side_by_side else [[place] for place in places]:
            for row in bench.measure(together):
                (beside if row["transport"] in settings.beside else rows).append(row)
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

    def _server_of(self, name: str, scenario: Scenario, rate: float) -> tuple[Server, str]:
        """Return the server of a row, and the transport to it; of a yardstick, what it copies."""
        transport = {**SLOW_SINKS, **_PLAN_OF}.get(name, name)
        is_slow = name in SLOW_SINKS
        return self._server(transport, scenario, rate, is_slow=is_slow), transport

    # Rows.

    def prepare(self, scenario: Scenario, rate: float) -> dict[str, list[Plan]]:
        """Warm every row up, and return what the yardsticks have to send."""
        plans: dict[str, list[Plan]] = {}
        for name in (*self._settings.transports, *self._settings.beside):
            server, transport = self._server_of(name, scenario, rate)
            if name in _PLAN_OF:
                self._progress(f"{scenario.name}, {rate:g} tokens/s: learning the events")
                learned = self._converse(server, transport, scenario, rate, _LOOPBACK, learn=True)
                plans[name] = plans_of(learned.turns, scenario, rate)
                self._converse_echo(name, plans[name][:_WARM_TURNS], _LOOPBACK)
        return plans

    def measure(self, places: Sequence[_Place]) -> list[dict[str, Any]]:
        """Return the rows of the transports and of what runs beside them, of all places."""
        settings = self._settings
        names = (*settings.transports, *settings.beside)
        found: list[tuple[str, _Place, list[Conversation]]] = [
            (name, place, []) for name in names for place in places
        ]
        for repeat in range(settings.repeats):
            for name, place, conversations in order_of(found, repeat):
                self._progress(
                    f"{place.scenario.name}, {place.profile.name}, {place.rate:g} tokens/s: "
                    f"{repeat + 1} of {settings.repeats}: {name}"
                )
                conversations.append(self._one(name, place))
        return [self._row(*row) for row in found]

    def _one(self, name: str, place: _Place) -> Conversation:
        if name in _PLAN_OF:
            return self._converse_echo(name, place.plans[name], place.profile)
        server, transport = self._server_of(name, place.scenario, place.rate)
        return self._converse(server, transport, place.scenario, place.rate, place.profile)

    def _row(
        self, name: str, place: _Place, conversations: Sequence[Conversation]
    ) -> dict[str, Any]:
        way = Way(place.profile, self._stand.round_trips(name))
        plans = place.plans.get(name)
        return {
            "scenario": place.scenario.name,
            "profile": place.profile.name,
            "rate": place.rate,
            "transport": name,
            **row_of(conversations, place.scenario, place.rate, way, plans),
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

    def _converse_echo(
        self, yardstick: str, plans: Sequence[Plan], profile: Profile
    ) -> Conversation:
        if self._echo is None:
            self._echo = self._stand.echo()
        port = self._echo.ready["grpc_port" if yardstick == "echo_grpc" else "http_port"]
        job = {
            "do": "echo",
            "transport": yardstick,
            "port": self._stand.through(port, profile),
            "plans": plans,
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
