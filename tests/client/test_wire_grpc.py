from __future__ import annotations

import pytest

from turnwire._wire_grpc import GrpcWire, shares
from turnwire.errors import ProtocolViolation
from turnwire.v1.server_event_pb2 import ResponseOutputTextDelta, ServerEvent, ServerFrame


def delta(number: int, text: str) -> ServerEvent:
    body = ResponseOutputTextDelta(item_id="msg_1", delta=text)
    return ServerEvent(sequence_number=number, response_output_text_delta=body)


# Fields of a later version, number 99: text, and four bytes.
UNKNOWN = b"\x9a\x06\x05later"
FIXED = b"\x9d\x06\xff\xff\xff\xff"


@pytest.mark.parametrize("lengths", [[], [3], [0, 3], [1, 200, 3], [20_000, 5, 3_000_000, 0]])
@pytest.mark.parametrize(
    ("before", "behind"), [(b"", b""), (UNKNOWN, b""), (b"", UNKNOWN), (FIXED, FIXED)]
)
def test_the_events_of_a_frame_share_its_bytes(
    lengths: list[int], before: bytes, behind: bytes
) -> None:
    events = [delta(number, "x" * length) for number, length in enumerate(lengths)]
    frame = before + ServerFrame(events=events).SerializeToString() + behind
    sizes = shares(frame, ServerFrame.FromString(frame).events)
    assert sizes[1:] == [event.ByteSize() for event in events[1:]]
    assert sum(sizes) == (len(frame) if events else 0)


async def test_a_malformed_frame_is_a_protocol_violation() -> None:
    class Broken:
        async def read(self) -> bytes:
            return b"\xff"

    wire = object.__new__(GrpcWire)
    wire._call = Broken()  # type: ignore[assignment]
    with pytest.raises(ProtocolViolation):
        await wire.receive()
