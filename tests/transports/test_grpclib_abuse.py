"""Budgets of the grpclib back end."""

from __future__ import annotations

from turnwire_server.transports.grpclib.abuse import Abuse, Budget


def abuse(interval: float = 4.0, strikes: int = 2) -> Abuse:
    return Abuse(min_ping_interval_s=interval, max_ping_strikes=strikes)


def test_a_budget_is_spent_and_earned_again() -> None:
    budget = Budget(3, 2)
    assert [budget.spend(10.0) for _ in range(4)] == [True, True, True, False]
    assert [budget.spend(12.0) for _ in range(4)] == [True, True, True, False]


def test_a_budget_never_holds_more_than_its_burst() -> None:
    budget = Budget(2, 100)
    assert [budget.spend(1e6) for _ in range(3)] == [True, True, False]


def test_resets_at_a_bearable_rate_go_on_for_ever() -> None:
    counter = abuse()
    assert all(counter.reset(number / 30) for number in range(10_000))
    assert not all(counter.reset(400.0) for _ in range(2000))


def test_pings_closer_than_the_interval_are_strikes() -> None:
    counter = abuse()
    assert [counter.ping(at, 0) for at in (0.0, 1.0, 2.0, 3.0)] == [True, True, True, False]


def test_pings_at_the_interval_are_no_strikes() -> None:
    counter = abuse()
    assert all(counter.ping(4.0 * number, 0) for number in range(100))


def test_pings_after_something_was_sent_are_no_strikes() -> None:
    counter = abuse()
    assert all(counter.ping(0.01 * number, number) for number in range(100))


def test_strikes_may_be_unlimited() -> None:
    counter = abuse(strikes=0)
    assert all(counter.ping(0.0, 0) for _ in range(100))


def test_window_updates_are_measured_by_what_was_sent() -> None:
    counter = abuse()
    assert all(counter.window_update(frames_sent=500) for _ in range(6000))
    assert not counter.window_update(frames_sent=500)
    assert counter.window_update(frames_sent=600)
