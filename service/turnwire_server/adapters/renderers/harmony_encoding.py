"""The harmony encoding of gpt-oss, loaded without a network.

`openai-harmony` wants its vocabulary in a directory that an environment variable names; it
takes no path. The variable is set here, only while the library loads, and nowhere else.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from openai_harmony import (
    HarmonyEncoding,
    HarmonyEncodingName,
    HarmonyError,
    load_harmony_encoding,
)

from turnwire_server.adapters.renderers.harmony_settings import HarmonyFailure
from turnwire_server.adapters.renderers.vocabulary import Vocabulary, o200k_base, o200k_base_file

__all__ = ["HarmonyTokens", "harmony_tokens"]

_VARIABLE: Final = "TIKTOKEN_ENCODINGS_BASE"
_FILE_NAME: Final = "o200k_base.tiktoken"


@dataclass(frozen=True, slots=True)
class HarmonyTokens:
    """The encoding, and the ids of its markers."""

    encoding: HarmonyEncoding
    vocabulary: Vocabulary
    """Ordinary ids: the same as those of o200k_base."""
    start: int
    end: int
    message: int
    channel: int
    constrain: int
    end_of_turn: int
    call: int

    @property
    def ends(self) -> frozenset[int]:
        """Ids that end a message."""
        return frozenset({self.end, self.end_of_turn, self.call})

    def is_special(self, token: int) -> bool:
        """Return whether `token` is no ordinary text."""
        return token >= self.vocabulary.size

    def begins_recipient(self, ids: Sequence[int]) -> bool:
        """Return whether `ids` are ` to=…` or its beginning: the one text that begins a header."""
        text = b"".join(map(self.vocabulary.token_bytes, ids[:4]))
        return text.startswith(b" to=") or b" to=".startswith(text)

    def header_text(self, ids: Sequence[int]) -> str:
        """Return the text of a header, a blank for each marker in it."""
        return b"".join(
            b" " if self.is_special(token) else self.vocabulary.token_bytes(token) for token in ids
        ).decode("utf-8", "replace")


@functools.cache
def harmony_tokens() -> HarmonyTokens:
    """Return the encoding, loaded once per process (about a second).

    Raises:
        HarmonyFailure: the library does not take the vocabulary.
        VocabularyFailure: the vocabulary's data is missing.
    """
    with tempfile.TemporaryDirectory(prefix="turnwire-") as directory:
        (Path(directory) / _FILE_NAME).write_bytes(o200k_base_file())
        with _variable(_VARIABLE, directory):
            try:
                encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
            except HarmonyError as error:
                raise HarmonyFailure("openai-harmony cannot load its vocabulary.") from error

    def marker(text: str) -> int:
        (token,) = encoding.encode(text, allowed_special={text})
        return int(token)

    return HarmonyTokens(
        encoding=encoding,
        vocabulary=o200k_base(),
        start=marker("<|start|>"),
        end=marker("<|end|>"),
        message=marker("<|message|>"),
        channel=marker("<|channel|>"),
        constrain=marker("<|constrain|>"),
        end_of_turn=marker("<|return|>"),
        call=marker("<|call|>"),
    )


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
