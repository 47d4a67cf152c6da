"""DATA frames without h2's bookkeeping, and whether the installed h2 allows that.

h2 takes about 15 µs to make a frame that is nine bytes and two subtractions. What this and
`fast_inbound` rely on is not h2's public interface, so it is tried once, beside h2's own way, when
it is imported.
"""

from __future__ import annotations

import struct
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from hyperframe.frame import DataFrame, PingFrame, WindowUpdateFrame

from turnwire_server.transports.grpclib.fast_inbound import take_plain

__all__ = ["DATA_HEAD", "MIN_FRAME_BYTES", "PREFIX_BYTES", "difference"]

DATA_HEAD: Final = struct.Struct(">IBIBI")
"""Length and type (24 and 8 bits, one number, and DATA's type is 0), flags and stream of a DATA
frame; then flag and length of the one message in it."""
PREFIX_BYTES: Final = 5
"""Of a message: the flag and the length."""
MIN_FRAME_BYTES: Final = 16_384
"""No peer may take smaller frames only (RFC 9113, 6.5.2): up to this nobody has to look."""

_PRIVATE: Final = ("_receive_goaway_frame", "_terminate_connection")


def difference() -> str | None:
    """Return how h2 differs from what we know of it, None when it does not."""
    for name in _PRIVATE:
        if not callable(getattr(H2Connection, name, None)):
            return f"H2Connection has no {name}"
    try:
        return _tried() or _tried_inbound()
    except Exception as error:  # Whatever it does that we do not expect is a difference.
        return f"a trial ended with {type(error).__qualname__}"


def _tried() -> str | None:
    """Send a message in both ways and compare."""
    message = b"m" * 300
    theirs, ours = _answering(), _answering()
    if type(ours.incoming_buffer._data) is not bytearray or ours._frame_dispatch_table is None:
        return "what arrived is kept otherwise"
    theirs.send_data(1, DATA_HEAD.pack(0, 0, 0, 0, len(message))[9:] + message)
    size = len(message) + PREFIX_BYTES
    stream = ours.streams[1]
    for holder in (stream, ours):
        if type(holder.outbound_flow_control_window) is not int:
            return "windows are no plain numbers"
        holder.outbound_flow_control_window -= size
    frame = DATA_HEAD.pack(size << 8, 0, 1, 0, len(message)) + message
    if theirs.data_to_send() != frame:
        return "a DATA frame looks otherwise"
    for connection in (theirs, ours):
        windows = {
            connection.streams[1].outbound_flow_control_window,
            connection.outbound_flow_control_window,
            connection.local_flow_control_window(1),
        }
        if windows != {65_535 - size}:
            return "windows are counted otherwise"
        if connection.max_outbound_frame_size != 16_384:
            return "the frame size is kept elsewhere"
        connection.end_stream(1)
        if not connection.streams[1].closed:
            return "a stream does not end"
    return None


def _tried_inbound() -> str | None:
    """Take the same frames in both ways and compare."""
    theirs, ours = _answering(ends=False), _answering(ends=False)
    size = 16_384
    frames = (
        WindowUpdateFrame(1, 100),
        DataFrame(1, b"d" * size),
        WindowUpdateFrame(0, 200),
        PingFrame(0, b"measured"),
    )
    packet = b"".join(frame.serialize() for frame in frames)
    for _ in range(3):  # The peer's windows are opened again on the way.
        if take_plain(ours, packet) != (theirs.receive_data(packet), len(packet)):
            return "frames are taken otherwise"
        if _counts(theirs) != _counts(ours):
            return "what arrives is counted otherwise"
        for connection in (theirs, ours):
            connection.acknowledge_received_data(size, 1)
        if theirs.data_to_send() != ours.data_to_send():
            return "the peer's windows are opened otherwise"
    return None


def _counts(h2: H2Connection) -> tuple[int, ...]:
    """Return what h2 counts of a connection and its stream 1."""
    stream = h2.streams[1]
    return (
        h2.inbound_flow_control_window,
        h2.remote_flow_control_window(1),
        stream._actual_content_length,
        h2.outbound_flow_control_window,
        stream.outbound_flow_control_window,
    )


def _answering(*, ends: bool = True) -> H2Connection:
    """Return a server's connection that has answered a request with headers.

    Args:
        ends: Whether the request has no data.
    """
    client = H2Connection(H2Configuration(client_side=True))
    server = H2Connection(H2Configuration(client_side=False))
    client.initiate_connection()
    server.initiate_connection()
    request = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")]
    client.send_headers(1, request, end_stream=ends)
    server.receive_data(client.data_to_send())
    server.send_headers(1, [(":status", "200")])
    server.data_to_send()
    return server
