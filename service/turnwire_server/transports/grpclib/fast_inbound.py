"""Frames that only move data or windows, or measure the way, taken in without h2's bookkeeping.

h2 takes about 20 µs for a frame, and as much again to write the DATA of a create down in
hexadecimal for a log that nobody keeps. A turn comes as four frames: its message, two window
updates, and the ping by which grpcio's client measures what it was sent. `fast_data` tries whether
h2 is the one that this was made for.
"""

from __future__ import annotations

import struct
from typing import Final

from h2.connection import ConnectionState, H2Connection
from h2.events import DataReceived, Event, PingReceived, WindowUpdated
from h2.stream import H2Stream, StreamState

__all__ = ["FRAME_HEAD", "take_plain"]

FRAME_HEAD: Final = struct.Struct(">IBI")
"""Length and type (24 and 8 bits, one number), flags, and stream of a frame."""
_DATA: Final = 0x0
_PING: Final = 0x6
_PING_BYTES: Final = 8
_PING_ANSWER: Final = b"\0\0\x08\x06\x01\0\0\0\0"
"""The head of the frame that sends a ping's bytes back."""
_WINDOW_UPDATE: Final = 0x8
_MAX_WINDOW: Final = 2**31 - 1
"""Of a window, which may be negative, and of what is added to it."""


def take_plain(h2: H2Connection, packet: bytes) -> tuple[list[Event], int]:
    """Take the plain frames at the beginning of what arrived.

    Plain are whole DATA without padding and without the end of their stream, window updates, and
    pings, which are answered: for an open stream, within all windows, nothing wrong with them. h2
    must see the first frame that is anything else, and all that follow it.

    Args:
        h2: The connection, a server's.
        packet: What arrived.

    Returns:
        The events that h2 would have made, and how many bytes were taken.
    """
    events: list[Event] = []
    start, end = 0, len(packet)
    buffer = h2.incoming_buffer
    if (
        buffer._data  # the rest of a frame is to come
        or buffer._headers_buffer  # only CONTINUATION may come
        or h2.state_machine.state is not ConnectionState.SERVER_OPEN
    ):
        return events, start
    while end - start > FRAME_HEAD.size:
        head, flags, stream_id = FRAME_HEAD.unpack_from(packet, start)
        kind, body = head & 0xFF, start + FRAME_HEAD.size
        after = body + (head >> 8)
        stream = h2.streams.get(stream_id)
        if flags or after > end or (stream and stream.state_machine.state is not StreamState.OPEN):
            break
        event: Event | None = None
        if kind == _DATA and stream:
            event = _data(h2, stream, packet[body:after])
        elif kind == _WINDOW_UPDATE and (stream or not stream_id):
            event = _window_update(stream or h2, stream_id, packet[body:after])
        elif kind == _PING and not stream_id and after - body == _PING_BYTES:
            event = PingReceived(ping_data=packet[body:after])
            h2._data_to_send += _PING_ANSWER + event.ping_data
        if event is None:
            break
        events.append(event)
        start = after
    return events, start


def _data(h2: H2Connection, stream: H2Stream, data: bytes) -> DataReceived | None:
    size = len(data)
    shared, own = h2._inbound_flow_control_window_manager, stream._inbound_window_manager
    if (
        size > h2.max_inbound_frame_size
        or size > shared.current_window_size
        or size > own.current_window_size
        or stream._expected_content_length is not None
    ):
        return None
    shared.current_window_size -= size
    own.current_window_size -= size
    stream._actual_content_length += size
    return DataReceived(stream_id=stream.stream_id, data=data, flow_controlled_length=size)


def _window_update(
    holder: H2Connection | H2Stream, stream_id: int, body: bytes
) -> WindowUpdated | None:
    increment = int.from_bytes(body)
    window = holder.outbound_flow_control_window + increment
    if len(body) != 4 or not 0 < increment <= _MAX_WINDOW or window > _MAX_WINDOW:
        return None
    holder.outbound_flow_control_window = window
    return WindowUpdated(stream_id=stream_id, delta=increment)
