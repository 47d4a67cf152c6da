"""Which sampled ids gave which text: exact, where a token may hold the end of a part and more."""

from __future__ import annotations

from array import array
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence

from turnwire_server.adapters.renderers.detokenizer import Detokenizer
from turnwire_server.ports.renderer import Ending

__all__ = ["ReasoningCount"]


class ReasoningCount(Detokenizer):
    """Decodes the ids of one output, and finds those behind parts of the text."""

    __slots__ = ("_start", "ids")

    def __init__(self, token_bytes: Callable[[int], bytes], *, opening: str = "") -> None:
        """Start behind `opening`, text in the prompt that belongs to the output.

        Args:
            token_bytes: The bytes of one id, as the output was decoded with.
            opening: Counted in positions, and by no id.
        """
        super().__init__(token_bytes)
        self._start = len(opening)
        self.ids = array("I")
        """What was decoded, to be extended by the caller: one call less for every token."""

    def tokens_of(self, spans: Sequence[tuple[int, int]]) -> int:
        """Return how many ids gave some of the text within `spans`.

        Args:
            spans: Where the text begins and ends, in characters, ascending and disjoint.
        """
        decoder = getincrementaldecoder("utf-8")("replace")
        begin, index, count = self._start, 0, 0
        for token in self.ids:
            while index < len(spans) and spans[index][1] <= begin:
                index += 1
            if index == len(spans):
                break
            data = self._token_bytes(token)
            end = begin + len(decoder.decode(data))
            # A token that ends inside a character is part of the next one.
            if data and max(end, begin + 1) > spans[index][0]:
                count += 1
            begin = end
        return count

    def ending(self, position: int, *, is_closed: bool) -> Ending:
        """Return where the output ends in ids.

        Args:
            position: Where its text ends, in characters.
            is_closed: Whether the text has all the markup that it needs.
        """
        decoder = getincrementaldecoder("utf-8")("replace")
        end, count = self._start, 0
        for token in self.ids:
            if end >= position:
                break
            end += len(decoder.decode(self._token_bytes(token)))
            count += 1
        return Ending(count, is_exact=is_closed and end == position)
