"""The tokenizer that a GGUF file describes, built from its metadata alone."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Final

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from turnwire_server.adapters.renderers.gguf import GgufFailure, GgufFile
from turnwire_server.session.tokens import TokenIds

__all__ = ["GgufTokenizer"]

_CONTROL: Final = 3
_USER_DEFINED: Final = 4

_SPECIAL: Final = b"\xff"
"""Stands before a special token's id in coded text; UTF-8 has no such byte."""
_CODE_DIGITS: Final = 8

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


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's table: byte-level vocabularies write bytes as printable characters."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in table.values()]
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


class GgufTokenizer:
    """Text to ids and back, for byte-level BPE vocabularies.

    Two ways to encode, kept apart so that a user's text can never become a special token:
    `encode` knows ordinary tokens only, `encode_markup` also the special ones.
    """

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
        self._control = frozenset(i for i, kind in enumerate(types) if kind == _CONTROL)
        self._tokens = tokens
        self._special = {
            tokens[index]: index
            for index, kind in enumerate(types)
            if kind in (_CONTROL, _USER_DEFINED) and tokens[index]
        }
        self._special_pattern = _any_of(self._special)
        guarded = [text for text in self._special if text.strip() and len(text) > 1]
        # A look-ahead, so that overlapping ones are all found.
        self._guard_pattern = re.compile(f"(?={_any_of(guarded).pattern})")
        self._bytes: dict[int, bytes] = {}
        self._table = _byte_of_character()
        self._tokenizer = _byte_level_bpe(gguf, tokens, merges, pre)
        digest = hashlib.sha256(f"{model}\0{pre}\0{bytes(map(_low_byte, types)).hex()}".encode())
        for part in (*tokens, *merges):
            digest.update(part.encode("utf-8", "replace") + b"\0")
        self._digest = digest.hexdigest()[:16]

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self._tokens)

    @property
    def digest(self) -> str:
        """Digest of all that decides ids, hexadecimal."""
        return self._digest

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; what looks like a special token is ordinary text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_markup(self, text: str, marker: str = "") -> list[int]:
        """Return the ids of rendered `text`, special tokens recognised.

        Args:
            text: What a template rendered.
            marker: Dropped from `text` after special tokens were found; see `guard`.
        """
        ids: list[int] = []
        for part, token in self.split_special(text):
            ordinary = part.replace(marker, "") if marker else part
            if ordinary:
                ids += self.encode(ordinary)
            if token is not None:
                ids.append(token)
        return ids

    def split_special(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield ordinary text and the special token behind it; None behind the last text."""
        position = 0
        for match in self._special_pattern.finditer(text):
            yield text[position : match.start()], self._special[match[0]]
            position = match.end()
        yield text[position:], None

    def guard(self, text: str, marker: str) -> str:
        """Return `text` with `marker` inside everything that looks like a special token.

        Rendered and given to `encode_markup` with the same marker, it becomes the ids of the
        ordinary text.
        """
        starts = [match.start() for match in self._guard_pattern.finditer(text)]
        if not starts:
            return text
        cuts = [0, *(start + 1 for start in starts), len(text)]
        return marker.join(text[begin:end] for begin, end in itertools.pairwise(cuts))

    def continued(self, previous: TokenIds, text: str, marker: str = "") -> tuple[TokenIds, int]:
        """Return the ids of rendered `text`, with as many of `previous` as its text allows.

        Kept are the ids whose text begins `text`, up to a special token, behind which tokens
        cannot depend on what was before.

        Returns:
            The ids, and how many of them are kept.
        """
        coded = self._coded(text, marker)
        position = kept = kept_position = 0
        for index, token in enumerate(previous):
            special = self.is_special(token)
            part = _code(token) if special else self.token_bytes(token)
            if not coded.startswith(part, position):
                break
            position += len(part)
            if special:
                kept, kept_position = index + 1, position
        first, *parts = coded[kept_position:].split(_SPECIAL)
        rest = self.encode(first.decode()) if first else []
        for part in parts:
            rest.append(int(part[:_CODE_DIGITS], 16))
            if len(part) > _CODE_DIGITS:
                rest += self.encode(part[_CODE_DIGITS:].decode())
        return TokenIds(previous.as_array(0, kept)).extended(rest), kept

    def _coded(self, text: str, marker: str) -> bytes:
        coded = bytearray()
        for part, token in self.split_special(text):
            coded += (part.replace(marker, "") if marker else part).encode()
            if token is not None:
                coded += _code(token)
        return bytes(coded)

    def special_id(self, text: str) -> int | None:
        """Return the id of the special token `text`, None if there is none."""
        return self._special.get(text)

    def starts_special(self, text: str) -> bool:
        """Return whether `text` begins with a special token."""
        return self._special_pattern.match(text) is not None

    def ends_special(self, text: str) -> bool:
        """Return whether `text` ends with a special token."""
        return any(text.endswith(special) for special in self._special)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one id; b"" for a control token or an id that does not exist."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._read_bytes(token)
        return known

    def token_text(self, token: int) -> str:
        """Return the text of an id as the vocabulary writes it, "" if it does not exist."""
        return self._tokens[token] if 0 <= token < len(self._tokens) else ""

    def is_special(self, token: int) -> bool:
        """Return whether `token` is one that ordinary text never becomes."""
        return self._special.get(self.token_text(token)) == token

    def _read_bytes(self, token: int) -> bytes:
        text = self.token_text(token)
        if token in self._control:
            return b""
        if text in self._special:
            return text.encode()
        table = self._table
        # A character outside the table stands for itself: vocabularies hold a few.
        return b"".join(
            bytes((table[character],)) if character in table else character.encode()
            for character in text
        )


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Match any of `texts`, the longest first; nothing when there are none."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("(?:" + "|".join(map(re.escape, ordered)) + ")" if ordered else "(?!)")


def _code(token: int) -> bytes:
    return _SPECIAL + b"%08x" % token


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
