from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire_server.adapters.renderers.text_parser import TextParser
from turnwire_server.adapters.renderers.tool_calls import ToolCallParser
from turnwire_server.ports.renderer import Ending
from turnwire_server.session.output import (
    CallDelta,
    CallEnded,
    CallStarted,
    OutputPiece,
    ReasoningDelta,
    TextDelta,
)
from turnwire_server.session.tools import ToolSet, ToolSpec

TOOLS = ToolSet.of((ToolSpec("add"),), b"tools")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
OUTPUTS = [
    ("", "Two words, and é.\n"),
    ("", f"<think>\nWhat now?\n</think>\n\nI add. {CALL} Done."),
    (CALL[:12], CALL[12:]),
    (CALL[:45], f"{CALL[45:]} Done."),
    ("<think>\n", "What now?</think>Nothing."),
]
"""Text in the prompt that belongs to the output, and what the model says."""
SILENT = 256
"""An id without text; all others are bytes."""


def token_bytes(token: int) -> bytes:
    return b"" if token == SILENT else bytes((token,))


def read(opening: str, ids: Sequence[int]) -> tuple[list[OutputPiece], TextParser]:
    """Return what comes of an output that is fed one id after the other."""
    calls = ToolCallParser(
        TOOLS, opening=opening, forced=opening.startswith("<tool"), parallel=False, reasoning=True
    )
    parser = TextParser(token_bytes, calls, opening=opening)
    pieces = [piece for token in ids for piece in parser.feed([token])]
    return joined([*pieces, *parser.finish("stop")]), parser


def joined(pieces: Sequence[OutputPiece]) -> list[OutputPiece]:
    out: list[OutputPiece] = []
    for piece in pieces:
        last = out[-1] if out else None
        match last, piece:
            case (TextDelta(), TextDelta()) | (ReasoningDelta(), ReasoningDelta()):
                out[-1] = type(piece)(last.text + piece.text)
            case CallDelta(), CallDelta():
                out[-1] = CallDelta(last.text + piece.text)
            case _:
                out.append(piece)
    return out


@pytest.mark.parametrize(("opening", "said"), OUTPUTS)
@given(places=st.lists(st.integers(0, 120), max_size=5))
def test_ids_without_text_change_nothing_wherever_they_stand(opening, said, places):
    ids = list(said.encode())
    pieces, parser = read(opening, ids)
    silent = sorted(min(place, len(ids)) for place in places)
    longer = ids.copy()
    for place in reversed(silent):
        longer.insert(place, SILENT)
    more, other = read(opening, longer)
    assert more == pieces
    assert (other.done, other.reasoning_tokens) == (parser.done, parser.reasoning_tokens)
    if parser.ending is None:
        assert other.ending is None
    else:
        assert other.ending is not None
        counted = [token for token in longer[: other.ending.ids] if token != SILENT]
        assert Ending(len(counted), is_exact=other.ending.is_exact) == parser.ending


def test_what_the_prompt_says_of_the_output_comes_though_the_model_says_nothing():
    pieces, _ = read(CALL, [SILENT])
    assert pieces == [CallStarted("add"), CallDelta('{"a": 1}'), CallEnded()]


def test_an_id_without_text_is_not_read_as_text(monkeypatch):
    fed = []
    monkeypatch.setattr(ToolCallParser, "feed", lambda self, text: fed.append(text) or ())
    calls = ToolCallParser(TOOLS)
    parser = TextParser(token_bytes, calls)
    cut = "é".encode()
    for token in (SILENT, cut[0], cut[1], SILENT):
        assert parser.feed([token]) == ()
    assert fed == ["é"]


def test_what_the_prompt_begins_of_the_output_comes_at_its_end_at_the_latest():
    pieces, _ = read("I say", [SILENT])
    assert pieces == [TextDelta("I say")]
