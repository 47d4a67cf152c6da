from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.ebnf import grammar_pattern
from turnwire_server.adapters.engines.number_grammar import integer_rule, number_rule

BOUNDS = st.integers(-1200, 1200)


@given(BOUNDS, BOUNDS, BOUNDS)
def test_an_integer_is_accepted_exactly_within_its_bounds(first, second, value):
    least, most = sorted((first, second))
    rule = integer_rule({"minimum": least, "maximum": most})
    accepted = grammar_pattern(f"root ::= {rule}\n").fullmatch(str(value)) is not None
    assert accepted == (least <= value <= most)


@given(BOUNDS, BOUNDS)
def test_one_bound_leaves_the_other_side_open(bound, value):
    rule = integer_rule({"exclusiveMinimum": bound})
    accepted = grammar_pattern(f"root ::= {rule}\n").fullmatch(str(value)) is not None
    assert accepted == (value > bound)


@given(BOUNDS, BOUNDS, st.decimals(-1300, 1300, places=3))
def test_a_decimal_that_is_accepted_is_within_its_bounds(first, second, value):
    least, most = sorted((first, second))
    rule = number_rule({"minimum": least, "maximum": most})
    text = format(value.normalize(), "f")
    if grammar_pattern(f"root ::= {rule}\n").fullmatch(text):
        assert least <= value <= most
    elif value != 0:
        # What stays out lies outside, or is written in another way.
        assert not least <= value <= most


@pytest.mark.parametrize("schema", [{}, {"minimum": True}, {"minimum": "1"}, {"maximum": 1e400}])
def test_without_a_usable_bound_there_is_no_rule(schema):
    assert integer_rule(schema) is None
    assert number_rule(schema) is None


def test_bounds_that_no_number_fits_are_ignored():
    assert integer_rule({"minimum": 5, "maximum": 4}) is None
    assert number_rule({"minimum": 0.2, "maximum": 0.4}) is None
