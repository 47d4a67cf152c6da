"""Text to token ids and back, for byte-level vocabularies with special tokens."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tokenizers import Tokenizer

from turnwire_server.session.tokens import TokenIds

__all__ = ["ModelTokenizer"]

_SPECIAL: Final = b"\xff"
"""Stands before a special token's id in coded text; UTF-8 has no such byte."""
_CODE_DIGITS: Final = 8


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's table: byte-level vocabularies write bytes as printable characters."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in table.values()]
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


class ModelTokenizer:
    """Text to ids and back, for byte-level BPE vocabularies.

    Two ways to encode, kept apart so that a user's text can never become a special token:
    `encode` knows ordinary tokens only, `encode_markup` also the special ones.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tokens: Sequence[str],
        *,
        special: Mapping[str, int],
        control: frozenset[int],
        digest: str,
    ) -> None:
        """Build it from its parts.

        Args:
            tokenizer: Encodes ordinary text; knows no special tokens.
            tokens: The text of each id, as the vocabulary writes it.
            special: Texts that become one id in markup, with that id.
            control: Special ids that have no text when they are decoded.
            digest: Digest of all that decides ids, hexadecimal.
        """
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._special = special
        self._control = control
        self._digest = digest
        self._special_pattern = _any_of(special)
        guarded = [text for text in special if text.strip() and len(text) > 1]
        # A look-ahead, so that overlapping ones are all found.
        self._guard_pattern = re.compile(f"(?={_any_of(guarded).pattern})")
        self._bytes: dict[int, bytes] = {}
        self._table = _byte_of_character()

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
