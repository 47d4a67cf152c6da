from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire_server.adapters.renderers.detokenizer import Detokenizer


def byte_detokenizer() -> Detokenizer:
    return Detokenizer(lambda token: bytes((token,)) if token < 256 else b"")


@pytest.mark.parametrize("text", ["😀", "삼겹살", "世", "👨‍👩‍👧‍👦", "🇰🇷🇺🇳"])
def test_a_character_split_across_tokens_comes_whole(text: str) -> None:
    detokenizer = byte_detokenizer()
    pieces = [detokenizer.feed([byte]) for byte in text.encode()]
    assert [piece for piece in pieces if piece] == list(text)
    assert detokenizer.finish() == ""


def test_a_held_back_character_comes_once() -> None:
    detokenizer = byte_detokenizer()
    data = "A 世ab".encode()
    assert [
        detokenizer.feed(data[:4]),
        detokenizer.feed(data[4:6]),
        detokenizer.feed(data[6:]),
    ] == [
        "A ",
        "世a",
        "b",
    ]


def test_a_cut_tail_becomes_one_replacement_character() -> None:
    for cut in (1, 2, 3):
        detokenizer = byte_detokenizer()
        assert detokenizer.feed("ok😀".encode()[: 2 + cut]) == "ok"
        assert detokenizer.finish() == "\ufffd"
        assert detokenizer.finish() == ""


def test_an_invalid_byte_becomes_one_replacement_character() -> None:
    detokenizer = byte_detokenizer()
    assert detokenizer.feed([0x61, 0xFF, 0x62]) == "a\ufffdb"


def test_a_lone_surrogate_never_comes_out() -> None:
    detokenizer = byte_detokenizer()
    text = detokenizer.feed("a\udcafb".encode("utf-8", "surrogatepass")) + detokenizer.finish()
    assert text.encode() and text.startswith("a\ufffd") and text.endswith("b")


def test_ids_without_text_add_nothing() -> None:
    detokenizer = byte_detokenizer()
    assert detokenizer.feed([0xF0, 0x9F, 300, 0x98, 0x80]) == "😀"


@given(st.lists(st.binary(max_size=6), max_size=12))
def test_any_split_gives_what_decoding_at_once_gives(chunks: list[bytes]) -> None:
    detokenizer = byte_detokenizer()
    text = "".join(detokenizer.feed(chunk) for chunk in chunks) + detokenizer.finish()
    assert text == b"".join(chunks).decode("utf-8", "replace")


def test_an_id_of_whole_characters_may_be_taken_alone_and_no_other() -> None:
    detokenizer = Detokenizer(
        {1: b"word", 2: "삶".encode(), 3: b"\xf0\x9f", 4: b"\x98\x80", 5: b""}.get
    )  # type: ignore[arg-type]
    assert [detokenizer.whole(token) for token in (1, 2, 3, 4, 5)] == ["word", "삶", "", "", ""]
    assert detokenizer.feed([3]) == ""
    assert [detokenizer.whole(token) for token in (1, 4)] == ["", ""]
    assert detokenizer.feed([4]) == "😀"
    assert detokenizer.whole(1) == "word"
