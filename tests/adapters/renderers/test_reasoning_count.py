"""Which ids were reasoning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire_server.adapters.renderers.formats.call_parser import CallParser
from turnwire_server.adapters.renderers.formats.syntax import ANGLE_THINK, HERMES
from turnwire_server.adapters.renderers.reasoning_count import ReasoningCount
from turnwire_server.ports.renderer import Ending
from turnwire_server.session.output import ReasoningDelta
from turnwire_server.session.tools import NO_TOOLS

TOKENS = [b"<think>", b"a", b"bc", b" ", b"\n", b"</think>", b"d</th", b"ink>e", b"", b"\xe4"]
TOKENS += [b"\xb8", b"\x96", b"\xe4\xb8\x96", b"ink>"]


def counted(tokens: list[bytes], opening: str = "") -> tuple[int, str]:
    """Return how many tokens were reasoning, and the reasoning."""
    parser = CallParser(HERMES, NO_TOOLS, opening=opening, think=ANGLE_THINK)
    count = ReasoningCount(tokens.__getitem__, opening=opening)
    said = []
    text = b"".join(tokens).decode("utf-8", "replace")
    for character in text:
        said += parser.feed(character)
    said += parser.finish(complete=True)
    count.ids.extend(range(len(tokens)))
    reasoning = "".join(piece.text for piece in said if isinstance(piece, ReasoningDelta))
    return count.tokens_of(parser.reasoning_spans), reasoning


@pytest.mark.parametrize(
    ("tokens", "opening", "expected"),
    [
        ([b"<think>", b"a", b" b", b"</think>", b"c"], "", 2),
        ([b"<think>", b"a", b"b</think>c", b"d"], "", 2),
        ([b"<think>\n", b"a", b"\n", b"\n", b"</think>"], "", 1),
        ([b"<thi", b"nk>a", b"</think>"], "", 1),
        ([b"<think>", b"\xe4", b"\xb8", b"\x96", b"</think>x"], "", 3),
        ([b"<think>", b"a", b"", b"b", b"</think>"], "", 2),
        ([b"a", b"b", b"</think>", b"c"], "<think>", 2),
        ([b"no", b" thought"], "", 0),
        ([b"<think>", b"a", b"</think>", b"\n", b"<think>", b"b", b"</think>"], "", 2),
        ([b"<think>", b"cut"], "", 1),
        ([], "", 0),
    ],
)
def test_an_id_counts_once_if_it_gave_some_of_the_reasoning(
    tokens: list[bytes], opening: str, expected: int
) -> None:
    assert counted(tokens, opening)[0] == expected


@given(st.lists(st.sampled_from(TOKENS), max_size=20))
def test_there_is_reasoning_if_and_only_if_an_id_counts(tokens: list[bytes]) -> None:
    count, reasoning = counted(tokens)
    assert (count > 0) == bool(reasoning)
    assert count <= sum(map(bool, tokens))


@pytest.mark.parametrize(
    ("position", "ids", "is_exact"), [(3, 0, True), (4, 1, True), (5, 2, False), (7, 3, True)]
)
def test_an_output_that_ends_amid_a_token_is_not_exactly_its_ids(position, ids, is_exact):
    tokens = [b"a", b"bc", b"\xe4\xb8\x96", b"d"]
    count = ReasoningCount(tokens.__getitem__, opening="<c>")
    count.ids.extend(range(len(tokens)))
    assert count.ending(position, is_closed=True) == Ending(ids, is_exact)
    assert count.ending(position, is_closed=False) == Ending(ids, is_exact=False)
