"""What format parsers have in common."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

from turnwire_server.session.output import CallDelta, OutputPiece, ReasoningDelta, TextDelta

__all__ = ["CallBody", "FormatParser", "Outcome", "cut_marker", "merged"]


class FormatParser(Protocol):
    """Reads one turn's text. What comes out does not depend on how the text was split."""

    @property
    def done(self) -> bool:
        """Whether nothing more can come out."""
        ...

    @property
    def ending(self) -> tuple[int, bool] | None:
        """Where the output ends, in characters, and whether it was closed; None while unknown."""
        ...

    @property
    def reasoning_spans(self) -> Sequence[tuple[int, int]]:
        """Where reasoning stands in the text so far, in characters, ascending and disjoint."""
        ...

    def take(self, text: str) -> bool:
        """Take `text` if it is nothing but more of the message; else nothing is taken."""
        ...

    def feed(self, text: str) -> Sequence[OutputPiece]:
        """Return what `text` adds. Holds back what could be the start of markup."""
        ...

    def finish(self, *, complete: bool) -> Sequence[OutputPiece]:
        """Return what was held back; `complete` says that the model ended its turn itself."""
        ...


class Outcome(enum.Enum):
    """Where a call's body stands after some text."""

    MORE = enum.auto()
    """It goes on."""
    NO_CALL = enum.auto()
    """It does not call a known tool; nothing came out of it."""
    ENDED = enum.auto()
    """The call is complete."""
    BROKEN = enum.auto()
    """The call began and cannot go on; it does not end."""


class CallBody(Protocol):
    """Reads what stands between the markers of a call."""

    @property
    def started(self) -> bool:
        """Whether something came out, so that it can no longer turn out to be text."""
        ...

    def feed(self, text: str, out: list[OutputPiece]) -> tuple[Outcome, int]:
        """Append what `text` adds to `out`.

        Returns:
            The outcome, and how much of `text` is consumed; with `MORE`, what is not consumed
            must be given again with what follows.
        """
        ...

    def finish(self, out: list[OutputPiece], *, complete: bool) -> None:
        """End a call whose arguments are complete although the model did not close it."""
        ...


def cut_marker(text: str, marker: str) -> int:
    """Return how much of the end of `text` may be the beginning of `marker`."""
    start = text.find(marker[0], max(0, len(text) - len(marker) + 1))
    while start >= 0:
        if marker.startswith(text[start:]):
            return len(text) - start
        start = text.find(marker[0], start + 1)
    return 0


def merged(pieces: list[OutputPiece]) -> list[OutputPiece]:
    """Return `pieces` with adjacent deltas of one kind joined."""
    if len(pieces) < 2:
        return pieces
    out: list[OutputPiece] = []
    for piece in pieces:
        last = out[-1] if out else None
        match last, piece:
            case TextDelta(), TextDelta():
                out[-1] = TextDelta(last.text + piece.text)
            case ReasoningDelta(), ReasoningDelta():
                out[-1] = ReasoningDelta(last.text + piece.text)
            case CallDelta(), CallDelta():
                out[-1] = CallDelta(last.text + piece.text)
            case _:
                out.append(piece)
    return out
