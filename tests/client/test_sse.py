from __future__ import annotations

import pytest

from turnwire._sse import SseParser

STREAM = (
    b": hello\n\n"
    b"event: a\ndata: {1}\n\n"
    b"event: b\r\ndata: {2\r\ndata: 3}\r\n\r\n"
    b"id: 7\ndata:[DONE]\n\n"
)


@pytest.mark.parametrize("size", [1, 2, 7, len(STREAM)])
def test_events_come_out_whole_however_the_bytes_come_in(size: int) -> None:
    parser = SseParser()
    events = []
    for start in range(0, len(STREAM), size):
        events += parser.feed(STREAM[start : start + size])
    assert [data for data, _ in events] == [b"{1}", b"{2\n3}", b"[DONE]"]
    assert sum(taken for _, taken in events) == len(STREAM)
    assert parser.unread == 0


def test_bytes_of_a_cut_event_are_counted_as_unread() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\nda") == []
    assert parser.unread == 10
