from __future__ import annotations

import pytest

from turnwire.v1.server_event_pb2 import ServerEvent, ServerFrame
from turnwire_server.codec.frames import frame_entry

LENGTHS = [0, 1, 127, 128, 1023, 1024, 16_383, 16_384, 2**21 - 1, 2**21, 3_000_000]


@pytest.mark.parametrize("size", LENGTHS)
def test_an_entry_of_any_size_has_the_right_length(size: int) -> None:
    event = ServerEvent()
    event.response_output_text_delta.delta = "x" * size
    frame = ServerFrame.FromString(frame_entry(event.SerializeToString()) * 2)
    assert [len(one.response_output_text_delta.delta) for one in frame.events] == [size] * 2


@pytest.mark.parametrize("size", [size for size in LENGTHS if size != 1])
def test_an_entry_is_what_protobuf_writes_whatever_its_length(size: int) -> None:
    event = event_of(size)
    written = ServerFrame(events=[ServerEvent.FromString(event)]).SerializeToString()
    assert frame_entry(event) == written


def event_of(size: int) -> bytes:
    """Return a serialized event of exactly so many bytes."""
    event = ServerEvent()
    length = size
    while event.ByteSize() != size:
        event.stream_id = "x" * length
        length -= 1
    return event.SerializeToString()
