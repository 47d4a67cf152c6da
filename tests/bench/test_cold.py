"""How long memory takes that was touched a moment ago."""

from __future__ import annotations

import pytest

from turnwire_bench.cold import cold_memory


def test_a_step_is_timed_right_after_another_walk_and_after_a_pause():
    now, steps, pauses = 0.0, 0, []

    def clock() -> float:
        # Two readings for each walk; of three walks the first is not counted.
        nonlocal now, steps
        steps += 1
        if steps % 2 == 0:
            now += {2: 0.9, 4: 0.004095, 0: 0.040950}[steps % 6]
        return now

    told = cold_memory(pause=pauses.append, clock=clock)
    assert told["hot_ns"] == pytest.approx(1000)
    assert told["cold_ns"] == pytest.approx(10_000)
    assert pauses == [told["pause_ms"] / 1000] * (steps // 6)


def test_it_is_measured_without_anything_else():
    told = cold_memory()
    assert told["hot_ns"] > 0
    assert told["cold_ns"] > 0
