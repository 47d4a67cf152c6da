"""How often, and in which order, what is compared is measured."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from turnwire_bench.repetitions import order_of, repeats_of


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7, 12, 13])
def test_each_repetition_runs_everything_once_and_each_is_first_equally_often(count):
    things = tuple(range(count))
    orders = [order_of(things, repetition) for repetition in range(2 * count)]
    assert all(sorted(order) == list(things) for order in orders)
    assert set(Counter(order[0] for order in orders).values()) == {2}


@pytest.mark.parametrize("count", [2, 3, 4, 7, 13])
def test_of_two_things_neither_is_always_the_later_one_or_behind_the_same_other(count):
    orders = [order_of(range(count), repetition) for repetition in range(4)]
    for thing in range(count):
        for other in set(range(count)) - {thing}:
            later = {order.index(thing) > order.index(other) for order in orders}
            assert later == {True, False}


def test_neighbours_stay_neighbours_but_for_the_ends():
    for repetition in range(8):
        order = order_of("abcdefg", repetition)
        apart = [abs(order.index(one) - order.index(two)) for one, two in pairwise("abcdefg")]
        assert sorted(apart)[:-1] == [1] * 5


def test_what_takes_seconds_is_repeated_more_often():
    assert [repeats_of(group, 3) for group in ("history", "idle")] == [15, 3]
    assert repeats_of("history", 3, quick=True) == 3
