from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire_server.codec.faults import Fault
from turnwire_server.codec.memo import ToolsMemo
from turnwire_server.codec.requests import RequestDecoder
from turnwire_server.codec.tools_text import STAND_IN, ToolsText


def tools(size: int = 2_000, name: str = "look") -> list[dict[str, Any]]:
    return [{"type": "function", "name": name, "description": "ü" * size}]


def data_of(**members: object) -> str:
    return json.dumps({"type": "response.create", "model": "m"} | members, ensure_ascii=False)


def knowing(data: str, times: int = 2) -> RequestDecoder:
    decoder = RequestDecoder()
    for _ in range(times):
        decoder.client_event(data)
    return decoder


def fresh(data: str | bytes) -> ClientEvent | Fault:
    return RequestDecoder().client_event(data)


def test_tools_that_come_for_the_third_time_are_not_even_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = data_of(tools=tools(), input="hi")
    decoder, expected = knowing(data), fresh(data)
    monkeypatch.setattr(ToolsMemo, "key", lambda _: pytest.fail("parsed"))
    assert decoder.client_event(data) == expected
    assert decoder.client_event(data.encode()) == expected


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(data_of(tools=tools(3_000)), id="other tools"),
        pytest.param(data_of(tools=[*tools(), {"type": "web_search"}]), id="more tools"),
        pytest.param(data_of(input="hi"), id="no tools"),
        pytest.param(data_of(tools=None), id="null"),
        pytest.param(data_of(input=json.dumps({"tools": tools()})), id="inside a text"),
        pytest.param(
            data_of(
                input=[{"type": "additional_tools", "role": "developer", "tools": tools()}],
                tools=tools(10),
            ),
            id="offered by an item",
        ),
        pytest.param(data_of(**{'my"tools': tools()}), id="a name that ends alike"),
        pytest.param(data_of(tools=tools())[:-1] + ', "tools": []}', id="named twice"),
        pytest.param(data_of(tools=tools())[:-1] + ', "tools": 7}', id="named twice, wrong"),
        pytest.param(data_of(tools=tools())[:-1] + "7}", id="not JSON"),
        pytest.param(data_of(tools=tools())[:-1], id="cut off"),
        pytest.param(data_of(tools=STAND_IN), id="the stand-in itself"),
        pytest.param("[" + data_of(tools=tools()) + "]", id="an array"),
    ],
)
def test_what_is_not_the_known_tools_is_decoded_as_if_none_were_known(other: str) -> None:
    decoder = knowing(data_of(tools=tools(), input="hi"))
    assert decoder.client_event(other) == fresh(other)
    assert decoder.create(other.encode()) == RequestDecoder().create(other.encode())


def test_bytes_that_are_not_utf8_are_a_fault_as_before() -> None:
    data = data_of(tools=tools()).encode() + b"\xff"
    assert knowing(data_of(tools=tools())).client_event(data) == fresh(data)


lists = st.lists(st.sampled_from([tools(), tools(2_000, "say"), tools(5), []]), max_size=3)


@given(st.lists(st.tuples(lists, st.text(max_size=5), st.booleans(), st.booleans()), max_size=8))
def test_a_decoder_that_knows_tools_decodes_as_one_that_does_not(requests) -> None:
    decoder = RequestDecoder()
    for chosen, text, is_last, is_compact in requests:
        given_tools = [tool for each in chosen[:1] for tool in each]
        members = {"input": text, "tools": given_tools}
        if not is_last:
            members = {"tools": given_tools, "input": text}
        separators = (",", ":") if is_compact else None
        data = json.dumps(
            {"type": "response.create", "model": "m"} | members, separators=separators
        )
        assert decoder.client_event(data) == fresh(data)


def test_short_tools_are_not_worth_it_and_neither_are_those_elsewhere() -> None:
    texts = ToolsText()
    for data, found in (
        (data_of(tools=tools(5)), tools(5)),
        (data_of(input="hi"), tools()),
        (data_of(**{'my"tools': tools(3_000)}, tools=tools()), tools()),
        ('{"a":"tools": ', tools()),
    ):
        texts.learn(data, found, b"x")
    assert len(texts) == 0


def test_tools_that_begin_alike_are_told_apart_and_few_of_them_kept() -> None:
    texts = ToolsText()
    sets = [tools(2_000 + index) for index in range(6)]
    for index, one in enumerate(sets):
        texts.learn(data_of(tools=one), one, bytes([index]))
    assert len(texts) == 4
    found = [texts.cut(data_of(tools=one)) for one in sets]
    assert [each and each[1] for each in found] == [None, None, b"\2", b"\3", b"\4", b"\5"]


def test_the_memory_is_bounded_and_keeps_what_was_used_last() -> None:
    texts = ToolsText(max_bytes=7_000)
    sets = {name: tools(2_000, name) for name in "abcd"}
    for name in "abc":
        texts.learn(data_of(tools=sets[name]), sets[name], b"x")
    assert texts.cut(data_of(tools=sets["a"])) is not None
    texts.learn(data_of(tools=sets["d"]), sets["d"], b"x")
    known = [name for name, one in sets.items() if texts.cut(data_of(tools=one)) is not None]
    assert known == ["a", "c", "d"]
    texts.learn(data_of(tools=tools(8_000)), tools(8_000), b"x")
    assert len(texts) == 3


def test_only_the_second_time_is_the_second() -> None:
    memo = ToolsMemo(max_entries=1)
    memo.put(b"a", b"1")
    assert (memo.is_second(b"a"), memo.is_second(b"a")) == (True, False)
    memo.put(b"b", b"2")
    memo.put(b"a", b"1")
    assert memo.is_second(b"a")
