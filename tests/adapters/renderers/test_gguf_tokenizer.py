from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.gguf_files import SPECIALS, tiny_metadata, write_gguf
from turnwire_server.adapters.renderers.gguf import GgufFailure, GgufFile, read_gguf
from turnwire_server.adapters.renderers.gguf_tokenizer import GgufTokenizer
from turnwire_server.session.tokens import TokenIds

MARKER = "\ufdd0"
PIECES = st.lists(st.sampled_from([*SPECIALS, "<|im_", "end|>", "<think>", "he", "ü", " ", "\n"]))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory) -> GgufFile:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return read_gguf(write_gguf(path, tiny_metadata(user_defined=["<think>", "  "])))


@pytest.fixture(scope="module")
def tokenizer(gguf) -> GgufTokenizer:
    return GgufTokenizer(gguf)


def text_of(tokenizer: GgufTokenizer, ids) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode()


def test_merges_are_used(tokenizer):
    assert len(tokenizer.encode("hello")) == 3
    assert [tokenizer.token_text(token) for token in tokenizer.encode("hell wo")] == [
        "he",
        "ll",
        "Ġw",
        "o",
    ]


def test_any_text_comes_back_from_its_ids(tokenizer):
    @given(st.text())
    def check(text):
        assert text_of(tokenizer, tokenizer.encode(text)) == text

    check()


def test_ordinary_text_never_becomes_a_special_token(tokenizer):
    @given(PIECES)
    def check(pieces):
        ids = tokenizer.encode("".join(pieces))
        assert not any(map(tokenizer.is_special, ids))

    check()


def test_markup_becomes_special_tokens_and_control_tokens_have_no_text(tokenizer):
    ids = tokenizer.encode_markup("<|im_start|>he<think><|im_end|>")
    assert [tokenizer.token_text(token) for token in ids] == [
        "<|im_start|>",
        "he",
        "<think>",
        "<|im_end|>",
    ]
    assert text_of(tokenizer, ids) == "he<think>"
    assert tokenizer.token_bytes(tokenizer.size) == b""


def test_guarded_text_becomes_the_ids_of_ordinary_text(tokenizer):
    @given(PIECES)
    def check(pieces):
        text = "".join(pieces)
        guarded = tokenizer.guard(text, MARKER)
        around = f"<|im_start|>{guarded}<|im_end|>"
        ids = tokenizer.encode_markup(around, MARKER)
        # Blanks may become one token of their own either way; they end no turn.
        assert text_of(tokenizer, ids) == text
        assert [token for token in ids if tokenizer.token_bytes(token) == b""] == [
            tokenizer.special_id("<|im_start|>"),
            tokenizer.special_id("<|im_end|>"),
        ]
        assert tokenizer.special_id("<think>") not in ids

    check()


def test_a_text_without_special_tokens_is_guarded_by_leaving_it_alone(tokenizer):
    assert tokenizer.guard("he <|im|> 1 < 2", MARKER) == "he <|im|> 1 < 2"


def test_ids_seen_are_kept_up_to_the_last_special_token_in_common(tokenizer):
    start, end = map(tokenizer.special_id, SPECIALS[1:])
    # The model sampled "he" byte by byte, which no tokenizer would do.
    h, e = (tokenizer.encode(letter)[0] for letter in "he")
    seen = TokenIds([start, h, e, end, start, h, e])
    ids, kept = tokenizer.continued(seen, "<|im_start|>he<|im_end|><|im_start|>hell")
    assert kept == 5
    assert list(ids) == [*seen[:5], *tokenizer.encode("hell")]


def test_text_that_looks_like_a_special_token_is_not_taken_for_one_seen(tokenizer):
    start, end = map(tokenizer.special_id, SPECIALS[1:])
    seen = TokenIds([start, *tokenizer.encode("<|im_end|>"), start])
    ids, kept = tokenizer.continued(seen, "<|im_start|><|im_end|><|im_start|>")
    assert kept == 1
    assert list(ids) == [start, end, start]


def test_continuing_gives_the_text_whatever_was_seen(tokenizer):
    @given(PIECES, PIECES)
    def check(before, after):
        seen = TokenIds(tokenizer.encode_markup("".join(before)))
        text = "".join(after)
        ids, kept = tokenizer.continued(seen, text)
        assert list(ids) == tokenizer.encode_markup(text)
        assert list(ids[:kept]) == list(seen[:kept])

    check()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer.ggml.model": "llama"}, "model 'llama'"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken' .*gpt-2, llama-bpe, qwen2, smollm"),
        ({"tokenizer.ggml.token_type": [1]}, "but 1 token types"),
        ({"tokenizer.ggml.merges": ["zz qq"]}, "merges"),
    ],
)
def test_a_vocabulary_of_another_kind_is_named(gguf, changes, words):
    with pytest.raises(GgufFailure, match=words):
        GgufTokenizer(replace(gguf, metadata={**gguf.metadata, **changes}))


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("smollm", "a12 b", ["a", "1", "2", " b"]),
        ("qwen2", "it's 12\n\n", ["it", "'s", " ", "1", "2", "\n\n"]),
        ("llama-bpe", "it'S 1234", ["it", "'S", " ", "123", "4"]),
        ("gpt-2", "it's 1234", ["it", "'s", " 1234"]),
    ],
)
def test_words_are_cut_as_the_model_was_trained(gguf, pre, text, words):
    tokenizer = GgufTokenizer(replace(gguf, metadata={**gguf.metadata, "tokenizer.ggml.pre": pre}))
    splits = tokenizer._tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in splits] == words


def test_qwen_composes_characters_first(gguf):
    tokenizer = GgufTokenizer(
        replace(gguf, metadata={**gguf.metadata, "tokenizer.ggml.pre": "qwen2"})
    )
    assert text_of(tokenizer, tokenizer.encode("u\u0308")) == "ü"
