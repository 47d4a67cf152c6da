from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.ebnf import grammar_pattern
from turnwire_server.adapters.engines.regex_grammar import (
    UnsupportedPattern,
    json_text_rule,
    literal,
    text_rule,
)

PATTERNS = (
    r"(foo|ba[rz]){2,3}\.?",
    r"\w*-[^a-z\s]+",
    r"^\d{4}-\d\d$",
    r"a.c|[\"\\]+",
    r"[\d_]+?\S",
    r"(?:x|y*)\D",
    r"é[à-ü]{0,2}",
)
TEXTS = st.text(st.sampled_from('foobarz.-_1234 "\\\nacxyéàüA'), max_size=12)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=TEXTS)
def test_a_grammar_accepts_the_texts_that_the_pattern_matches(pattern, text):
    accepted = grammar_pattern(f"root ::= {text_rule(pattern)}\n").fullmatch(text) is not None
    assert accepted == (re.fullmatch(pattern, text, re.ASCII) is not None)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=TEXTS)
def test_within_json_a_pattern_may_occur_anywhere_and_is_escaped(pattern, text):
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    grammar = grammar_pattern(f"root ::= {json_text_rule(pattern)}\n")
    accepted = grammar.fullmatch(written) is not None
    assert accepted == (re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None)


@pytest.mark.parametrize(
    "pattern",
    [r"(?=a)b", r"(a)\1", r"a$b", r"(", r"a{1,9999}", "x" * 3000, r"\bword", "(" * 500, r"[^\d\D]"],
)
def test_what_a_grammar_cannot_say_is_refused(pattern):
    with pytest.raises(UnsupportedPattern):
        text_rule(pattern)


@given(st.text(max_size=20))
def test_a_literal_is_exactly_its_text(text):
    pattern = grammar_pattern(f"root ::= {literal(text)}\n")
    assert pattern.fullmatch(text)
    assert not pattern.fullmatch(text + "x")
