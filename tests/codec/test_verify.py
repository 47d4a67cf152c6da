from __future__ import annotations

import sys
from typing import Any

import pytest
from google.protobuf.message import Message

from turnwire._codec import DecodeError, verify
from turnwire._codec.verify import _CheckedTools
from turnwire.v1 import content_pb2, item_pb2, tool_pb2
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate


def broken(parameters: str) -> tool_pb2.Tool:
    return tool_pb2.Tool(function={"name": "f", "parameters": parameters})


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (ResponseCreate(tools=[broken("{}"), broken("{")]), "tools[1].parameters"),
        (ResponseCreate(tools=[broken("x" * 10_000)]), "tools[0].parameters"),
        (ResponseCreate(image=""), "image"),
        (
            ClientEvent(
                response_create=ResponseCreate(
                    tools=[tool_pb2.Tool(namespace={"name": "n", "tools": [broken("'")]})]
                )
            ),
            "tools[0].tools[0].parameters",
        ),
        (
            ResponseCreate(
                input={
                    "items": {
                        "items": [
                            item_pb2.Item(
                                message={
                                    "content": {
                                        "parts": {
                                            "parts": [
                                                content_pb2.ContentPart(
                                                    output_text={"annotations": ["{}", "-"]}
                                                )
                                            ]
                                        }
                                    }
                                }
                            )
                        ]
                    }
                }
            ),
            "input[0].content[0].annotations[1]",
        ),
        (item_pb2.Item(message={"extra_json": "[]"}), ""),
        (item_pb2.Item(message={"extra_json": "{"}), ""),
    ],
)
def test_text_that_is_not_json_is_found(message: Message, path: str) -> None:
    for _ in range(2):  # What was remembered is no more lenient.
        with pytest.raises(DecodeError) as caught:
            verify(message)
        assert (caught.value.kind, caught.value.path) == ("json", path)


def test_json_of_every_size_passes() -> None:
    long = '{"enum":["' + "x" * 10_000 + '"]}'

    verify(ResponseCreate(tools=[broken("{}"), broken(long)], metadata={"a": "{"}, model="{"))


def many(*, last: str = "{}", seventh: str = "{}", count: int = 12) -> ResponseCreate:
    """Return a create with tools that differ where nothing but reading all of them tells."""
    tools = [broken(f'{{"number":{index}}}') for index in range(count)]
    tools[7], tools[-1] = broken(seventh), broken(last)
    return ResponseCreate(tools=tools)


def test_one_broken_tool_is_found_among_many_that_were_checked_before() -> None:
    for _ in range(3):
        verify(many())
    for _ in range(2):
        with pytest.raises(DecodeError) as caught:
            verify(many(seventh="{"))
        assert caught.value.path == "tools[7].parameters"
    verify(many())


@pytest.mark.parametrize("count", [2, 3])
def test_a_few_tools_that_were_checked_are_not_read_again_and_broken_ones_are_found(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    long = '"' + "x" * 10_000 + '"'  # too long to be remembered by itself

    def tools(*texts: str) -> ResponseCreate:
        return ResponseCreate(tools=[broken(text) for text in texts])

    right = [long] * count
    verify(tools(*right))
    for index in range(count):
        wrong = [*right]
        wrong[index] = long[1:]
        for _ in range(2):
            with pytest.raises(DecodeError) as caught:
                verify(tools(*wrong))
            assert caught.value.path == f"tools[{index}].parameters"
    monkeypatch.setattr("orjson.loads", lambda _: pytest.fail("read"))
    verify(tools(*right))


def test_tools_with_credentials_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    mcp = tool_pb2.Tool(mcp={"server_label": "files", "authorization": "SECRET"})
    within = tool_pb2.Tool(namespace={"name": "n", "tools": [mcp, mcp]})
    remembered: list[str] = []
    of_list = _CheckedTools.__call__

    def watched(known: _CheckedTools, values: Any) -> None:
        of_list(known, values)
        remembered.append(repr(known._passed))

    monkeypatch.setattr(_CheckedTools, "__call__", watched)
    for tools in ([mcp, broken("{}")], [broken("{}"), mcp], [broken("{}"), within]):
        verify(ResponseCreate(tools=tools))
    assert remembered and "SECRET" not in "".join(remembered)


def test_headers_with_credentials_are_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def mcp(headers: str) -> ResponseCreate:
        return ResponseCreate(tools=[tool_pb2.Tool(mcp={"headers": headers})])

    read: list[str] = []
    monkeypatch.setattr(sys.modules[verify.__module__], "_is_json", read.append)
    verify(mcp('{"authorization":"SECRET"}'))
    assert not read
    with pytest.raises(DecodeError) as caught:
        verify(mcp("{"))
    assert caught.value.path == "tools[0].headers"


def test_what_is_remembered_is_not_the_message_that_came() -> None:
    create = ResponseCreate(tools=[broken('{"a":1}'), broken('{"b":2}')])
    verify(create)
    create.tools[1].function.parameters = "{"
    with pytest.raises(DecodeError):
        verify(create)


def test_many_tools_are_remembered_within_bounds() -> None:
    for index in range(200):
        verify(many(last=f'{{"other":{index}}}'))
    verify(many(seventh='{"long":"' + "x" * 300_000 + '"}'))
    with pytest.raises(DecodeError):
        verify(many(last="{"))


def test_tools_that_were_checked_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    long = '"' + "x" * 10_000 + '"'  # too long to be remembered by itself
    verify(many(seventh=long))
    monkeypatch.setattr("orjson.loads", lambda _: pytest.fail("read"))
    verify(many(seventh=long))
