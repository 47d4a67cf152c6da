"""Where the markers of calls and of reasoning stand in a text, or may have begun."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from turnwire_server.adapters.renderers.formats.pieces import cut_marker

__all__ = ["FENCE", "MarkerPlace", "closing_markup", "find_marker", "first_characters"]

FENCE: Final = "```"
_FENCE_WORDS: Final = ("json", "JSON", "tool_call")
_WORD = "|".join(_FENCE_WORDS)
_CUT_WORD = "|".join(word[:end] for word in _FENCE_WORDS for end in range(1, len(word)))
_FENCE_HEAD: Final = re.compile(rf"```(?:{_WORD})?\s*(?=[{{\[])")
_FENCE_HEAD_CUT: Final = re.compile(rf"`{{1,3}}\Z|```(?:{_CUT_WORD})\Z|```(?:{_WORD})?\s*\Z")
_MOST_BLANKS: Final = 16
"""How many may stand before the markup that closes the last call."""


class MarkerPlace(NamedTuple):
    """Where text ends."""

    start: int
    """End of the text: where the marker begins, or where one may have begun."""
    end: int
    """End of the marker."""
    found: bool
    """Whether there is a whole one."""


def find_marker(
    text: str,
    markers: Sequence[str],
    think: str | None,
    with_fence: bool,
    *,
    is_fresh: bool,
) -> MarkerPlace:
    """Return the first marker of a text.

    Args:
        text: What was not looked at yet.
        markers: Those of calls.
        think: The one that opens reasoning, None when there is none; amid a line it is text.
        with_fence: Whether the fence of a code block with an object counts.
        is_fresh: Whether the text stands at the start of a message or behind a call.
    """
    start = end = len(text)
    if first_characters(tuple(markers), think, with_fence).search(text) is None:  # most tokens
        return MarkerPlace(start, end, found=False)
    for marker in markers:
        found = text.find(marker, 0, start + len(marker) - 1)
        if 0 <= found < start:
            start, end = found, found + len(marker)
    if think is not None:
        found = _find_think(text, think, is_fresh=is_fresh)
        if 0 <= found < start:
            start, end = found, found + len(think)
    if with_fence and (head := _FENCE_HEAD.search(text)) and head.start() < start:
        start, end = head.start(), head.end()
    if start < len(text):
        return MarkerPlace(start, end, found=True)
    if think is not None:
        markers = (*markers, think)
    limit = len(text) - max((cut_marker(text, marker) for marker in markers), default=0)
    if with_fence and (cut := _FENCE_HEAD_CUT.search(text)):
        limit = min(limit, cut.start())
    return MarkerPlace(limit, limit, found=False)


@lru_cache(maxsize=256)
def first_characters(
    markers: tuple[str, ...], think: str | None, with_fence: bool
) -> re.Pattern[str]:
    """Return what finds the characters with which a marker begins, see `find_marker`."""
    firsts = {marker[0] for marker in markers if marker}
    if think:
        firsts.add(think[0])
    if with_fence:
        firsts.add(FENCE[0])
    return re.compile("|".join(map(re.escape, sorted(firsts))) or r"(?!)")


def _find_think(text: str, opener: str, *, is_fresh: bool) -> int:
    """Return where reasoning begins, -1 if nowhere; amid a line its mark is text."""
    found = text.find(opener)
    while found >= 0:
        blanks = text[len(text[:found].rstrip()) : found]
        if "\n" in blanks or (is_fresh and len(blanks) == found):
            return found
        found = text.find(opener, found + 1)
    return -1


def closing_markup(text: str, closers: Sequence[str]) -> tuple[int, bool] | None:
    """Return how long the markup at the start of a text is that closes a call.

    Args:
        text: What stands behind the call.
        closers: The markers that should follow each other there, with few blanks between.

    Returns:
        Its length and whether it is there: 0 and False when something else follows. None when
        the rest of it may still come.
    """
    rest = text
    for closer in closers:
        body = rest.lstrip()
        is_near = len(rest) - len(body) <= _MOST_BLANKS
        if is_near and body.startswith(closer):
            rest = body[len(closer) :]
        elif is_near and closer.startswith(body):
            return None
        else:
            return 0, False
    return len(text) - len(rest), True
