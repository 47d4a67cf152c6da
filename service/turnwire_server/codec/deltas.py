"""Events of deltas by template: the one thing that is encoded for every token.

All of an event but its number and its text is the same for a part, and most of that is the same for
all parts at that place of a response. So it is encoded once, and a part adds no more than its
item's id. A test holds both forms to what the generic codec and protobuf write.
"""

from __future__ import annotations

from functools import lru_cache

import orjson

from turnwire._codec import dumps
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.codec.frames import entry_head, varint

__all__ = ["DeltaTemplate"]

_LENGTH_DELIMITED = 2
_NUMBER_TAG = b"\x08"
"""Field 1 of the event, a varint."""
_ITEM_ID_TAG = b"\x0a"
"""Field 1 of every delta, which is written first."""
_KEPT_LENGTHS = 128
"""Bytes of a text below which what stands around it is kept; few tokens are longer."""
_MOST_KEPT = 256
"""Items' ids have one length, as a rule; should they not, more is only slower."""
_NUMBER = b'"sequence_number":0'
_ITEM_ID = b'"item_id":""'
_TEXT = b'"delta":""'


class _Shape:
    """What the deltas of all parts at one place have in common."""

    __slots__ = (
        "_delta_tag",
        "_head",
        "after",
        "around",
        "before",
        "id_after",
        "id_before",
        "rest",
    )

    def __init__(self, kind: str, output_index: int, index: int, stream_id: str | None) -> None:
        event = ServerEvent(sequence_number=0, stream_id=stream_id)
        part = getattr(event, kind)
        part.SetInParent()
        part.output_index = output_index
        names = part.DESCRIPTOR.fields_by_name
        for name in ("content_index", "summary_index"):
            if name in names:
                setattr(part, name, index)
        arm = ServerEvent.DESCRIPTOR.fields_by_name[kind]
        lane: bytes = ServerEvent(stream_id=stream_id).SerializeToString()
        self._head = lane + varint(arm.number << 3 | _LENGTH_DELIMITED)
        """What stands between the number and the length of the delta's message."""
        self.rest: bytes = part.SerializeToString()
        """What stands between the item's id and the text."""
        self._delta_tag = varint(names["delta"].number << 3 | _LENGTH_DELIMITED)
        self.around: dict[tuple[int, int, int], tuple[bytes, bytes, bytes]] = {}
        """What stands before number, item and text, by the lengths of the three."""
        # What a lane's name contains cannot be taken for one of these: quotes are escaped in it.
        before, number, behind = dumps(event).partition(_NUMBER)
        between, item_id, behind = behind.partition(_ITEM_ID)
        middle, delta, self.after = behind.partition(_TEXT)
        self.before = before + number[:-1]
        self.id_before = between + item_id[:-2]
        self.id_after = middle + delta[:-2]

    def make_around(self, lengths: tuple[int, int, int]) -> tuple[bytes, bytes, bytes]:
        """Return what `around` has for these lengths, and keep it if they are usual."""
        number, item, text = lengths
        before_text = b""
        if text:  # Protobuf does not write an empty string.
            before_text = self._delta_tag + varint(text)
        body = item + len(before_text) + text
        middle = self._head + varint(body)
        around = entry_head(number + len(middle) + body), middle, before_text
        if text < _KEPT_LENGTHS and len(self.around) < _MOST_KEPT:
            self.around[lengths] = around
        return around


_shape = lru_cache(maxsize=128)(_Shape)  # there is no end of names for lanes


class DeltaTemplate:
    """Encodes the deltas of one part, for the wire that asks: each form is made on first use."""

    __slots__ = ("_between", "_fixed", "_item_id", "_shape")

    def __init__(
        self, kind: str, item_id: str, output_index: int, index: int, stream_id: str | None
    ) -> None:
        """Take what does not change.

        Args:
            kind: The arm of `ServerEvent`, for example `response_output_text_delta`.
            item_id: The item that the part is of.
            output_index: Position of the item in the response's `output`.
            index: Position of the part in the item; unused where the event has none.
            stream_id: The lane, None for the default lane.
        """
        self._shape = _shape(kind, output_index, index, stream_id)
        self._item_id = item_id
        self._fixed: bytes | None = None
        """All of the delta's message but its text."""
        self._between = b""
        """All JSON between number and text."""

    def _make_between(self) -> bytes:
        shape = self._shape
        self._between = shape.id_before + orjson.dumps(self._item_id) + shape.id_after
        return self._between

    def json(self, sequence_number: int, text: str) -> bytes:
        """Return the event's public JSON."""
        shape = self._shape
        return b"%b%d%b%b%b" % (
            shape.before,
            sequence_number,
            self._between or self._make_between(),
            orjson.dumps(text),
            shape.after,
        )

    def _make_fixed(self) -> bytes:
        item_id = self._item_id.encode()
        head = _ITEM_ID_TAG + varint(len(item_id)) if item_id else b""
        self._fixed = head + item_id + self._shape.rest
        return self._fixed

    def entry(self, sequence_number: int, text: str) -> bytes:
        """Return the event as one entry of a serialized `ServerFrame`."""
        fixed = self._fixed
        if fixed is None:
            fixed = self._make_fixed()
        delta = text.encode()
        # Not kept for each number: those of all sessions together would be in no cache.
        if sequence_number < 0x80:
            number = (0x0800 | sequence_number).to_bytes(2, "big")
        elif sequence_number < 0x4000:
            low, high = sequence_number & 0x7F, sequence_number >> 7
            number = (0x08_80_00 | low << 8 | high).to_bytes(3, "big")
        else:
            number = _NUMBER_TAG + varint(sequence_number)
        shape = self._shape
        lengths = (len(number), len(fixed), len(delta))
        head, middle, before_text = shape.around.get(lengths) or shape.make_around(lengths)
        return b"".join((head, number, middle, fixed, before_text, delta))
