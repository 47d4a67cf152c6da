"""Whatever a message holds survives the public JSON: every type, generated from descriptors."""

from __future__ import annotations

import orjson
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from harness.messages import examples, message_types, messages
from turnwire._codec import dumps, loads, parse, to_value, verify
from turnwire.v1 import client_event_pb2, item_pb2, server_event_pb2, tool_pb2

RICH = (
    client_event_pb2.ClientEvent,
    item_pb2.Item,
    server_event_pb2.ServerEvent,
    tool_pb2.Tool,
)


@pytest.mark.parametrize("message_type", message_types(), ids=lambda t: t.DESCRIPTOR.name)
def test_a_message_comes_back_from_its_json_the_same(message_type: type[Message]) -> None:
    @examples(60 if message_type in RICH else 5)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        message = data.draw(messages(message_type))
        verify(message)

        text = dumps(message)

        assert parse(message_type, to_value(message)) == message
        assert loads(message_type, text) == message
        assert loads(message_type, text.decode()) == message
        assert dumps(loads(message_type, text)) == text
        assert parse(message_type, orjson.loads(text)) == message

    check()
