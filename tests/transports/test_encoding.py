from __future__ import annotations

import json

import pytest

from harness.fake_services import completed, created, failed, greeting
from turnwire import _codec
from turnwire.v1.error_pb2 import ERROR_REASON_RATE_LIMIT_EXCEEDED
from turnwire.v1.server_event_pb2 import ServerFrame
from turnwire_server.codec.faults import Fault
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Delta, Part
from turnwire_server.transports.encoding import (
    MAX_OPEN_TEMPLATES,
    JsonEncoder,
    ProtoEncoder,
    is_terminal,
    public_type,
    rejection_of,
)


def part(item_id: str = "msg_1") -> Part:
    return Part("response_output_text_delta", item_id, 0, 0, None)


def test_joined_entries_are_a_server_frame_with_the_events_in_order() -> None:
    encoder = ProtoEncoder()
    events = greeting("lane.1")
    frame = ServerFrame.FromString(b"".join(encoder.encode(event) for event in events))
    assert [event.WhichOneof("event") for event in frame.events] == [
        "response_created",
        *["response_output_text_delta"] * 3,
        "response_completed",
    ]
    assert {event.stream_id for event in frame.events} == {"lane.1"}
    assert [event.sequence_number for event in frame.events] == [0, 1, 2, 3, 4]
    texts = [event.response_output_text_delta.delta for event in frame.events[1:4]]
    assert texts == ["Hel", 'lo "', "삶😀"]


def test_both_encoders_tell_the_same_public_events() -> None:
    proto, public = ProtoEncoder(), JsonEncoder()
    for event in greeting():
        (decoded,) = ServerFrame.FromString(proto.encode(event)).events
        expected = json.loads(_codec.dumps(decoded))
        assert json.loads(public.encode(event)) == expected
        assert public_type(event) == expected["type"]


@pytest.mark.parametrize("make", [JsonEncoder, ProtoEncoder])
def test_templates_are_made_once_per_part_and_dropped_after_the_turn(
    make: type[JsonEncoder | ProtoEncoder],
) -> None:
    encoder = make()
    one = part()
    encoder.encode(Delta(one, 1, "a"))
    (template,) = encoder._templates.values()
    encoder.encode(Delta(one, 2, "b"))
    assert list(encoder._templates.values()) == [template]
    encoder.encode(created())
    assert encoder._templates
    encoder.encode(completed())
    assert not encoder._templates


def test_templates_of_a_long_turn_are_bounded() -> None:
    encoder = ProtoEncoder()
    for index in range(MAX_OPEN_TEMPLATES * 3):
        encoder.encode(Delta(part(f"msg_{index}"), index, "a"))
    assert len(encoder._templates) <= MAX_OPEN_TEMPLATES


def test_terminal_events_are_told_apart() -> None:
    rejection = Rejection(ERROR_REASON_RATE_LIMIT_EXCEEDED, "full")
    assert all(is_terminal(event) for event in (completed(), failed(), rejection.event()))
    assert not any(is_terminal(event) for event in (created(), Delta(part(), 1, "a")))


@pytest.mark.parametrize(
    "code",
    [
        "invalid_json",
        "unknown_event_type",
        "missing_required_parameter",
        "invalid_type",
        "invalid_value",
    ],
)
def test_a_fault_is_rejected_with_its_own_code(code: str) -> None:
    rejection = rejection_of(Fault(code, "why", "input[0]", None, None))
    assert (rejection.code, rejection.status, rejection.param) == (code, 400, "input[0]")
