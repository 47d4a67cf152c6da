from __future__ import annotations

import unicodedata

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire import _codec
from turnwire.v1.item_pb2 import Item
from turnwire_server.adapters.screens.canonical import canonical, item_text, source_of


def item(**members):
    return _codec.parse(Item, members)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("plain text", "plain text"),
        ("  two \n\t lines\u2028and\u00a0more ", "two lines and more"),
        ("ｆｕｌｌ ｗｉｄｔｈ", "full width"),
        ("in\u200bvis\u00adible\ufeff\U000e0041", "invisible"),
        ("con\x00trol\x1b\x7f", "control"),
        ("ﬁre", "fire"),
        ("e\u0301", "é"),
        ("e\u200d\u0301", "é"),
        ("राम", "राम"),
        ("", ""),
        ("\u200b \n", ""),
    ],
)
def test_the_canonical_form(text, form):
    assert canonical(text) == form


@given(st.text(max_size=80))
def test_the_canonical_form_is_its_own_and_has_no_control_characters(text):
    form = canonical(text)
    assert canonical(form) == form
    assert not any(unicodedata.category(character) == "Cc" for character in form)


def test_long_runs_of_combining_marks_are_cut_before_they_are_sorted():
    form = canonical("a" + "\u0316\u0301" * 50_000 + "b")
    assert form[-1] == "b"
    assert len(form) <= 32


@pytest.mark.parametrize(
    ("members", "source", "text"),
    [
        ({"type": "message", "role": "user", "content": "hi"}, "user", "hi"),
        ({"role": "developer", "content": "hi"}, "developer", "hi"),
        ({"role": "system", "content": "hi"}, "system", "hi"),
        ({"type": "message", "role": "critic", "content": "hi"}, "other", "hi"),
        (
            {
                "type": "message",
                "role": "user",
                "id": "msg_1",
                "content": [
                    {"type": "input_text", "text": "bo"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
                    {"type": "input_text", "text": "mb"},
                ],
            },
            "user",
            "bomb",
        ),
        (
            {
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "said", "annotations": [{"note": "x"}]},
                    {"type": "refusal", "refusal": "no"},
                ],
            },
            "assistant",
            "saidno",
        ),
        (
            {
                "type": "function_call",
                "call_id": "call_1",
                "name": "shell",
                "arguments": '{"cmd": "\\u0062omb", "n": 41, "on": ["\\n", true]}',
            },
            "tool_call",
            "shell cmd bomb n 41 on \n True",
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "shell", "arguments": '{"cmd": "\\'},
            "tool_call",
            'shell {"cmd": "\\',
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "a", "input": "\\x"},
            "tool_call",
            "a \\x",
        ),
        ({"type": "function_call_output", "call_id": "c", "output": "out"}, "tool_output", "out"),
        (
            {
                "type": "custom_tool_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": "out"}],
            },
            "tool_output",
            "out",
        ),
        (
            {
                "type": "reasoning",
                "id": "rs_1",
                "encrypted_content": "AAAA",
                "summary": [{"type": "summary_text", "text": "why"}],
                "content": [{"type": "reasoning_text", "text": "because"}],
            },
            "reasoning",
            "why because",
        ),
        ({"type": "compaction", "encrypted_content": "AAAA"}, "other", ""),
    ],
)
def test_the_text_of_an_item_is_what_a_model_is_told(members, source, text):
    read = item(**members)
    assert source_of(read) == source
    assert item_text(read) == text


def test_deep_json_in_arguments_is_read_without_recursion():
    deep = "[" * 900 + '"\\u0062omb"' + "]" * 900
    assert orjson.loads(deep)
    call = item(type="function_call", call_id="c", name="f", arguments=deep)
    assert item_text(call) == "f bomb"


def test_an_item_of_no_type_has_no_text():
    assert item_text(Item()) == ""
    assert source_of(Item()) == "other"
