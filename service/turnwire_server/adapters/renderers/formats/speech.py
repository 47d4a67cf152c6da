"""What a parser lets out: text and reasoning, without the white space around calls."""

from __future__ import annotations

from turnwire_server.session.output import OutputPiece, ReasoningDelta, TextDelta

__all__ = ["Speech"]


class Speech:
    """The text and the reasoning of one turn, as they come out."""

    __slots__ = ("_drop_blanks", "has_text", "is_fresh", "reasoning_spans")

    def __init__(self) -> None:
        """Begin: nothing was said."""
        self.has_text = False
        """Text came."""
        self.is_fresh = True
        """No text came yet, or none since the last call or reasoning."""
        self.reasoning_spans: list[tuple[int, int]] = []
        """Where reasoning stands in what the model wrote: ascending."""
        self._drop_blanks = False

    def say(self, text: str, out: list[OutputPiece]) -> None:
        """Let text out."""
        if self._drop_blanks:
            text = text.lstrip()
        if text:
            self.is_fresh = self._drop_blanks = False
            self.has_text = True
            out.append(TextDelta(text))

    def reason(self, text: str, start: int, out: list[OutputPiece]) -> None:
        """Let reasoning out that begins at the position `start`."""
        end = start + len(text)
        if self._drop_blanks:
            text = text.lstrip()
        if text:
            self._drop_blanks = False
            start = end - len(text)
            if self.reasoning_spans and self.reasoning_spans[-1][1] == start:
                start, _ = self.reasoning_spans.pop()
            self.reasoning_spans.append((start, end))
            out.append(ReasoningDelta(text))

    def begin_reasoning(self) -> None:
        """Note that reasoning begins: the blanks before its first word are none of it."""
        self._drop_blanks = True

    def settle(self) -> None:
        """Note that a call or reasoning is over: what comes next is as at the beginning."""
        self.is_fresh = self._drop_blanks = True
