"""The tokenizer that a GGUF file describes, built from its metadata alone."""

from __future__ import annotations

import hashlib
from typing import Final

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from turnwire_server.adapters.renderers.gguf import GgufFailure, GgufFile
from turnwire_server.adapters.renderers.model_tokenizer import ModelTokenizer

__all__ = ["GgufTokenizer"]

_CONTROL: Final = 3
_USER_DEFINED: Final = 4

_GPT2_WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS_WITH_PREFIX: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Where words may be cut, by `tokenizer.ggml.pre`: part of how each model was trained.
_PRE: Final = {
    "gpt-2": (_GPT2_WORDS + r"|\s+",),
    "smollm": (r"\p{N}", _GPT2_WORDS),
    "qwen2": (_WORDS_WITH_PREFIX % r"\p{N}",),
    "llama-bpe": (_WORDS_WITH_PREFIX % r"\p{N}{1,3}",),
}
# These models were trained with merges skipped for words that are tokens already.
_WHOLE_WORDS_FIRST: Final = frozenset({"llama-bpe"})
_COMPOSED: Final = frozenset({"qwen2"})
"""Models whose own tokenizer composes characters (NFC) first."""


class GgufTokenizer(ModelTokenizer):
    """The tokenizer of a GGUF file."""

    def __init__(self, gguf: GgufFile) -> None:
        """Build the tokenizer of `gguf`.

        Raises:
            GgufFailure: the file has no vocabulary, or one of a kind that is not supported.
        """
        model = gguf.text("tokenizer.ggml.model")
        if model != "gpt2":
            raise GgufFailure(
                f"{gguf.path.name} has a tokenizer of model '{model}'; only 'gpt2' "
                "(byte-level BPE) is supported."
            )
        pre = gguf.text("tokenizer.ggml.pre", "default")
        if pre not in _PRE:
            raise GgufFailure(
                f"{gguf.path.name} has the pre-tokenizer '{pre}' (tokenizer.ggml.pre); "
                f"supported are {', '.join(sorted(_PRE))}."
            )
        tokens = gguf.texts("tokenizer.ggml.tokens")
        types = gguf.integers("tokenizer.ggml.token_type")
        merges = gguf.texts("tokenizer.ggml.merges")
        if len(types) != len(tokens):
            raise GgufFailure(
                f"{gguf.path.name} has {len(tokens)} tokens but {len(types)} token types."
            )
        control = frozenset(i for i, kind in enumerate(types) if kind == _CONTROL)
        special = {
            tokens[index]: index
            for index, kind in enumerate(types)
            if kind in (_CONTROL, _USER_DEFINED) and tokens[index]
        }
        digest = hashlib.sha256(f"{model}\0{pre}\0{bytes(map(_low_byte, types)).hex()}".encode())
        for part in (*tokens, *merges):
            digest.update(part.encode("utf-8", "replace") + b"\0")
        super().__init__(
            _byte_level_bpe(gguf, tokens, merges, pre),
            tokens,
            special=special,
            control=control,
            digest=digest.hexdigest()[:16],
        )


def _low_byte(value: int) -> int:
    return value & 0xFF


def _byte_level_bpe(gguf: GgufFile, tokens: list[str], merges: list[str], pre: str) -> Tokenizer:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        model = models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=pairs,
            ignore_merges=pre in _WHOLE_WORDS_FIRST,
        )
    except Exception as error:  # the library raises bare Exception for a merge of unknown tokens
        raise GgufFailure(
            f"{gguf.path.name} has merges (tokenizer.ggml.merges) that do not fit its tokens."
        ) from error
    tokenizer = Tokenizer(model)
    if pre in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PRE[pre]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer
