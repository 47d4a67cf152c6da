"""What is decided about loads and chains, without any."""

from __future__ import annotations

import pytest

from turnwire_bench import scale, scale_workers
from turnwire_bench.bars import BARS, BarsSettings, run_bars
from turnwire_bench.chain import ChainSettings, growth
from turnwire_bench.failure import BenchFailure
from turnwire_bench.peers import parse_peer


class FakeServer:
    pid = 1

    def port(self, wire: str) -> int:
        return 2


class FakeWorker:
    """Carries up to a number of sessions."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[int] = []

    def ask(self, job, timeout_s):
        count = job["sessions"]
        self.asked.append(count)
        return trial(p99=10.0 if count <= self.most else 80.0)


def trial(*, p99: float | None, tokens: int = 1000, ended: int = 0) -> dict:
    return {
        "delay_ms": {"p50": 1.0, "p95": 2.0, "p99": p99, "max": p99},
        "tokens": tokens,
        "wanted_tokens": 1000,
        "ended": ended,
        "server_cpu_s": 6.0,
        "client_cpu_s": 1.0,
        "wall_s": 4.0,
        "events": 100,
    }


@pytest.mark.parametrize("most", [1, 2, 37, 150, 499])
def test_the_search_finds_what_is_carried_within_a_tenth(most):
    settings = scale.ScaleSettings(most_sessions=2000)
    worker = FakeWorker(most)
    found = scale._search(FakeServer(), worker, "ws", 65.0, settings, lambda _: None)
    assert most / 1.1 - 1 <= found["sessions"] <= most
    assert len(worker.asked) < 40
    # The server used a core and a half, so a core carries two thirds.
    assert found["sessions_per_core"] == pytest.approx(found["sessions"] / 1.5)


def test_the_search_ends_at_the_most_it_may_try():
    settings = scale.ScaleSettings(most_sessions=64)
    found = scale._search(FakeServer(), FakeWorker(999), "ws", 65.0, settings, lambda _: None)
    assert found["sessions"] == 64


def test_a_server_that_carries_nothing_carries_none():
    settings = scale.ScaleSettings()
    found = scale._search(FakeServer(), FakeWorker(0), "ws", 65.0, settings, lambda _: None)
    assert (found["sessions"], found["sessions_per_core"]) == (0, 0.0)


@pytest.mark.parametrize(
    ("given", "is_carried"),
    [
        ({"p99": 50.0}, True),
        ({"p99": 50.1}, False),
        ({"p99": None}, False),
        ({"p99": 1.0, "tokens": 900}, False),
        ({"p99": 1.0, "ended": 1}, False),
    ],
)
def test_a_load_is_carried_when_all_tokens_come_in_time(given, is_carried):
    assert scale.is_carried(trial(**given)) is is_carried


def test_growth_compares_the_last_turns_with_the_first_that_continue():
    values = [99.0, *[1.0] * 10, *[5.0] * 79, *[2.0] * 10]
    grown = growth([values, values, [99.0, *[1.0] * 10, *[5.0] * 79, *[3.0] * 10]])
    assert grown["ratio"] == 2.0
    assert grown["ratio_spread"] == [2.0, 3.0]
    assert grown["turns_compared"] == 10
    assert growth([[9.0, 1.0, 1.0, 3.0]])["turns_compared"] == 1


def test_a_chain_is_as_long_as_it_is_told():
    scenario = ChainSettings(turns=200, tokens=100_000).scenario
    assert scenario.turns == 200
    assert (scenario.message_tokens + scenario.answer_tokens) * 200 == 100_000


def test_a_peer_is_a_name_and_a_url():
    peer = parse_peer("other=http://127.0.0.1:4000/v1/,gpt")
    assert (peer.name, peer.url, peer.model) == ("other", "http://127.0.0.1:4000/v1", "gpt")
    assert parse_peer("a=https://x").model == "sim"
    for text in ("http://x", "=http://x", "a=x"):
        with pytest.raises(BenchFailure, match="is no peer"):
            parse_peer(text)


def test_an_unknown_bar_is_refused_with_the_known_ones():
    with pytest.raises(BenchFailure, match="no bar 'height'; known are overhead, burst"):
        run_bars(BarsSettings(("height",)), lambda _: None)
    assert len(BARS) == 12


def test_searches_take_turns_one_try_each():
    tried: list[tuple[int, int]] = []

    def tries(workers: int, most: int):
        def once(count: int) -> dict:
            tried.append((workers, count))
            return trial(p99=10.0 if count <= most else 80.0)

        return once

    found = scale_workers.in_turn(
        65.0, 2000, {1: tries(1, 100), 2: tries(2, 190)}, "ws", lambda _: None
    )
    assert 90 <= found[1]["sessions"] <= 100
    assert 171 <= found[2]["sessions"] <= 190
    turns = [workers for workers, _ in tried]
    both = 2 * min(turns.count(1), turns.count(2))
    assert turns[:both] == [1, 2] * (both // 2)
    alone = {workers: [count for who, count in tried if who == workers] for workers in (1, 2)}
    assert len(alone[1]) == len(found[1]["tries"])


@pytest.mark.parametrize(
    ("workers", "client_cores", "left", "sessions"),
    [(1, 0.4, 1.0, 100), (2, 0.5, 1.5, 133.3), (2, 0.0, 2.0, 100), (2, None, 2.0, 100)],
)
def test_what_the_load_takes_of_the_workers_cores_is_accounted_for(
    workers, client_cores, left, sessions
):
    found = {"sessions": 100, "client_cores": client_cores}
    counted = scale_workers.accounted(found, workers, cpus=2)
    assert counted["cores_left"] == left
    assert counted["sessions_accounted"] == pytest.approx(sessions, abs=0.1)
