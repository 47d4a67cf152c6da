"""Text amid a message, without markup: what most tokens of a model are."""

from __future__ import annotations

import re
from collections.abc import Sequence

from turnwire_server.session.output import OutputPiece, TextDelta

__all__ = ["MereText"]


class MereText:
    """What a format parser needs for most tokens.

    Members of a base class stand together in the memory, apart from all that is needed for markup;
    see `Outbox` for why that matters.
    """

    __slots__ = ("_fed", "_markup", "ending")

    def __init__(self) -> None:
        self._fed = 0
        """Characters so far."""
        self._markup: re.Pattern[str] | None = None
        """Finds what markup begins with, amid a message of which nothing is held back; else None:
        then all text must be read."""
        self.ending: tuple[int, bool] | None = None
        """Where the one call allowed ends, with the markup that closes it, and whether it has it:
        a position as in `reasoning_spans`. None before that is known."""

    def take(self, text: str) -> bool:
        """Take `text` if it is nothing but more of the message; else nothing is taken."""
        markup = self._markup
        # White space at the end waits: what follows decides about it.
        if markup is None or not text or text[-1].isspace() or markup.search(text) is not None:
            return False
        self._fed += len(text)
        return True

    def feed(self, text: str) -> Sequence[OutputPiece]:
        """Return what `text` adds, adjacent deltas merged."""
        return [TextDelta(text)] if self.take(text) else self._read(text)

    def _read(self, text: str) -> Sequence[OutputPiece]:
        """Return what any text adds."""
        raise NotImplementedError
