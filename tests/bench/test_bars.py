"""Bars out of what a stand measures: which figures are compared, and when each was measured."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from turnwire_bench import bars, bars_of_load, bars_of_rows, chain, transports
from turnwire_bench.bar import Bar
from turnwire_bench.samples import Conversation, TurnSample

Job = dict[str, Any]
Answer = Callable[[Job], dict[str, Any]]


class FakeChild:
    """A server, an echo or a load; keeps the jobs that it was asked to do."""

    grpc_port = 2
    is_secure = False

    def __init__(self, pid: int, answer: Answer) -> None:
        self.pid = pid
        self.ready = {"grpc_port": 10 + pid, "http_port": 20 + pid}
        self.jobs: list[Job] = []
        self._answer = answer

    def ask(self, job: Job, timeout_s: float) -> dict[str, Any]:
        self.jobs.append(job)
        return self._answer(job)

    def port(self, wire: str) -> int:
        return 2


class FakeStand:
    """Starts nothing."""

    def __init__(self, answer: Answer) -> None:
        self.load = FakeChild(1, answer)

    def __call__(self, **_: object) -> FakeStand:
        return self

    def __enter__(self) -> FakeStand:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def worker(self) -> FakeChild:
        return self.load

    def server(self, **_: object) -> FakeChild:
        return FakeChild(2, dict)

    def echo(self) -> FakeChild:
        return FakeChild(3, dict)

    def place(self, server: FakeChild, transport: str, profile: object) -> dict[str, Any]:
        return {"transport": transport}

    def through(self, port: int, profile: object) -> int:
        return port

    def wants_tls(self, transport: str) -> bool:
        return False

    def server_pids(self, server: FakeChild, transport: str) -> list[int]:
        return [2]

    def round_trips(self, transport: str) -> int:
        return 1

    def cpu_seconds(self, pids: object) -> None:
        return None


@pytest.fixture
def stand(monkeypatch) -> Callable[[Any, Answer], list[Job]]:
    """Put a stand that answers so into a module; returns the jobs of its load."""

    def put(module: Any, answer: Answer) -> list[Job]:
        fake = FakeStand(answer)
        monkeypatch.setattr(module, "Stand", fake)
        return fake.load.jobs

    return put


def conversation(overhead_ms: float, turns: int, **more: Any) -> dict[str, Any]:
    sample = TurnSample(total_s=overhead_ms / 1e3, ttft_s=0.001, output_tokens=1, **more)
    return Conversation([sample] * turns, e2e_s=1.0, client_cpu_s=0.1).to_json()


def said(_: str) -> None:
    pass


def test_short_and_long_histories_take_turns_and_are_compared_by_repetition(stand):
    slowdowns = iter([1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0, 2.0, 2.0, 2.0, 2.0])

    def answer(job: Job) -> dict[str, Any]:
        if len(jobs) <= 2:  # each transport warms up
            return conversation(100.0, 2)
        is_long = job["scenario"]["history_tokens"] > 1000
        return conversation((3.0 if is_long else 2.0) * next(slowdowns), 2)

    jobs = stand(transports, answer)
    found = bars_of_rows.history_bars(3, said, quick=False)
    assert [bar.name for bar in found] == ["history_ws", "history_grpc"]
    for bar in found:
        assert bar.values == pytest.approx([1.5] * 3)
    sizes = [job["scenario"]["history_tokens"] for job in jobs[2:]]
    assert len(sizes) == 12
    assert all(before != after for before, after in pairwise(sizes[:4]))
    assert [sizes[first] for first in (0, 4)] == [1000, 100_000]
    orders = {
        tuple((job["transport"], job["scenario"]["name"]) for job in jobs[first : first + 4])
        for first in (2, 6, 10)
    }
    assert len(orders) == 3


def test_scenarios_that_are_not_compared_are_measured_one_after_the_other(stand):
    jobs = stand(transports, lambda job: conversation(2.0, 2))
    scenarios = tuple(
        bars_of_rows.replace(bars_of_rows.load_scenario("answers"), name=name) for name in "ab"
    )
    settings = transports.TransportsSettings(
        scenarios, transports=("ws", "grpc"), repeats=2, held_sessions=0, beside=()
    )
    rows = transports.run_transports(settings, said)["rows"]
    assert [job["scenario"]["name"] for job in jobs[2:]] == ["a"] * 4 + ["b"] * 4
    assert [(row["scenario"], row["transport"]) for row in rows] == [
        (scenario, wire) for scenario in "ab" for wire in ("ws", "grpc")
    ]


def test_everything_is_warm_before_the_first_repetition(stand):
    events = [(False, 1), (True, 60), (False, 1)]
    jobs = stand(transports, lambda job: conversation(2.0, 3, events=events))
    settings = transports.TransportsSettings(
        (bars_of_rows.load_scenario("answers"),),
        transports=("grpc",),
        repeats=1,
        held_sessions=0,
        beside=("echo_grpc", "grpc_slow_sink"),
    )
    result = transports.run_transports(settings, said)
    # A warm-up, what the echo has to send, the echo, and a warm-up; then one of each.
    assert [job["do"] == "echo" for job in jobs] == [False, False, True, False, False, True, False]
    assert [len(job["plans"]) for job in jobs if job["do"] == "echo"] == [2, 3]
    assert [row["transport"] for row in result["rows"]] == ["grpc"]
    assert [row["transport"] for row in result["beside"]] == ["echo_grpc", "grpc_slow_sink"]


def test_the_two_sides_of_a_burst_take_turns_to_be_first(stand):
    def answer(job: Job) -> dict[str, Any]:
        slowdown = 1 + len(jobs) // 2
        events = [(False, 500), *[(True, 60)] * 3, (False, 900)]
        learned = {"events": events, "frames": 2, "request_size": 9}
        return {"seconds": [(0.02 if job.get("echo") else 0.001) * slowdown], **learned}

    jobs = stand(bars_of_load, answer)
    (bar,) = bars_of_load.burst_bars(4, said, quick=True)
    assert [bool(job.get("echo")) for job in jobs[2:]] == [
        *(False, True, True, False, True, False, False, True)
    ]
    assert len(bar.values) == 4
    assert bar.details["echo_ms"] > 20


def test_the_cpu_of_both_sides_is_taken_one_after_the_other(stand):
    def answer(job: Job) -> dict[str, Any]:
        slowdown = 1 + (len(jobs) - 1) // 7
        return {"server_cpu_s": (2.0 if job["echo"] else 1.0) * slowdown, "tokens": 1e6}

    jobs = stand(bars_of_load, answer)
    found = {bar.name: bar for bar in bars_of_load.cpu_bars(3, said, quick=True)}
    assert found["cpu_65"].values == pytest.approx([0.5] * 3)
    assert found["cpu_65_shared"].values == pytest.approx([0.5] * 3)
    assert found["cpu_1000"].values == pytest.approx([1.0] * 3)
    shared = [number for number, job in enumerate(jobs) if job["connections"] == 1]
    pairs = list(zip(shared[::2], shared[1::2], strict=True))
    assert all(after == before + 1 for before, after in pairs)
    assert [jobs[first]["echo"] for first, _ in pairs] == [False, True, True]


def test_the_transports_of_a_chain_change_their_order(stand):
    jobs = stand(chain, lambda job: conversation(2.0, 20))
    found = bars_of_rows.chain_bars(2, said, quick=True)
    assert [bar.name for bar in found] == ["chain_http_chain", "chain_ws", "chain_grpc"]
    assert [bar.values for bar in found] == [[1.0, 1.0]] * 3
    first, second = ([job["transport"] for job in jobs[at : at + 3]] for at in (3, 6))
    assert sorted(first) == sorted(second)
    assert first != second


def test_bars_that_take_seconds_are_measured_more_often(monkeypatch):
    asked = {}

    def measure(name: str) -> bars.Measure:
        def once(repeats: int, progress: object, *, quick: bool) -> list[Bar]:
            asked[name] = repeats
            return [Bar(name, "what", 1.0, [1.0] * repeats)]

        return once

    monkeypatch.setattr(bars, "BARS", {name: measure(name) for name in ("burst", "idle")})
    result = bars.run_bars(bars.BarsSettings(repeats=3), said)
    assert asked == {"burst": 15, "idle": 3}
    assert [bar["repetitions"] for bar in result["bars"]] == [15, 3]
    assert any("5 times as often" in note for note in result["meta"]["notes"])
    bars.run_bars(bars.BarsSettings(repeats=1, quick=True), said)
    assert asked == {"burst": 1, "idle": 1}
