from __future__ import annotations

from turnwire_server.codec.sse import SSE_DONE, sse_comment, sse_event


def test_an_event_is_one_frame_with_its_type_twice() -> None:
    assert sse_event("keepalive", b'{"type":"keepalive"}') == (
        b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
    )


def test_a_stream_ends_with_done() -> None:
    assert SSE_DONE == b"data: [DONE]\n\n"


def test_a_comment_is_no_event() -> None:
    assert sse_comment() == b": \n\n"
    assert sse_comment("still here") == b": still here\n\n"
