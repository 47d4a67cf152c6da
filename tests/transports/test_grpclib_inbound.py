"""What arrives, in the short way and in h2's own: nobody can tell them apart."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from turnwire_server.transports.grpclib import fast_data, lean_h2
from turnwire_server.transports.grpclib.lean_h2 import LeanH2

WINDOW = 100_000
"""Of a stream, for the client."""
REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")]
EXACT = [*REQUEST, ("content-length", "10")]


class Side:
    """A server's h2 with three open streams, the last of which says how long it is."""

    def __init__(self, *, is_short: bool) -> None:
        self._is_short = is_short
        client = H2Connection(H2Configuration(client_side=True))
        client.initiate_connection()
        self.h2 = LeanH2(H2Configuration(client_side=False))
        self.h2.local_settings = Settings(
            client=False, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: WINDOW}
        )
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(60_000)
        for stream_id, headers in ((1, REQUEST), (3, REQUEST), (5, EXACT)):
            client.send_headers(stream_id, headers)
        self.h2.receive_data(client.data_to_send())
        self.h2.data_to_send()

    def take(self, packet: bytes, *, acknowledges: bool) -> Any:
        """Feed a packet; return all that can be seen of it."""
        with pytest.MonkeyPatch.context() as patch:
            if not self._is_short:
                patch.setattr(lean_h2, "take_plain", lambda h2, packet: ([], 0))
            try:
                events = self.h2.receive_data(packet)
                happened = [repr(event) for event in events]
                data = [event for event in events if isinstance(event, DataReceived)]
            except ProtocolError as error:
                happened, data = [f"{type(error).__name__} {error}"], []
        happened += [repr((one.data, one.stream_ended)) for one in data]
        for one in data if acknowledges else ():
            self.h2.acknowledge_received_data(one.flow_controlled_length, one.stream_id)
        streams = [
            (
                stream_id,
                stream.state_machine.state,
                stream._inbound_window_manager.current_window_size,
                stream._actual_content_length,
                stream.outbound_flow_control_window,
            )
            for stream_id, stream in self.h2.streams.items()
        ]
        connection = (
            self.h2.state_machine.state,
            self.h2.inbound_flow_control_window,
            self.h2.outbound_flow_control_window,
            bytes(self.h2.incoming_buffer._data),
        )
        return happened, self.h2.data_to_send(), streams, connection


def compare(*packets: bytes, acknowledges: bool = True) -> list[Any]:
    """Feed packets in both ways; return what is seen of each, which is the same."""
    short, plain = Side(is_short=True), Side(is_short=False)
    seen = []
    for packet in packets:
        seen.append(short.take(packet, acknowledges=acknowledges))
        assert seen[-1] == plain.take(packet, acknowledges=acknowledges)
    return seen


def wire(*frames: Frame) -> bytes:
    return b"".join(frame.serialize() for frame in frames)


def data(size: int, stream_id: int = 1, **more: Any) -> DataFrame:
    looks_like_frames = WindowUpdateFrame(1, 7).serialize() * (size // 13 + 1)
    return DataFrame(stream_id, looks_like_frames[:size], **more)


PING = PingFrame(0, b"12345678")
TURN = wire(WindowUpdateFrame(1, 700), data(1000), WindowUpdateFrame(0, 900), PING)
"""What grpcio's client sends for a turn."""


def test_a_turns_frames_never_reach_h2(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(is_short=True)
    monkeypatch.setattr(H2Connection, "receive_data", lambda *_: pytest.fail("h2 was asked"))
    for _ in range(50):
        happened, *_ = side.take(TURN, acknowledges=True)
        assert len(happened) == 5


def test_a_ping_is_answered_in_its_place() -> None:
    ((happened, written, *_), *_) = compare(wire(data(20), PING, data(20)))
    assert len(happened) == 5
    assert written == wire(PingFrame(0, b"12345678", flags=["ACK"]))


def test_a_packet_may_be_cut_anywhere() -> None:
    packet = wire(WindowUpdateFrame(1, 700), data(30), WindowUpdateFrame(0, 900))
    for cut in range(1, len(packet)):
        compare(packet[:cut], packet[cut:], TURN)


def test_a_packet_may_come_byte_by_byte() -> None:
    compare(*(bytes((byte,)) for byte in TURN), TURN)


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(wire(data(20), data(30, 3), data(1)), id="several frames and streams"),
        pytest.param(wire(data(20), data(30, flags=["END_STREAM"])), id="end of the stream"),
        pytest.param(wire(data(20, flags=["END_STREAM"]), data(30)), id="data behind the end"),
        pytest.param(wire(data(20, flags=["PADDED"], pad_length=9)), id="padded"),
        pytest.param(wire(data(0), data(0, flags=["END_STREAM"])), id="empty"),
        pytest.param(wire(data(20), RstStreamFrame(1, ErrorCodes.CANCEL)), id="reset behind it"),
        pytest.param(wire(RstStreamFrame(1, ErrorCodes.CANCEL), data(20)), id="reset before it"),
        pytest.param(wire(data(20, 7)), id="stream that is idle"),
        pytest.param(wire(data(20, 2)), id="stream of the server"),
        pytest.param(wire(data(16_384), data(16_385)), id="frame too large"),
        pytest.param(wire(data(5, 5), data(5, 5, flags=["END_STREAM"])), id="exact length"),
        pytest.param(wire(data(5, 5), data(6, 5)), id="more than its length"),
        pytest.param(wire(data(5, 5, flags=["END_STREAM"])), id="less than its length"),
        pytest.param(wire(PING, data(20)), id="ping before it"),
        pytest.param(wire(data(20), PING, data(20)), id="ping between"),
        pytest.param(wire(PingFrame(0, b"12345678", flags=["ACK"])), id="answer to a ping"),
        pytest.param(b"\0\0\x08\x06\0\0\0\0\x0112345678", id="ping of a stream"),
        pytest.param(b"\0\0\x08\x06\0\x80\0\0\x0012345678", id="ping with the reserved bit"),
        pytest.param(b"\0\0\x08\x06\x02\0\0\0\x0012345678", id="flags of a ping"),
        pytest.param(b"\0\0\x07\x06\0\0\0\0\x001234567", id="ping too short"),
        pytest.param(b"\0\0\x09\x06\0\0\0\0\x00123456789", id="ping too long"),
        pytest.param(wire(HeadersFrame(7, b"\x82"), data(20)), id="inside of headers"),
        pytest.param(wire(data(20), ContinuationFrame(1, b"")), id="continuation of nothing"),
        pytest.param(
            wire(WindowUpdateFrame(1, 2**31 - 1), data(20)), id="stream's window too large"
        ),
        pytest.param(wire(WindowUpdateFrame(0, 2**31 - 1)), id="connection's window too large"),
        pytest.param(wire(WindowUpdateFrame(7, 1)), id="window of an idle stream"),
        pytest.param(b"\0\0\4\x08\0\0\0\0\1\0\0\0\0", id="window opened by nothing"),
        pytest.param(b"\0\0\4\x08\0\0\0\0\0\x80\0\0\1", id="window with the reserved bit"),
        pytest.param(b"\0\0\4\x08\0\x80\0\0\0\0\0\0\1", id="reserved bit of the connection"),
        pytest.param(b"\0\0\3\x08\0\0\0\0\1\0\0\1", id="window update too short"),
        pytest.param(b"\0\0\5\x08\0\0\0\0\1\0\0\0\1\1", id="window update too long"),
        pytest.param(b"\0\0\4\x08\xff\0\0\0\1\0\0\0\1", id="flags of a window update"),
        pytest.param(b"\0\0\1\0\xf6\0\0\0\1d", id="flags that are not known"),
        pytest.param(b"\0\0\1\0\0\x80\0\0\1d", id="reserved bit of the stream"),
        pytest.param(b"\0\0\1\0\0\0\0\0\0d", id="data of the connection"),
        pytest.param(b"\0\0\1\x2a\0\0\0\0\1d", id="kind that is not known"),
        pytest.param(b"\xff\xff\xff\0\0\0\0\0\1d", id="frame announced too large"),
    ],
)
def test_everything_else_is_h2s(packet: bytes) -> None:
    compare(packet, TURN)
    compare(TURN + packet, TURN)
    for cut in range(1, min(len(packet), 60)):
        compare(packet[:cut], packet[cut:], TURN)


@pytest.mark.parametrize("streams", [(1,), (1, 3, 1, 3)])
def test_no_window_is_overdrawn(streams: tuple[int, ...]) -> None:
    packets = [wire(data(10_000, stream_id)) for _ in range(9) for stream_id in streams]
    seen = compare(*packets, *packets, acknowledges=False)
    assert "FlowControlError" in seen[-1][0][0] or "ProtocolError" in seen[-1][0][0]
    assert not seen[3][1]


def test_windows_are_given_back_in_the_same_frames() -> None:
    seen = compare(*[TURN] * 400)
    assert sum(bool(written) for _, written, *_ in seen) >= 4


def test_a_window_below_nothing_is_opened_as_h2_opens_it() -> None:
    closing = wire(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}))
    for increment in (1, 2**31 - 1, 2**31 + 7):
        short, plain = Side(is_short=True), Side(is_short=False)
        opening = b"\0\0\4\x08\0\0\0\0\1" + increment.to_bytes(4)
        for side in (short, plain):
            side.h2.send_headers(1, [(":status", "200")])
            side.h2.send_data(1, b"d" * 5000)
        seen = [side.take(closing, acknowledges=True) for side in (short, plain)]
        assert seen[0] == seen[1]
        assert short.h2.streams[1].outbound_flow_control_window == -5000
        assert short.take(opening, acknowledges=True) == plain.take(opening, acknowledges=True)


def test_a_connection_that_is_closed_takes_nothing() -> None:
    short, plain = Side(is_short=True), Side(is_short=False)
    for side in (short, plain):
        side.h2.close_connection()
    assert short.take(TURN, acknowledges=True) == plain.take(TURN, acknowledges=True)


def any_frames(chance: random.Random) -> Iterator[bytes]:
    """Yield frames, most of them right."""
    while True:
        stream_id = chance.choice((0, 1, 1, 1, 3, 3, 5, 7))
        match chance.randrange(24):
            case 0:
                yield wire(RstStreamFrame(stream_id or 1, ErrorCodes.CANCEL))
            case 1:
                yield wire(PingFrame(0, chance.randbytes(8)))
            case 2:
                yield wire(data(chance.randrange(50), stream_id or 1, flags=["END_STREAM"]))
            case 3:
                yield wire(data(3, 1, flags=["PADDED"], pad_length=chance.randrange(5)))
            case 4:
                yield chance.randbytes(4)
            case 5 | 6 | 7 | 8 | 9 | 10:
                yield wire(WindowUpdateFrame(stream_id, chance.choice((1, 500, 2**30))))
            case _:
                yield wire(data(chance.choice((1, 100, 16_384)), stream_id or 1))


@pytest.mark.parametrize("seed", range(60))
def test_any_frames_in_any_packets(seed: int) -> None:
    chance = random.Random(seed)
    frames = any_frames(chance)
    sent = b"".join(next(frames) for _ in range(30))
    packets = []
    while sent:
        size = chance.choice((1, 9, 13, 200, 2000, 20_000))
        packets.append(sent[:size])
        sent = sent[size:]
    compare(*packets, acknowledges=chance.random() < 0.8)


# The h2 that is installed.


def test_an_h2_that_counts_what_arrives_otherwise_is_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receive = H2Connection.receive_data

    def twice(self: H2Connection, packet: Any) -> Any:
        self._inbound_flow_control_window_manager.current_window_size -= 1
        return receive(self, packet)

    monkeypatch.setattr(H2Connection, "receive_data", twice)
    assert fast_data.difference() == "what arrives is counted otherwise"


def test_an_h2_with_other_events_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = H2Connection.receive_data
    monkeypatch.setattr(
        H2Connection, "receive_data", lambda self, packet: receive(self, packet)[:1]
    )
    assert fast_data.difference() == "frames are taken otherwise"


def test_an_h2_that_opens_windows_otherwise_is_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acknowledge = H2Connection.acknowledge_received_data
    calls: list[int] = []

    def lazy(self: H2Connection, size: int, stream_id: int) -> None:
        calls.append(size)
        if len(calls) % 2:
            acknowledge(self, size, stream_id)

    monkeypatch.setattr(H2Connection, "acknowledge_received_data", lazy)
    assert fast_data.difference() in (
        "the peer's windows are opened otherwise",
        "what arrives is counted otherwise",
    )
