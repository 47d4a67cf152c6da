"""Events of deltas by template: the one thing that is encoded for every token.

All of an event but its number and its text is the same for a part, so it is encoded once; in
protobuf, where lengths stand before what they measure, once for each length of a text. A test holds
both forms to what the generic codec and protobuf write.
"""

from __future__ import annotations

import orjson

from turnwire._codec import dumps
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.codec.frames import entry_head, varint

__all__ = ["DeltaTemplate"]

_LENGTH_DELIMITED = 2
_SEQUENCE_NUMBER_TAG = b"\x08"  # Field 1, a varint.
_LONGEST_NUMBER = 16
"""More bytes than any number takes with its tag."""
_NUMBERS = tuple(_SEQUENCE_NUMBER_TAG + varint(number) for number in range(4096))
_KEPT_LENGTHS = 256
"""Bytes of a text below which what stands around the number is kept; few tokens are longer."""
_NUMBER = b'"sequence_number":0'
_TEXT = b'"delta":""'


class DeltaTemplate:
    """Encodes the deltas of one part, for the wire that asks: each form is made on first use."""

    __slots__ = (
        "_arm_tag",
        "_around",
        "_delta_tag",
        "_event",
        "_fixed",
        "_json_after",
        "_json_before",
        "_json_between",
        "_message",
    )

    def __init__(
        self, kind: str, item_id: str, output_index: int, index: int, stream_id: str | None
    ) -> None:
        """Encode what does not change.

        Args:
            kind: The arm of `ServerEvent`, for example `response_output_text_delta`.
            item_id: The item that the part is of.
            output_index: Position of the item in the response's `output`.
            index: Position of the part in the item; unused where the event has none.
            stream_id: The lane, None for the default lane.
        """
        event = ServerEvent(sequence_number=0, stream_id=stream_id)
        part = getattr(event, kind)
        part.item_id = item_id
        part.output_index = output_index
        names = part.DESCRIPTOR.fields_by_name
        for name in ("content_index", "summary_index"):
            if name in names:
                setattr(part, name, index)
        self._message = event
        self._event: bytes = ServerEvent(stream_id=stream_id).SerializeToString()
        self._fixed: bytes = part.SerializeToString()
        arm = ServerEvent.DESCRIPTOR.fields_by_name[kind]
        self._arm_tag = varint(arm.number << 3 | _LENGTH_DELIMITED)
        self._delta_tag = varint(names["delta"].number << 3 | _LENGTH_DELIMITED)
        self._around: dict[int, tuple[bytes, bytes]] = {}
        """What stands before and behind the number, by the lengths of number and text."""
        self._json_before = self._json_between = self._json_after = b""

    def _make_json(self) -> None:
        # What an id contains cannot be taken for one of these: in a string, quotes are escaped.
        before, number, rest = dumps(self._message).partition(_NUMBER)
        between, delta, after = rest.partition(_TEXT)
        self._json_before = before + number[:-1]
        self._json_between = between + delta[:-2]
        self._json_after = after

    def json(self, sequence_number: int, text: str) -> bytes:
        """Return the event's public JSON."""
        if not self._json_before:
            self._make_json()
        return b"%b%d%b%b%b" % (
            self._json_before,
            sequence_number,
            self._json_between,
            orjson.dumps(text),
            self._json_after,
        )

    def entry(self, sequence_number: int, text: str) -> bytes:
        """Return the event as one entry of a serialized `ServerFrame`."""
        delta = text.encode()
        if sequence_number < len(_NUMBERS):
            number = _NUMBERS[sequence_number]
        else:
            number = _SEQUENCE_NUMBER_TAG + varint(sequence_number)
        lengths = len(delta) * _LONGEST_NUMBER + len(number)
        head, before_text = self._around.get(lengths) or self._make_around(lengths)
        return head + number + before_text + delta

    def _make_around(self, lengths: int) -> tuple[bytes, bytes]:
        """Return all that stands before and behind the number, see `_around`."""
        length, number_length = divmod(lengths, _LONGEST_NUMBER)
        body = self._fixed
        if length:  # Protobuf does not write an empty string.
            body += self._delta_tag + varint(length)
        before_text = self._event + self._arm_tag + varint(len(body) + length) + body
        around = entry_head(number_length + len(before_text) + length), before_text
        if length < _KEPT_LENGTHS:
            self._around[lengths] = around
        return around
