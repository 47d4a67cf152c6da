from __future__ import annotations

import pytest

from turnwire.v1.server_event_pb2 import ServerEvent, ServerFrame
from turnwire_server.codec.frames import frame_entry


@pytest.mark.parametrize("size", [0, 1, 127, 128, 1023, 1024, 16_383, 16_384, 3_000_000])
def test_an_entry_of_any_size_has_the_right_length(size: int) -> None:
    event = ServerEvent()
    event.response_output_text_delta.delta = "x" * size
    frame = ServerFrame.FromString(frame_entry(event.SerializeToString()) * 2)
    assert [len(one.response_output_text_delta.delta) for one in frame.events] == [size] * 2
