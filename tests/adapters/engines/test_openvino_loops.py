"""When an output goes in circles, and when it only looks like it."""

from __future__ import annotations

import random

import pytest

from turnwire_server.adapters.engines.openvino_loops import LoopDetector


def stopped_at(ids: list[int], step: int = 1) -> int | None:
    """Return after how many ids the detector says so."""
    detector = LoopDetector()
    for start in range(0, len(ids), step):
        if detector.feed(ids[start : start + step]):
            return start + step
    return None


@pytest.mark.parametrize("period", [1, 2, 13, 100, 256])
def test_the_same_over_and_over_is_a_circle(period: int) -> None:
    before = random.Random(period).sample(range(1000, 9000), 300)
    circle = random.Random(-period).sample(range(1000), period)
    end = stopped_at([*before, *(circle * 2000)[:4000]])
    assert end is not None
    # As soon as it was there four times and 256 tokens long; looked at every 16 tokens.
    assert 0 <= end - 300 - max(4 * period, 256 + period) <= 16


@pytest.mark.parametrize("step", [1, 5, 16, 64])
def test_it_does_not_matter_how_the_ids_come(step: int) -> None:
    end = stopped_at([*range(1000, 1100), *[1, 2, 3] * 200], step)
    assert end is not None
    assert end - 100 - 259 <= 16 + step


def test_what_is_short_or_said_less_often_is_no_circle() -> None:
    assert stopped_at([7] * 240) is None  # a row of dashes
    assert stopped_at([7, 8] * 120) is None  # a hundred zeros
    song = list(range(200))
    assert stopped_at([*song * 3, *range(1000, 1100)]) is None  # a refrain
    assert stopped_at(list(range(257)) * 20) is None  # longer than anybody looks


def test_a_circle_that_counts_its_rounds_is_one_all_the_same() -> None:
    said = list(range(1000, 1049))
    counted = [token for number in range(40) for token in (10_000 + number, *said)]
    end = stopped_at(counted)
    assert end is not None
    assert 11 * 50 <= end <= 11 * 50 + 80  # ten rounds more; looked at every 64 tokens


@pytest.mark.parametrize("same", [1, 5, 15])
def test_a_list_of_different_lines_is_no_circle(same: int) -> None:
    line = list(range(1000, 1000 + same))
    listed = [token for number in range(400) for token in (10_000 + number, *line)]
    assert stopped_at(listed) is None


def test_memory_is_bounded() -> None:
    detector = LoopDetector()
    for number in range(20_000):
        detector.feed([number])
    assert len(detector._tail) <= 128 * 11 + 16
