from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire_server.adapters.renderers.formats.call_parser import CallParser
from turnwire_server.adapters.renderers.formats.pieces import merged
from turnwire_server.adapters.renderers.formats.syntax import (
    ANGLE_THINK,
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    QWEN_CODER,
    SQUARE_THINK,
    SYNTAXES,
    CallSyntax,
)
from turnwire_server.session.output import (
    CallDelta,
    CallEnded,
    CallStarted,
    OutputPiece,
    ReasoningDelta,
    TextDelta,
)
from turnwire_server.session.tools import ToolSet, ToolSpec

TOOLS = ToolSet.of(
    (
        ToolSpec("add", parameters=json.dumps({"properties": {"a": {"type": "integer"}}})),
        ToolSpec(
            "write",
            namespace="fs",
            parameters=json.dumps(
                {
                    "properties": {
                        "path": {"type": "string"},
                        "lines": {"type": ["array", "null"]},
                        "mode": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                        "deep": {"$ref": "#/$defs/deep"},
                    }
                }
            ),
        ),
        ToolSpec("exec", kind="custom"),
    ),
    b"tools",
)


def parse(
    syntax: CallSyntax, *texts: str, complete: bool = True, **options: Any
) -> list[OutputPiece]:
    parser = CallParser(syntax, TOOLS, **options)
    pieces = [piece for text in texts for piece in parser.feed(text)]
    return merged([*pieces, *parser.finish(complete=complete)])


def call(name: str, text: str, **options: Any) -> list[OutputPiece]:
    return [CallStarted(name, **options), CallDelta(text), CallEnded()]


# Llama 3.


@pytest.mark.parametrize("opener", ["", "<|python_tag|>", "\n", "Adding. <|python_tag|>"])
def test_llama_calls_are_bare_objects_or_stand_behind_the_python_tag(opener: str) -> None:
    text = opener + '{"name": "add", "parameters": {"a": "<|python_tag|>"}}'
    said = [TextDelta("Adding.")] if opener.startswith("A") else []
    assert parse(LLAMA3_JSON, text, lenient=True) == [
        *said,
        *call("add", '{"a": "<|python_tag|>"}'),
    ]


def test_llama_separates_several_calls_by_semicolons() -> None:
    one = '{"type": "function", "name": "add", "parameters": {"a": 1}}'
    found = call("add", '{"a": 1}')
    assert parse(LLAMA3_JSON, f"<|python_tag|>{one}; {one}") == [*found, *found]
    assert parse(LLAMA3_JSON, f"{one};\n{one}", lenient=True) == [*found, *found]
    assert parse(LLAMA3_JSON, f"[{one}, {one}]", lenient=True) == [*found, *found]


def test_the_python_tag_is_never_text() -> None:
    assert parse(LLAMA3_JSON, "<|python_tag|>print('hi')") == [TextDelta("print('hi')")]
    assert parse(LLAMA3_JSON, '<|python_tag|>{"name": "other", "parameters": {}}') == [
        TextDelta('{"name": "other", "parameters": {}}')
    ]


# Mistral.


def test_mistral_lists_its_calls() -> None:
    one = '{"name": "add", "arguments": {"a": "[TOOL_CALLS]"}, "id": "abc"}'
    assert parse(MISTRAL, f"Well. [TOOL_CALLS] [{one}, {one}]") == [
        TextDelta("Well."),
        *call("add", '{"a": "[TOOL_CALLS]"}'),
        *call("add", '{"a": "[TOOL_CALLS]"}'),
    ]


@pytest.mark.parametrize("middle", ["[ARGS]", "[CALL_ID]abc[ARGS]", ""])
def test_newer_mistral_names_the_tool_before_its_arguments(middle: str) -> None:
    one = f'[TOOL_CALLS]add{middle}{{"a": "}}[ARGS]"}}'
    assert parse(MISTRAL, one * 2) == call("add", '{"a": "}[ARGS]"}') * 2
    text = f'[TOOL_CALLS]exec{middle}{{"input": "ls\\n"}}'
    assert parse(MISTRAL, text) == call("exec", "ls\n", custom=True)


def test_a_marker_that_looks_like_a_list_is_a_marker() -> None:
    found = call("add", '{"a": 1}')
    for text in ('[TOOL_CALLS]add[ARGS]{"a": 1}', '[{"name": "add", "arguments": {"a": 1}}]'):
        assert parse(MISTRAL, text, lenient=True) == found
        assert parse(MISTRAL, *text, lenient=True) == found


def test_a_mistral_call_ends_with_its_arguments() -> None:
    parser = CallParser(MISTRAL, TOOLS, parallel=False)
    assert parser.feed('[TOOL_CALLS]add[ARGS]{"a": 1}') == call("add", '{"a": 1}')
    assert parser.done


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(
    ("syntax", "call_text", "closing", "behind", "is_closed"),
    [
        (HERMES, "<tool_call>\n{}", "\n</tool_call>", "\n<tool_call>", True),
        (HERMES, "<tool_call>\n{}", "", "\n</tool_<", False),
        (HERMES, "<tool_call>\n{}", "", "}\n</tool_call>", False),
        (HERMES, "<tool_call>\n{}", " " * 16 + "</tool_call>", "x", True),
        (HERMES, "<tool_call>\n{}", "", " " * 17 + "</tool_call>", False),
        (HERMES, "<tool_call>[{}", "]</tool_call>", "x", True),
        (HERMES, "<tool_call>[{}", "", ", {}]</tool_call>", False),
        (HERMES, "```json\n{}", "\n```", "x", True),
        (HERMES, "{}", "", "x", True),
        (LLAMA3_JSON, "<|python_tag|>{}", "", "; {}", True),
        (MISTRAL, "[TOOL_CALLS][{}", "]", "x", True),
        (MISTRAL, "[TOOL_CALLS][{}", "", ", {}]", False),
    ],
)
def test_the_output_ends_with_the_markup_that_closes_its_one_call(
    syntax: CallSyntax, call_text: str, closing: str, behind: str, is_closed: bool, step: int
) -> None:
    written = call_text.replace("{}", '{"name": "add", "arguments": {"a": 1}}')
    parser = CallParser(syntax, TOOLS, parallel=False, lenient=True)
    text = f"{written}{closing}{behind}"
    said = [
        piece for at in range(0, len(text), step) for piece in parser.feed(text[at : at + step])
    ]
    assert merged([*said, *parser.finish(complete=True)]) == call("add", '{"a": 1}')
    assert parser.ending == (len(written) + len(closing), is_closed)


def test_a_mistral_call_without_arguments_gets_an_empty_object() -> None:
    assert parse(MISTRAL, "[TOOL_CALLS]add[ARGS]") == call("add", "{}")
    assert parse(MISTRAL, "[TOOL_CALLS]add[ARGS]", complete=False) == []


def test_an_unknown_mistral_tool_is_text_without_markers() -> None:
    assert parse(MISTRAL, '[TOOL_CALLS]other[CALL_ID]x[ARGS]{"a": 1}') == [
        TextDelta('other{"a": 1}')
    ]
    assert parse(MISTRAL, "[TOOL_CALLS]other[ARGS]") == [TextDelta("other")]
    assert parse(MISTRAL, "[TOOL_CALLS]" + "x" * 300) == [TextDelta("x" * 300)]


# Qwen3-Coder.

TAGGED = (
    '<tool_call>\n<function=fs.write>\n<parameter=path>\na\n<b> "</tool_call>\n</parameter>\n'
    "<parameter=lines>\n[1,\n 2]\n</parameter>\n<parameter=mode>\nrw\n</parameter>\n"
    "</function>\n</tool_call>"
)


def test_tags_become_json_as_the_schema_wants_it() -> None:
    assert parse(QWEN_CODER, f"Writing.\n{TAGGED}\nDone") == [
        TextDelta("Writing."),
        *call(
            "write",
            '{"path": "a\\n<b> \\"</tool_call>", "lines": [1,\n 2], "mode": "rw"}',
            namespace="fs",
        ),
        TextDelta("Done"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("lines", "None", "null"),
        ("lines", "[1", '"[1"'),
        ("lines", "NaN", '"NaN"'),
        ("mode", "7", "7"),
        ("deep", '{"x": {}}', '{"x": {}}'),
        ("path", "7", '"7"'),
        ("unknown", "true", '"true"'),
        ("path", "", '""'),
    ],
)
def test_values_are_what_their_schema_says(name: str, value: str, expected: str) -> None:
    text = f"<tool_call><function=write><parameter={name}>\n{value}\n</parameter></function>"
    assert parse(QWEN_CODER, text) == call("write", f'{{"{name}": {expected}}}', namespace="fs")


def test_text_values_stream() -> None:
    parser = CallParser(QWEN_CODER, TOOLS)
    assert parser.feed("<tool_call><function=write><parameter=path>\nab") == [
        CallStarted("write", "fs"),
        CallDelta('{"path": "ab'),
    ]
    assert parser.feed("\n</par") == []
    assert parser.feed("x") == [CallDelta("\\n</parx")]


def test_free_form_input_is_the_value_itself() -> None:
    text = '<function=exec>\n<parameter=input>\nls "x"\n</parameter>\n</function>\n</tool_call>'
    assert parse(QWEN_CODER, text) == call("exec", 'ls "x"', custom=True)


def test_functions_without_parameters_or_closing_tags_are_calls() -> None:
    assert parse(QWEN_CODER, "<tool_call><function=add></function></tool_call>") == call(
        "add", "{}"
    )
    text = "<tool_call><function=add><parameter=a>1</parameter>"
    assert parse(QWEN_CODER, text + "</tool_call>x") == [*call("add", '{"a": 1}'), TextDelta("x")]
    assert parse(QWEN_CODER, text) == call("add", '{"a": 1}')
    assert parse(QWEN_CODER, text, complete=False) == [CallStarted("add"), CallDelta('{"a": 1')]


def test_a_tagged_call_cut_in_a_value_does_not_end() -> None:
    for complete in (False, True):
        assert parse(
            QWEN_CODER, "<tool_call><function=add><parameter=b>\nxy\n</p", complete=complete
        ) == [CallStarted("add"), CallDelta('{"b": "xy')]


def test_an_unknown_function_is_text_without_markup() -> None:
    assert parse(QWEN_CODER, TAGGED.replace("fs.write", "other") + " ok") == [
        TextDelta(
            '{"name": "other", "arguments": {"path": "a\\n<b> \\"</tool_call>", '
            '"lines": "[1,\\n 2]", "mode": "rw"}}ok'
        )
    ]


def test_tags_and_objects_and_fences_are_understood_by_one_parser() -> None:
    body = '{"name": "add", "arguments": {"a": 1}}'
    assert parse(QWEN_CODER, f"<tool_call>{body}</tool_call>") == call("add", '{"a": 1}')
    assert parse(QWEN_CODER, f"```json\n{body}\n```", lenient=True) == call("add", '{"a": 1}')


def test_prose_about_tags_is_text() -> None:
    for text in ("Use <tool_call> or <function=", "a <function=\n> b", "x <tool_call>y"):
        assert parse(QWEN_CODER, text) == [TextDelta(text)]


# Reasoning.


@pytest.mark.parametrize(
    ("syntax", "written", "name"),
    [
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "add"),
        (QWEN_CODER, "<function=add><parameter=a>1</parameter></function>", "add"),
        (LLAMA3_JSON, '<|python_tag|>{"name": "add", "parameters": {"a": 1}}', "add"),
        (MISTRAL, '[TOOL_CALLS]add[ARGS]{"a": 1}', "add"),
    ],
)
@pytest.mark.parametrize("think", [ANGLE_THINK, SQUARE_THINK])
def test_reasoning_stands_before_and_between_calls_and_text(
    syntax: CallSyntax, written: str, name: str, think: Any
) -> None:
    thought = f"{think.opener}\nHm {written[:8]}\n{think.closer}\n\n"
    reasoning = [ReasoningDelta(f"Hm {written[:8]}".rstrip())]
    found = call(name, '{"a": 1}')
    text = f"{thought}{written}\n{thought}{written}\n{thought}Done\n{thought}now"
    assert parse(syntax, text, think=think) == [
        *(reasoning + found) * 2,
        *[*reasoning, TextDelta("Done")],
        *[*reasoning, TextDelta("now")],
    ]


def test_reasoning_that_the_prompt_opened_goes_on() -> None:
    assert parse(HERMES, "hm</think>\nok", opening="<think>\n", think=ANGLE_THINK) == [
        ReasoningDelta("hm"),
        TextDelta("ok"),
    ]


def test_a_mark_of_reasoning_amid_a_line_is_text() -> None:
    for text in ("Use <think> tags", "a <think"):
        assert parse(HERMES, text, think=ANGLE_THINK) == [TextDelta(text)]


def test_a_mark_of_reasoning_inside_arguments_is_theirs() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": "\\n<think>"}}</tool_call>'
    assert parse(HERMES, text, think=ANGLE_THINK) == call("add", '{"a": "\\n<think>"}')


# Any split.

FRAGMENTS = [
    *(marker for syntax in SYNTAXES.values() for marker in syntax.markers),
    *("<function=", "<function=add>", "<function=exec>", "<function=other>", "</function>"),
    *("<parameter=a>", "<parameter=path>\n", "<parameter=input>", "\n</parameter>", "</t"),
    *("<think>", "</think>", "[THINK]", "[/THINK]", "```json\n", "```"),
    *('{"name": "add", "parameters": ', '{"name": "other"', '{"a": 1}', '"t\\u00e9"', '"'),
    *("{", "}", "[", "]", ",", ";", "null", " ", "\n", "add", "exec", "😀", "<", "/"),
    TAGGED,
    '[TOOL_CALLS]add[ARGS]{"a": 1}',
    '{"name": "add", "parameters": {"a": 1}}',
]


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(list(SYNTAXES.values())),
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
    st.lists(st.integers(0, 400), max_size=8),
    st.booleans(),
    st.sampled_from([None, ANGLE_THINK, SQUARE_THINK]),
    st.booleans(),
    st.booleans(),
)
def test_any_split_gives_the_same_pieces(
    syntax: CallSyntax,
    text: str,
    cuts: Sequence[int],
    lenient: bool,
    think: Any,
    parallel: bool,
    complete: bool,
) -> None:
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    options = {"lenient": lenient, "think": think, "parallel": parallel, "complete": complete}
    once = parse(syntax, text, **options)
    split = [text[start:stop] for start, stop in itertools.pairwise(edges)]
    assert parse(syntax, *split, **options) == once
    assert parse(syntax, *text, **options) == once
    assert all(piece.text for piece in once if not isinstance(piece, CallStarted | CallEnded))
    ended = sum(isinstance(piece, CallEnded) for piece in once)
    assert ended <= sum(isinstance(piece, CallStarted) for piece in once)
    assert parallel or ended <= 1


def test_a_rejected_objects_closer_is_dropped_though_no_opener_begins_like_it() -> None:
    syntax = CallSyntax("own", "[CALL]", "{END}")
    texts = ["Well", " then", " [CALL]", '{"name": "nope"}', " so", " what{END}", " more", " {END}"]

    pieces = parse(syntax, *texts)

    assert pieces == parse(syntax, "".join(texts))
    assert pieces == [TextDelta('Well then {"name": "nope"} so what more {END}')]
