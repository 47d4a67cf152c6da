"""The modelled network: delays, rates and connects, as numbers."""

from __future__ import annotations

import pytest

from turnwire_bench.network import PROFILES, Direction, Passage, Profile

REGION = Profile("", round_trip_s=0.002)
SLOW = Profile("", round_trip_s=0.1, bits_per_second=8_000)  # a byte takes a millisecond


def test_bytes_take_half_a_round_trip():
    passage = Passage(Direction(REGION), opened_at=0.0)
    assert passage.arrives_at(5.0, 100) == pytest.approx(5.001)


def test_a_connect_costs_a_round_trip_before_the_first_bytes():
    passage = Passage(Direction(REGION), opened_at=5.0)
    assert passage.arrives_at(5.0, 100) == pytest.approx(5.003)
    assert passage.arrives_at(6.0, 100) == pytest.approx(6.001)


def test_the_rate_holds_bytes_back():
    passage = Passage(Direction(SLOW), opened_at=-1.0)
    assert passage.arrives_at(0.0, 100) == pytest.approx(0.1 + 0.05)


def test_connections_share_the_rate():
    direction = Direction(SLOW)
    first, second = (Passage(direction, opened_at=-1.0) for _ in range(2))
    assert first.arrives_at(0.0, 100) == pytest.approx(0.15)
    assert second.arrives_at(0.0, 100) == pytest.approx(0.25)


def test_the_wait_for_a_connect_does_not_hold_up_other_connections():
    direction = Direction(SLOW)
    fresh, kept = Passage(direction, opened_at=0.0), Passage(direction, opened_at=-1.0)
    assert fresh.arrives_at(0.0, 10) == pytest.approx(0.1 + 0.05)
    assert kept.arrives_at(0.0, 10) == pytest.approx(0.02 + 0.05)


def test_bytes_of_a_connection_never_overtake_each_other():
    passage = Passage(Direction(SLOW), opened_at=0.0)
    arrivals = [passage.arrives_at(now, 1) for now in (0.0, 0.001, 0.09, 0.2)]
    assert arrivals == sorted(arrivals)


def test_loopback_needs_no_relay_and_takes_no_time():
    loopback = PROFILES["loopback"]
    assert not loopback.is_modelled
    assert loopback.turn_s(round_trips=3, bytes_up=10**9) == 0.0


def test_the_internet_is_thirty_milliseconds_and_fifty_megabits():
    internet = PROFILES["internet"]
    assert internet.is_modelled
    assert internet.turn_s(round_trips=2, bytes_up=50_000_000 // 8) == pytest.approx(1.06)
