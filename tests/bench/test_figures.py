"""Statistics: medians with their spread, percentiles, ratios and bars."""

from __future__ import annotations

import pytest

from turnwire_bench.bar import Bar, ratios_of, savings_of
from turnwire_bench.figures import Figure, percentile


def test_a_figure_is_the_median_and_the_spread_of_the_repetitions():
    assert Figure.of([[1, 2, 9], [3, 4, 5]]) == Figure(3.5, 2, 4)


def test_repetitions_without_values_are_left_out():
    assert Figure.of([[], [3.0]]) == Figure(3.0, 3.0, 3.0)
    with pytest.raises(ValueError, match="a figure needs a value"):
        Figure.of([[], []])


def test_a_percentile_is_the_nearest_rank():
    values = list(range(1, 101))
    assert [percentile(values, part) for part in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="a percentile needs a value"):
        percentile([], 0.5)


def test_a_ratio_is_of_two_figures_of_the_same_repetition():
    # The machine slows down from one repetition to the next; the ratio stays.
    assert ratios_of([2, 4, 9], [1, 2, 3]) == [2, 2, 3]
    bar = Bar("a", "what", 2.5, ratios_of([2, 4, 9], [1, 2, 3]))
    assert bar.measured == Figure(2, 2, 3)


def test_a_repetition_without_one_of_its_sides_has_no_ratio():
    assert ratios_of([2, None, 9, 8], [1, 2, 3, None]) == [2, 3]
    with pytest.raises(ValueError, match="shorter"):
        ratios_of([1, 2], [1])


def test_a_saving_is_in_percent_and_its_lowest_value_comes_first():
    saving = Bar("a", "what", 40, savings_of([5, 6, 4], [10, 8, 10])).measured
    assert saving.median == pytest.approx(50)
    assert saving.low == pytest.approx(25)
    assert saving.high == pytest.approx(60)


def test_a_ratio_to_nothing_is_not_a_division_by_it():
    assert ratios_of([1, 1], [0, -0.1]) == [100, 100]


@pytest.mark.parametrize(
    ("median", "at_least", "is_met"),
    [(1.2, False, True), (1.3, False, False), (1.2, True, False), (1.3, True, True)],
)
def test_a_bar_is_met_on_the_right_side_of_its_limit(median, at_least, is_met):
    bar = Bar("a", "what", 1.25, (0, median, 9), at_least=at_least)
    assert bar.is_met is is_met
    assert bar.to_json()["met"] is is_met


def test_the_limit_itself_is_met():
    assert Bar("a", "what", 1.0, [1.0]).is_met
    assert Bar("a", "what", 1.0, [1.0], at_least=True).is_met


def test_a_bar_tells_each_of_its_repetitions():
    told = Bar("a", "what", 1.0, (3.0, 1.0, 2.0, 9.0)).to_json()
    assert (told["measured"], told["spread"]) == (2.5, [1.0, 9.0])
    assert (told["repetitions"], told["by_repetition"]) == (4, [3.0, 1.0, 2.0, 9.0])
