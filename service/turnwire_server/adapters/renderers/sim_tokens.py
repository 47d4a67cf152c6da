"""Tokens of the simulated model: o200k_base, and markers with ids of their own.

Text never becomes a marker: it is encoded with the ordinary vocabulary alone, so a user who
writes `<|im_end|>` or `<tool_call>` writes those characters and nothing else.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final

from turnwire_server.adapters.renderers.vocabulary import Vocabulary, o200k_base

__all__ = ["IM_END", "IM_START", "MARKERS", "SimTokens", "sim_tokens"]

# Above o200k_base and above o200k_harmony, which ends at 201,087.
_FIRST_MARKER: Final = 201_088
MARKERS: Final[dict[str, int]] = {
    text: _FIRST_MARKER + index
    for index, text in enumerate(
        (
            "<|im_start|>",
            "<|im_end|>",
            "<tools>",
            "</tools>",
            "<tool_call>",
            "</tool_call>",
            "<tool_response>",
            "</tool_response>",
            "<think>",
            "</think>",
        )
    )
}
IM_START: Final = MARKERS["<|im_start|>"]
IM_END: Final = MARKERS["<|im_end|>"]

_MARKER = re.compile("(" + "|".join(map(re.escape, MARKERS)) + ")")


class SimTokens:
    """The vocabulary with its markers."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Add the markers to `vocabulary`."""
        self.vocabulary = vocabulary
        known = _KnownBytes(vocabulary)
        self.token_bytes: Callable[[int], bytes] = known.__getitem__
        """Returns the bytes of an id, b"" for a border of a turn and for an unknown id. It is the
        dictionary's own look-up, because it is called for every token."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of untrusted `text`: markers in it are plain text."""
        return self.vocabulary.encode(text)

    def encode_template(self, text: str) -> list[int]:
        """Return the ids of `text` that the template or the simulated model itself wrote."""
        ids: list[int] = []
        for part in _MARKER.split(text):
            marker = MARKERS.get(part)
            if marker is None:
                ids += self.vocabulary.encode(part)
            else:
                ids.append(marker)
        return ids


class _KnownBytes(dict[int, bytes]):
    """The bytes of ids; those of ordinary ids are looked up when they come first."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__((token, text.encode()) for text, token in MARKERS.items())
        # Borders of turns have no text: they say where an output ends, not what is in it.
        self[IM_START] = self[IM_END] = b""
        self._vocabulary = vocabulary

    def __missing__(self, token: int) -> bytes:
        found = self._vocabulary.token_bytes(token)
        if found:  # unknown ids are without number
            self[token] = found
        return found


@functools.cache
def sim_tokens() -> SimTokens:
    """Return the tokens, loaded once per process.

    Raises:
        VocabularyFailure: the data file is missing or has another content.
    """
    return SimTokens(o200k_base())
