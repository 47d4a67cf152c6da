"""What is decided about loads and chains, without any."""

from __future__ import annotations

import pytest

from turnwire_bench import bars_of_workers, scale, scale_workers, search
from turnwire_bench.bars import BARS, BarsSettings, run_bars
from turnwire_bench.chain import ChainSettings, growth
from turnwire_bench.failure import BenchFailure
from turnwire_bench.peers import parse_peer


class FakeServer:
    pid = 1

    def port(self, wire: str) -> int:
        return 2


class FakeWorker:
    """Carries up to a number of sessions, and uses a core in proportion."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[int] = []

    def ask(self, job, timeout_s):
        count = job["sessions"]
        self.asked.append(count)
        return self.trial(count)

    def trial(self, count: int) -> dict:
        load = count / max(self.most, 0.1)
        made = trial(p99=10.0 if load <= 1 else 60.0, p95=60.0 if load <= 1.3 else 300.0)
        return {**made, "server_cpu_s": made["wall_s"] * min(load, 1.0)}


def trial(
    *,
    p99: float | None,
    p95: float = 2.0,
    tokens: int = 1000,
    ended: int = 0,
    gave_up: bool = False,
) -> dict:
    return {
        "delay_ms": {"p50": 1.0, "p95": p95, "p99": p99, "max": p99},
        "gave_up": gave_up,
        "tokens": tokens,
        "wanted_tokens": 1000,
        "ended": ended,
        "server_cpu_s": 6.0,
        "client_cpu_s": 1.0,
        "wall_s": 4.0,
        "events": 100,
    }


@pytest.mark.parametrize("most", [1, 2, 9, 37, 150, 155, 240, 499, 1999])
@pytest.mark.parametrize("near", [0, 40, 150, 500])
def test_the_search_finds_what_is_carried_within_a_tenth(most, near):
    worker = FakeWorker(most)
    asked, found = searched(65.0, 2000, worker.trial, near=near)
    assert most / 1.1 - 1 <= found["sessions"] <= most
    assert [each["sessions"] for each in found["tries"]] == asked
    assert len(asked) == len(set(asked)) < 20


def searched(rate: float, most: int, tried, **more) -> tuple[list[int], dict]:
    """Run a search; return the numbers that it tried, and what it found."""
    numbers = search.searching(rate, most, **more)
    asked = [next(numbers)]
    while True:
        try:
            asked.append(numbers.send(tried(asked[-1])))
        except StopIteration as end:
            return asked, end.value


@pytest.mark.parametrize("most", [170, 200, 230, 260, 300])
def test_a_search_goes_up_by_what_the_server_has_left(most):
    # From 154: a machine of the usual kind takes few tries, most of them of what is carried.
    asked, _ = searched(65.0, 2000, FakeWorker(most).trial)
    assert len(asked) <= 5


def test_a_server_that_does_not_tell_its_cpu_is_searched_all_the_same():
    def tried(count: int) -> dict:
        return {**FakeWorker(700).trial(count), "server_cpu_s": None}

    _, found = searched(65.0, 2000, tried)
    assert 636 <= found["sessions"] <= 700
    assert (found["server_cores"], found["sessions_per_core"]) == (None, found["sessions"])


def test_a_repeated_search_begins_at_what_was_found_and_ends_with_the_next_step():
    assert searched(65.0, 2000, FakeWorker(200).trial, near=200)[0] == [200, 220]
    assert searched(65.0, 2000, FakeWorker(199).trial, near=200)[0] == [200, 182]


def test_what_a_core_carries_is_the_number_divided_by_the_cores_used():
    settings = scale.ScaleSettings(most_sessions=37)

    class Spread(FakeWorker):
        def trial(self, count: int) -> dict:
            return {**super().trial(count), "server_cpu_s": 6.0}

    found = scale._search(FakeServer(), Spread(37), "ws", 65.0, settings, lambda _: None)
    # The server used a core and a half, so a core carries two thirds.
    assert found["sessions_per_core"] == pytest.approx(37 / 1.5)


def test_the_search_ends_at_the_most_it_may_try():
    settings = scale.ScaleSettings(most_sessions=64)
    worker = FakeWorker(999)
    found = scale._search(FakeServer(), worker, "ws", 65.0, settings, lambda _: None)
    assert (found["sessions"], worker.asked) == (64, [64])
    assert searched(500.0, 64, FakeWorker(999).trial)[1]["sessions"] == 64


def test_a_server_that_carries_nothing_carries_none():
    settings = scale.ScaleSettings()
    worker = FakeWorker(0)
    found = scale._search(FakeServer(), worker, "ws", 65.0, settings, lambda _: None)
    assert (found["sessions"], found["sessions_per_core"]) == (0, 0.0)
    assert worker.asked[-1] == 1


@pytest.mark.parametrize(
    ("given", "is_carried", "times"),
    [
        ({"p99": 50.0}, True, 1),
        ({"p99": 50.1}, False, 3),
        ({"p99": None}, False, 3),
        ({"p99": 1.0, "tokens": 940}, False, 3),
        ({"p99": 1.0, "ended": 1}, False, 3),
        ({"p99": 500.0, "p95": 100.0}, False, 3),
        ({"p99": 500.0, "p95": 100.1}, False, 1),
        ({"p99": 1.0, "tokens": 790}, False, 1),
        ({"p99": 60.0, "gave_up": True}, False, 1),
    ],
)
def test_what_is_not_carried_is_tried_again_unless_it_is_far_too_much(given, is_carried, times):
    made = trial(**given)
    assert search.is_carried(made) is is_carried
    assert search.best_of(lambda _: made)["times"] == times


def test_what_is_carried_once_is_carried():
    late, fine = trial(p99=60.0), trial(p99=20.0)
    best = search.best_of(lambda before: fine if before == 2 else late)
    assert (best["delay_ms"]["p99"], best["times"]) == (20.0, 3)


def test_a_step_says_how_often_it_was_tried():
    said: list[str] = []
    settings = scale.ScaleSettings(most_sessions=10)
    found = scale._search(FakeServer(), FakeWorker(9), "ws", 65.0, settings, said.append)
    assert found["tries"][0]["times"] == 3
    assert said[:3] == [f"ws, 65 tokens/s: 10 sessions{more}" for more in ("", *AGAIN)]


AGAIN = (" (again, 1)", " (again, 2)")


@pytest.mark.parametrize(
    ("held", "expected"),
    [([], None), ([(99.0, None)], 99.0), ([(150.0, 90.0), (154.0, 112.0), (160.0, None)], 112.0)],
)
def test_what_an_idle_session_holds_is_at_rest_where_that_is_known(held, expected):
    rows = [{"kb_per_session": at_once, "kb_at_rest": at_rest} for at_once, at_rest in held]
    assert scale._idle_kb(rows) == expected


class HoldingServer(FakeServer):
    """Holds less with each look."""

    def __init__(self) -> None:
        self.holds = iter([1000.0, 3000.0, 2500.0, 2000.0, 2000.0, 1500.0])

    def memory_kb(self) -> float:
        return next(self.holds, 1400.0)


@pytest.mark.parametrize(("most", "at_rest"), [(10, 40.0), (9, None)])
def test_idle_sessions_are_weighed_at_once_and_at_rest_unless_they_are_too_many(
    most, at_rest, monkeypatch
):
    class Worker:
        def ask(self, job, timeout_s):
            return {"alive": 10, "connect_s": 2.0}

    monkeypatch.setattr(scale.time, "sleep", lambda _: None)
    settings = scale.ScaleSettings(most_at_rest=most)
    row = scale._idle(HoldingServer(), Worker(), "ws", 10, settings, lambda _: None)
    assert (row["kb_per_session"], row["kb_at_rest"]) == (200.0, at_rest)
    assert (row["kb_kept_after_close"], row["connects_per_second"]) == (40.0, 5.0)


def test_growth_compares_the_last_turns_with_the_first_that_continue():
    values = [99.0, *[1.0] * 10, *[5.0] * 79, *[2.0] * 10]
    grown = growth([values, values, [99.0, *[1.0] * 10, *[5.0] * 79, *[3.0] * 10]])
    assert grown["ratio"] == 2.0
    assert grown["ratio_spread"] == [2.0, 3.0]
    assert grown["turns_compared"] == 10
    assert growth([[9.0, 1.0, 1.0, 3.0]])["turns_compared"] == 1


def test_growth_is_that_within_a_conversation_however_fast_the_machine_is_in_each():
    chains = [[9.0, first, first, last] for first, last in ((10.0, 10.0), (5.0, 20.0), (1.0, 3.0))]
    grown = growth(chains)
    assert grown["ratio_by_repetition"] == [1.0, 4.0, 3.0]
    assert grown["ratio"] == 3.0


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
    assert len(BARS) == 13


@pytest.mark.parametrize(
    ("repeats", "quick", "asked", "used"),
    [(5, False, 3, 1.2), (2, False, 2, 1.2), (5, True, 1, 0.4), (5, True, 1, None)],
)
def test_the_bar_of_more_workers_is_the_ratio_with_the_load_accounted_for(
    repeats, quick, asked, used, monkeypatch
):
    seen = {}

    def run(settings, workers, *, repeats, progress):
        seen.update(workers=workers, repeats=repeats, sessions=settings.most_sessions)
        row = dict.fromkeys(("sessions", "client_cores"), 0.3)
        row |= {"sessions_accounted": 2.0, "server_cores": used, "cores_left": 1.5}
        ratio = {"ratio": 1.75, "ratio_measured": 1.3, "spread": [1.6, 1.9]}
        ratio["by_repetition"] = [1.9, 1.6, 1.75]
        return {"rows": [{"workers": count, **row} for count in workers], "ratios": [ratio]}

    monkeypatch.setattr(bars_of_workers, "run_scale_workers", run)
    monkeypatch.setattr(bars_of_workers.os, "cpu_count", lambda: 2)
    (bar,) = bars_of_workers.workers_bars(repeats, lambda _: None, quick=quick)
    assert (bar.name, bar.limit, bar.at_least, bar.is_met) == ("workers", 1.7, True, True)
    assert (bar.measured.low, bar.measured.high) == (1.6, 1.9)
    assert ("cores were not full" in bar.what) is (used != 1.2)
    assert bar.details["2 workers"]["sessions_accounted"] == 2.0
    assert bar.details["ratio_measured"] == 1.3
    assert seen == {"workers": (1, 2), "repeats": asked, "sessions": 16 if quick else 2000}


def test_there_is_no_bar_of_more_workers_where_there_is_one_core(monkeypatch):
    monkeypatch.setattr(bars_of_workers.os, "cpu_count", lambda: 1)
    said: list[str] = []
    assert bars_of_workers.workers_bars(1, said.append, quick=True) == []
    assert "one core" in said[0]


def test_searches_take_turns_one_try_each():
    tried: list[tuple[int, int]] = []

    def tries(workers: int, most: int):
        def once(count: int) -> dict:
            tried.append((workers, count))
            return FakeWorker(most).trial(count)

        return once

    both_tries = {1: tries(1, 100), 2: tries(2, 190)}
    found = scale_workers.in_turn(65.0, 2000, both_tries, "ws", lambda _: None)
    assert 90 <= found[1]["sessions"] <= 100
    assert 171 <= found[2]["sessions"] <= 190
    turns = [workers for workers, _ in tried]
    both = 2 * min(turns.count(1), turns.count(2))
    assert turns[:both] == [1, 2] * (both // 2)
    alone = {workers: [count for who, count in tried if who == workers] for workers in (1, 2)}
    assert len(alone[1]) == len(found[1]["tries"])
    tried.clear()
    scale_workers.in_turn(65.0, 2000, both_tries, "ws", lambda _: None, {1: 100, 2: 180})
    assert tried == [(1, 100), (2, 180), (1, 110), (2, 198)]


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
