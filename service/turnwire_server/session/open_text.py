"""The item that is being written, and more of its text: all that most tokens need."""

from __future__ import annotations

from turnwire_server.session.events import Delta
from turnwire_server.session.items import OpenItem, OpenMessage
from turnwire_server.session.lifecycle import ResponseState
from turnwire_server.session.output import OutputPiece, TextDelta

__all__ = ["OpenText"]

_OPEN = ResponseState.OPEN  # for every token, and a member of an enum is slow to look up


class OpenText:
    """What a token needs of an assembler: members of a base class stand first in the memory."""

    __slots__ = ("_open", "_sequence_number", "_state")

    def __init__(self) -> None:
        self._state = ResponseState.NEW
        self._open: OpenItem | None = None
        self._sequence_number = 0

    def delta_of(self, piece: OutputPiece) -> Delta | None:
        """Return the event of more text of the message, None for anything else."""
        return self.delta_of_text(piece.text) if isinstance(piece, TextDelta) else None

    def delta_of_text(self, text: str) -> Delta | None:
        """Return the event of more text of the message (most tokens), None if none is open."""
        item = self._open
        if isinstance(item, OpenMessage) and self._state is _OPEN:
            return self._delta(item, text)
        return None

    def _delta(self, item: OpenItem, text: str) -> Delta:
        item.text += text.encode()
        assert item.part is not None  # set when the item was opened
        number = self._sequence_number
        self._sequence_number = number + 1
        return Delta(item.part, number, text)
