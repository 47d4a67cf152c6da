"""Reads an output whose calls and reasoning stand in its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnwire_server.adapters.renderers.formats.pieces import FormatParser
from turnwire_server.adapters.renderers.reasoning_count import ReasoningCount
from turnwire_server.ports.engine import FinishReason
from turnwire_server.ports.renderer import Ending
from turnwire_server.session.output import OutputPiece

__all__ = ["TextParser"]


class TextParser:
    """Reads the output of one turn (`ports.OutputParser`)."""

    __slots__ = ("_calls", "_output", "ending")

    def __init__(
        self, token_bytes: Callable[[int], bytes], calls: FormatParser, *, opening: str = ""
    ) -> None:
        """Build it from its parts.

        Args:
            token_bytes: The bytes of one id.
            calls: Finds calls and reasoning in the text.
            opening: Text in the prompt that `calls` has read already.
        """
        self._calls = calls
        self._output = ReasoningCount(token_bytes, opening=opening)
        self.ending: Ending | None = None
        """Where the output ends, None before that is known."""

    @property
    def done(self) -> bool:
        """Whether nothing that could follow matters."""
        return self._calls.done

    @property
    def reasoning_tokens(self) -> int:
        """How many ids gave text of reasoning."""
        return self._output.tokens_of(self._calls.reasoning_spans)

    def more_text(self, token: int) -> str | None:
        """Return the text of an id that is nothing but more of the message."""
        output = self._output
        text = output.whole(token)
        if not self._calls.take(text):
            return None
        output.ids.append(token)
        return text

    def feed(self, ids: Sequence[int]) -> Sequence[OutputPiece]:
        """Return what `ids` add."""
        calls, output = self._calls, self._output
        output.ids.extend(ids)
        text = output.feed(ids)
        if not text:  # the id that ends a turn, or part of a character
            return ()
        pieces = calls.feed(text)
        if self.ending is None and calls.ending is not None:
            position, is_closed = calls.ending
            self.ending = output.ending(position, is_closed=is_closed)
        return pieces

    def finish(self, reason: FinishReason) -> Sequence[OutputPiece]:
        """Return what was held back."""
        calls, cut = self._calls, self._output.finish()
        pieces = calls.feed(cut) if cut else ()
        rest = calls.finish(complete=reason == "stop")
        return [*pieces, *rest] if pieces else rest
