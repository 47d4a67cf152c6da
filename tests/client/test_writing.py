from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.messages import examples, messages
from turnwire import _codec
from turnwire._create import Create
from turnwire._writing import EventWriter
from turnwire.v1.client_event_pb2 import ClientEvent, Input, ResponseCreate

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}
MCP = {"type": "mcp", "server_label": "s", "server_url": "https://x", "headers": {"a": "secret"}}
GROUP = {"type": "namespace", "name": "g", "description": "d", "tools": [MCP]}


def create(tools: list[Any], **head: str) -> ClientEvent:
    body: dict[str, Any] = {"type": "response.create", "input": "Hé", "model": "m", "tools": tools}
    body |= {"metadata": {"a": "b"}, "store": False, "include": ["turnwire.timing"], **head}
    return _codec.parse(ClientEvent, body)


def write(writer: EventWriter, event: ClientEvent) -> None:
    expected = _codec.dumps(event)
    data = writer.write(event)
    assert json.loads(data) == json.loads(expected)
    assert len(data) == len(expected)


@given(st.data())
@examples(30)
def test_events_are_written_as_the_codec_writes_them(data: st.DataObject) -> None:
    writer = EventWriter()
    for event in data.draw(st.lists(messages(ClientEvent), min_size=1, max_size=4)):
        for _ in range(2):
            write(writer, event)


def test_tools_that_were_changed_after_a_create_are_written_as_they_are() -> None:
    writer = EventWriter()
    event = create([TOOL, TOOL], event_id="evt_1", stream_id="a")
    write(writer, event)
    event.response_create.tools[1].function.name = "read"
    write(writer, event)
    del event.response_create.tools[1]
    write(writer, event)


def test_tools_that_are_known_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EventWriter()
    write(writer, create([TOOL]))
    expected = json.loads(_codec.dumps(create([TOOL], event_id="evt_2")))
    monkeypatch.setattr(_codec.Splicer, "settled", None)
    assert json.loads(writer.write(create([TOOL], event_id="evt_2"))) == expected


@pytest.mark.parametrize("stream_id", ["a", None])
def test_a_create_without_a_message_is_written_as_one_with_it(stream_id: str | None) -> None:
    writer = EventWriter()
    call = {"type": "function_call_output", "call_id": "c", "output": "é"}
    inputs: list[Any] = ["Hé", None, _codec.parse(Input, [call, call])]
    for tools in ([TOOL], [TOOL, {**TOOL, "name": "read"}], [TOOL]):
        settings = ResponseCreate()
        settings.CopyFrom(create(tools).response_create)
        for name in ("input", "metadata"):
            settings.ClearField(name)
        known = ClientEvent(response_create=settings).SerializeToString()
        for given_input in inputs:
            for rest in ({"generate": False, "rollout": None}, {"generate": None, "rollout": True}):
                made = Create(known, given_input, "resp_1", {"a": "b", "c": "d"}, **rest)
                made.event_id, made.stream_id = "evt_1", stream_id
                assert writer.write_create(made) == EventWriter().write(made.whole)


def test_settings_of_a_create_without_a_message_are_not_encoded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = EventWriter()
    known = create([TOOL]).SerializeToString()
    writer.write_create(Create(known, "1", None, None, generate=None, rollout=None))
    monkeypatch.setattr(_codec.Splicer, "settled", None)
    second = Create(known, "2", None, None, generate=None, rollout=None)
    assert json.loads(writer.write_create(second))["input"] == "2"


@pytest.mark.parametrize("tool", [MCP, GROUP, {**TOOL, "description": "x" * 70_000}])
def test_credentials_and_large_tools_are_not_remembered(tool: dict[str, Any]) -> None:
    writer = EventWriter()
    write(writer, create([tool]))
    assert writer._known[0] == b""
