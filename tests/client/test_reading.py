from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.messages import examples, messages
from turnwire import _codec
from turnwire._event import RESPONSE_ENDS
from turnwire._reading import EventReader
from turnwire.errors import ProtocolViolation
from turnwire.v1.server_event_pb2 import ServerEvent

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}
OTHER = {**TOOL, "name": "read"}
MCP = {"type": "mcp", "server_label": "s", "server_url": "https://x", "headers": {"a": "secret"}}


def response(number: int, tools: list[Any], **rest: Any) -> dict[str, Any]:
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000 + number,
        "status": "in_progress",
        "instructions": "Be brief.",
        "model": "m",
        "output": [],
        "store": False,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": tools,
        "top_p": 0.5,
        "usage": None,
        "metadata": {"a": "b"},
        **rest,
    }


def told(kind: str, number: int, body: dict[str, Any], **head: Any) -> str:
    event = {"type": kind, "sequence_number": number, **head, "response": body}
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


def turn(number: int, tools: list[Any], said: str = "Hé", **rest: Any) -> list[str]:
    body = response(number, tools, **rest)
    output = {"type": "message", "role": "assistant", "content": said}
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    delta = {"type": "response.output_text.delta", "sequence_number": 2, "delta": said}
    return [
        told("response.created", 0, body),
        told("response.in_progress", 1, body),
        json.dumps({**delta, "item_id": "i", "output_index": 0, "content_index": 0}),
        told("response.completed", 3, body | {"status": "completed", "output": [output]}),
        told("response.completed", 4, body | {"usage": usage}, stream_id="lane"),
    ]


def read(reader: EventReader, text: str) -> ServerEvent:
    event = reader.read(text, 7)
    expected = _codec.loads(ServerEvent, text)
    if event.arm in RESPONSE_ENDS:
        assert event.response_id == getattr(expected, event.arm).response.id
    assert event.whole == expected
    assert event.arm == expected.WhichOneof("event")
    assert event.sequence_number == (
        expected.sequence_number if expected.HasField("sequence_number") else None
    )
    assert event.stream_id == (expected.stream_id if expected.HasField("stream_id") else None)
    assert event.size == 7
    return event.whole


@given(st.data())
@examples(30)
def test_events_are_read_as_the_codec_reads_them(data: st.DataObject) -> None:
    reader = EventReader()
    for message in data.draw(st.lists(messages(ServerEvent), max_size=5)):
        for _ in range(2):
            read(reader, _codec.dumps(message).decode())


def test_turns_are_read_the_same_with_what_is_known_of_those_before() -> None:
    reader = EventReader()
    for number, tools in enumerate([[TOOL], [TOOL], [TOOL, OTHER], [], [OTHER], [OTHER], [MCP]]):
        for text in turn(number, tools):
            read(reader, text)


def test_settings_that_are_known_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = EventReader()
    for text in turn(1, [TOOL]):
        read(reader, text)
    expected = [_codec.loads(ServerEvent, text) for text in turn(2, [TOOL])]
    monkeypatch.setattr(EventReader, "_learn", None)
    assert [reader.read(text, 0).whole for text in turn(2, [TOOL])] == expected


def test_tools_that_bring_credentials_are_not_remembered() -> None:
    reader = EventReader()
    for text in turn(1, [MCP]):
        read(reader, text)
    assert reader._known is None


def test_an_event_is_not_built_before_it_is_asked_for() -> None:
    reader = EventReader()
    for number in (1, 2):
        events = [reader.read(text, 0) for text in turn(number, [TOOL])]
    assert events[2].delta == "Hé"
    assert all(event._make is not None for event in events)
    assert events[1].response is not None
    assert events[1].response.id == "resp_2"
    assert events[1]._make is None


def test_a_response_that_changed_since_it_was_created_is_read_anew() -> None:
    reader = EventReader()
    for number in (1, 2):
        body = response(number, [TOOL])
        read(reader, told("response.created", 0, body))
        read(reader, told("response.in_progress", 1, body | {"service_tier": "flex"}))
        read(reader, told("response.created", 0, body))
        read(reader, told("response.completed", 1, body))
        read(reader, told("response.created", 0, body))
        read(reader, told("response.in_progress", 1, body, stream_id="a"))
        read(reader, told("response.created", 0, body, stream_id="a"))
        read(reader, told("response.in_progress", 1, body, stream_id="a"))
        read(reader, told("response.created", 0, body))
        read(reader, told("response.in_progress", 2, body))
        read(reader, told("response.created", 0, body)[:-1] + ',"stream_id":"b"}')
        read(reader, told("response.in_progress", 1, body)[:-1] + ',"stream_id":"b"}')
        for last in ('"later":1', '"type":"response.created"'):
            read(reader, told("response.created", 0, body)[:-1] + f",{last}}}")
            assert reader._created is None
            read(reader, told("response.in_progress", 1, body)[:-1] + f",{last}}}")
        read(reader, told("response.created", 2**32 - 1, body))
        with pytest.raises(ProtocolViolation):
            reader.read(told("response.in_progress", 2**32, body), 0)


def test_known_text_elsewhere_is_no_setting() -> None:
    reader = EventReader()
    for text in turn(1, [TOOL]):
        read(reader, text)
    assert reader._known is not None
    known = reader._known.text
    inside = json.loads(f"{{{known}}}")
    body = {name: value for name, value in response(2, [TOOL]).items() if name not in inside}
    schema = {"type": "json_schema", "name": "n", "schema": inside}
    for text in (
        told("response.completed", 1, body | {"output": [], "text": {"format": schema}}),
        told("response.completed", 1, body | {"incomplete_details": inside}),
        told("response.completed", 1, body | {"output": [], "instructions": f"{{{known}}}"}),
        told("response.completed", 1, body | inside | {"store": True, "turnwire.known": 0}),
        told("response.completed", 1, body | inside).replace(known, f'{known},"temperature":0.25'),
        told("response.output_text.delta", 1, inside),
        f'{{"type":"response.completed",{known},"response":{json.dumps(body)}}}',
        f'{{"type":"response.output_text.delta","delta":"x",{known}}}',
    ):
        for before in turn(1, [TOOL]):
            read(reader, before)
        read(reader, text)


def test_a_number_that_goes_on_is_another_one() -> None:
    first = told("response.completed", 1, response(1, [TOOL], top_p=1))
    for more in ("0", ".5", "e2", ".0e1"):
        reader = EventReader()
        for text in (first, first.replace('"top_p":1', f'"top_p":1{more}'), first):
            read(reader, text)


@pytest.mark.parametrize("cut", [1, 30, 120, 250, 400])
def test_what_is_malformed_is_so_with_settings_that_are_known(cut: int) -> None:
    reader = EventReader()
    created, *_ = turn(1, [TOOL])
    for text in turn(1, [TOOL]):
        read(reader, text)
    for text in (created[:-cut], created.replace('"status":"in_progress"', '"status":7')):
        read(reader, created)
        with pytest.raises(ProtocolViolation):
            reader.read(text, 0)


def test_a_type_of_a_later_version_has_no_arm() -> None:
    event = EventReader().read('{"type":"of.a.later.version","response":{}}', 5)
    assert (event.arm, event.size) == ("", 5)
