from __future__ import annotations

from turnwire_server.adapters.engines.sim_pacing import Pace


def test_a_rate_spreads_tokens_evenly_from_the_first() -> None:
    pace = Pace(10.0)
    assert [pace.due(elapsed, 100) for elapsed in (-0.1, 0, 0.05, 0.125, 1.0)] == [0, 1, 1, 2, 11]
    assert pace.when(5) == 0.5
    assert pace.due(60, 100) == 100
    assert not pace.pulled


def test_without_a_rate_everything_is_due_at_once() -> None:
    assert Pace().due(0, 100) == 100
    assert Pace().when(99) == 0
    assert Pace().pulled


def test_silence_moves_what_comes_after_it() -> None:
    pace = Pace(10.0, silent_s=5.0, silent_after=3)
    assert [pace.due(elapsed, 100) for elapsed in (0, 0.2, 0.3, 5.2, 5.3)] == [1, 3, 3, 3, 4]
    assert (pace.when(2), pace.when(3)) == (0.2, 5.3)
    assert Pace(silent_s=5.0, silent_after=3).due(4.9, 100) == 3
    assert Pace(silent_s=5.0, silent_after=3).due(5.0, 100) == 100


def test_recorded_times_are_kept() -> None:
    pace = Pace(times=(0.5, 0.5, 2.0))
    assert [pace.due(elapsed, 3) for elapsed in (0.4, 0.5, 1.9, 2.0)] == [0, 2, 2, 3]
    assert pace.when(2) == 2.0
