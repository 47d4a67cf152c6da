from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from turnwire_server.adapters.renderers.json_members import (
    MemberEvent,
    MemberScanner,
    StringDecoder,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


def split(text: str, cuts: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:stop] for start, stop in itertools.pairwise(edges)]


def scan(pieces: list[str]) -> tuple[dict[str, str], MemberEvent]:
    """Return the verbatim text of every member, and the last event."""
    scanner = MemberScanner()
    members: dict[str, str] = {}
    key = ""
    event = MemberEvent.MORE
    for piece in pieces:
        position = 0
        while True:
            event, text, position = scanner.step(piece, position)
            if event is MemberEvent.KEY:
                key = text
            elif event is MemberEvent.BEGIN:
                members[key] = '"' if text == '"' else ""
            elif event is MemberEvent.CHUNK:
                members[key] += text
            elif event is MemberEvent.FINISH and members[key].startswith('"'):
                members[key] += '"'
            if event in (MemberEvent.MORE, MemberEvent.END, MemberEvent.BROKEN):
                break
        if event is not MemberEvent.MORE:
            break
    return members, event


@given(
    st.dictionaries(st.text(max_size=5), json_values, max_size=4),
    st.lists(st.integers(0, 500), max_size=8),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_members_come_verbatim_however_the_text_is_split(
    value: dict[str, object], cuts: list[int], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    members, event = scan(split(text, cuts))
    assert event is MemberEvent.END
    assert {key: json.loads(raw) for key, raw in members.items()} == value


def test_a_marker_outside_strings_breaks_the_object() -> None:
    assert scan(['{"a": {"b": 1</tool_call>'])[1] is MemberEvent.BROKEN
    assert scan(['{"a": "</tool_call>"}'])[1] is MemberEvent.END
    assert scan(['{"a" 1}'])[1] is MemberEvent.BROKEN
    assert scan(["[1]"])[1] is MemberEvent.BROKEN


@given(st.text(max_size=12), st.lists(st.integers(0, 200), max_size=6), st.booleans())
def test_a_string_decodes_the_same_however_it_is_split(
    value: str, cuts: list[int], ascii_only: bool
) -> None:
    decoder = StringDecoder()
    raw = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
    decoded = "".join(decoder.feed(piece) for piece in split(raw, cuts)) + decoder.finish()
    assert decoded == value


@given(
    st.lists(st.sampled_from(["\\ud83d", "\\ude00", "\\u12", "\\u00e9", "\\n", "x", "\\", "u"])),
    st.lists(st.integers(0, 100), max_size=6),
)
def test_broken_escapes_decode_the_same_however_they_are_split(
    parts: list[str], cuts: list[int]
) -> None:
    raw = "".join(parts)
    whole = StringDecoder()
    once = whole.feed(raw) + whole.finish()
    decoder = StringDecoder()
    assert "".join(decoder.feed(piece) for piece in split(raw, cuts)) + decoder.finish() == once
    once.encode()  # no lone surrogate came out


def test_half_a_surrogate_pair_becomes_one_replacement_character() -> None:
    decoder = StringDecoder()
    assert decoder.feed("a\\ud83d") + decoder.finish() == "a\ufffd"
    assert StringDecoder().feed("\\ude00b") == "\ufffdb"
