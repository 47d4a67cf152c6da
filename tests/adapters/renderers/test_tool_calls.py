from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire_server.adapters.renderers.call_members import find_tool, forced_call_schema
from turnwire_server.adapters.renderers.tool_calls import ToolCallParser
from turnwire_server.ports.renderer import ToolForce
from turnwire_server.session.output import (
    CallDelta,
    CallEnded,
    CallStarted,
    OutputPiece,
    ReasoningDelta,
    TextDelta,
)
from turnwire_server.session.tools import NO_TOOLS, ToolSet, ToolSpec

TOOLS = ToolSet.of(
    (
        ToolSpec("add"),
        ToolSpec("read", namespace="mcp__fs"),
        ToolSpec("exec", kind="custom", namespace="functions"),
    ),
    b"tools",
)
WEATHER = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, "}"]}}\n</tool_call>'
ADDED: list[OutputPiece] = [
    CallStarted("add"),
    CallDelta('{"a": 1, "b": [2, "}"]}'),
    CallEnded(),
]


def merge(pieces: Sequence[OutputPiece]) -> list[OutputPiece]:
    out: list[OutputPiece] = []
    for piece in pieces:
        last = out[-1] if out else None
        if (
            isinstance(piece, TextDelta | ReasoningDelta | CallDelta)
            and isinstance(last, TextDelta | ReasoningDelta | CallDelta)
            and type(last) is type(piece)
        ):
            out[-1] = type(piece)(last.text + piece.text)
        else:
            out.append(piece)
    return out


def parse(
    *texts: str, complete: bool = True, tools: ToolSet = TOOLS, **options: Any
) -> list[OutputPiece]:
    parser = ToolCallParser(tools, **options)
    pieces = [piece for text in texts for piece in parser.feed(text)]
    return merge([*pieces, *parser.finish(complete=complete)])


def test_text_without_markup_comes_out_verbatim() -> None:
    assert parse(" Hello\n", " <b>world</b> \n") == [TextDelta(" Hello\n <b>world</b> \n")]


def test_text_is_not_held_back() -> None:
    parser = ToolCallParser(TOOLS)
    assert parser.feed("Hello wor") == [TextDelta("Hello wor")]
    assert parser.feed("ld <") == [TextDelta("ld")]
    assert parser.feed("tool") == []
    assert parser.feed("s>") == [TextDelta(" <tools>")]


def test_a_call_streams_its_arguments_verbatim() -> None:
    parser = ToolCallParser(TOOLS)
    assert parser.feed('<tool_call>{"name": "add", ') == []
    assert parser.feed('"arguments": {"a"') == [CallStarted("add"), CallDelta('{"a"')]
    assert parser.feed(" :  1}") == [CallDelta(" :  1}")]
    assert parser.feed("}") == [CallEnded()]
    assert parser.feed("</tool_call>\n") == []
    assert parser.finish(complete=True) == []


def test_text_around_calls_loses_only_the_blanks_at_the_calls() -> None:
    assert parse(f"Let me  add.\n\n{WEATHER}\n\n {WEATHER}\nDone. ") == [
        TextDelta("Let me  add."),
        *ADDED,
        *ADDED,
        TextDelta("Done. "),
    ]


def test_markers_inside_json_strings_are_content() -> None:
    arguments = '{"text": "</tool_call><tool_call>{\\"name\\": \\"add\\"}"}'
    assert parse(f'<tool_call>{{"name":"add","arguments":{arguments}}}</tool_call>') == [
        CallStarted("add"),
        CallDelta(arguments),
        CallEnded(),
    ]


def test_a_namespaced_tool_is_called_by_its_qualified_name() -> None:
    assert parse('<tool_call>{"name":"mcp__fs.read","arguments":{}}</tool_call>') == [
        CallStarted("read", "mcp__fs"),
        CallDelta("{}"),
        CallEnded(),
    ]


@pytest.mark.parametrize(
    "member",
    [
        '"input": "say \\"hi\\"\\n\\ud83d\\ude00"',
        '"arguments": {"input": "say \\"hi\\"\\n\\ud83d\\ude00"}',
        '"arguments": "say \\"hi\\"\\n\\ud83d\\ude00"',
    ],
)
def test_free_form_input_is_unescaped(member: str) -> None:
    assert parse(f'<tool_call>{{"name": "functions.exec", {member}}}</tool_call>') == [
        CallStarted("exec", "functions", custom=True),
        CallDelta('say "hi"\n😀'),
        CallEnded(),
    ]


def test_arguments_given_as_a_string_are_decoded() -> None:
    assert parse('<tool_call>{"name":"add","arguments":"{\\"a\\": 1}"}</tool_call>') == [
        CallStarted("add"),
        CallDelta('{"a": 1}'),
        CallEnded(),
    ]


@pytest.mark.parametrize("members", ['"name":"add"', '"name":"add","arguments":null'])
def test_a_call_without_arguments_gets_an_empty_object(members: str) -> None:
    assert parse(f"<tool_call>{{{members}}}</tool_call>") == [
        CallStarted("add"),
        CallDelta("{}"),
        CallEnded(),
    ]


def test_arguments_may_come_before_the_name() -> None:
    assert parse('<tool_call>{"arguments":{"a":1},"name":"add"}</tool_call>') == [
        CallStarted("add"),
        CallDelta('{"a":1}'),
        CallEnded(),
    ]


def test_a_list_of_calls_in_one_block_is_several_calls() -> None:
    text = '<tool_call>[{"name":"add","arguments":{}}, {"name":"add","arguments":{}}]</tool_call>'
    call = [CallStarted("add"), CallDelta("{}"), CallEnded()]
    assert parse(f"{text} ok") == [*call, *call, TextDelta("ok")]


@pytest.mark.parametrize(
    "text",
    [
        "Use <tool_call> tags.",
        "a <tool_cal",
        "a \n<tool_call>\n",
        "a </tool_call> b",
    ],
)
def test_prose_about_markup_is_text_as_it_stands(text: str) -> None:
    assert parse(text) == [TextDelta(text)]


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "other", "arguments": {"a": 1}}',
        '{"city": "Oslo"}',
        '{"name" "add"}',
        '{"name": {"add": 1}}',
    ],
)
def test_an_object_that_calls_no_known_tool_is_text_without_its_markers(body: str) -> None:
    assert parse(f"so <tool_call>\n{body}\n</tool_call> more") == [TextDelta(f"so {body} more")]
    assert parse(f"<tool_call>{body}</tool_call>{WEATHER}") == [TextDelta(body), *ADDED]


def test_without_tools_everything_is_text() -> None:
    assert parse(WEATHER, tools=NO_TOOLS) == [TextDelta(WEATHER)]


def test_a_call_cut_in_its_arguments_does_not_end() -> None:
    for complete in (False, True):
        assert parse('<tool_call>{"name":"add","arguments":{"a":', complete=complete) == [
            CallStarted("add"),
            CallDelta('{"a":'),
        ]


def test_a_call_cut_before_its_arguments_says_nothing() -> None:
    assert parse('Hi <tool_call>\n{"name": "a', complete=False) == [TextDelta("Hi")]


def test_a_call_that_lacks_its_last_brace_ends_when_the_model_ended_its_turn() -> None:
    text = '<tool_call>{"name":"add","arguments":{"a":1}'
    assert parse(text) == [CallStarted("add"), CallDelta('{"a":1}'), CallEnded()]
    assert parse(text, complete=False) == [CallStarted("add"), CallDelta('{"a":1}')]
    assert parse(text + "</tool_call>\nok") == [
        CallStarted("add"),
        CallDelta('{"a":1}'),
        CallEnded(),
        TextDelta("ok"),
    ]


def test_a_brace_too_many_is_dropped() -> None:
    assert parse(WEATHER.replace("}}\n", "}}}\n") + "ok") == [*ADDED, TextDelta("ok")]


def test_broken_arguments_do_not_end_the_call_and_are_no_text() -> None:
    text = '<tool_call>{"name":"add","arguments":{"a": 1 </tool_call> after'
    assert parse(text) == [CallStarted("add"), CallDelta('{"a": 1 '), TextDelta("after")]


def test_one_call_at_most_when_calls_are_not_parallel() -> None:
    parser = ToolCallParser(TOOLS, parallel=False)
    pieces = [*parser.feed(WEATHER[:-13])]
    assert merge(pieces) == ADDED
    assert parser.done
    assert parser.feed(WEATHER + "more") == []
    assert parser.finish(complete=True) == []


def test_the_opening_in_the_prompt_belongs_to_the_output() -> None:
    body = WEATHER.removeprefix("<tool_call>\n")
    assert parse(body, opening="<tool_call>\n", forced=True) == ADDED
    assert parse('{"a":1}}', opening='<tool_call>{"name":"add","arguments":') == [
        CallStarted("add"),
        CallDelta('{"a":1}'),
        CallEnded(),
    ]


def test_a_forced_call_needs_no_marker() -> None:
    assert parse('{"name":"add","arguments":{}}', forced=True) == [
        CallStarted("add"),
        CallDelta("{}"),
        CallEnded(),
    ]
    assert parse('{"na', forced=True, complete=False) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "add", "arguments": {"a": 1}}',
        '[{"name": "add", "parameters": {"a": 1}}]',
        '```json\n{"name": "add", "arguments": {"a": 1}}\n```',
        '```\n{"name": "add", "arguments": {"a": 1}}\n```\n',
        '\n {"type": "function", "name": "add", "arguments": {"a": 1}}',
    ],
)
def test_lenient_finds_calls_without_markers(text: str) -> None:
    call = [CallStarted("add"), CallDelta('{"a": 1}'), CallEnded()]
    assert parse(text, lenient=True) == call
    assert parse(text) == [TextDelta(text)]


def test_lenient_finds_the_first_fence_after_text() -> None:
    text = 'Sure:\n```json\n{"name": "add", "arguments": {}}\n```\nDone. ```json\n{"name": "add"}'
    assert parse(text, lenient=True) == [
        TextDelta("Sure:"),
        CallStarted("add"),
        CallDelta("{}"),
        CallEnded(),
        TextDelta('Done. ```json\n{"name": "add"}'),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "Oslo", "name": "add"}',
        '{"name": "add"}',
        '{"name": "Alice", "arguments": {}}',
        'Here: {"name": "add", "arguments": {}}',
        "```python\nprint({})\n```",
        '```json\n{"a": 1}\n```',
        "```js",
        "```json  ",
        "{",
        "[1, 2]",
    ],
)
def test_lenient_leaves_other_json_as_text(text: str) -> None:
    assert parse(text, lenient=True) == [TextDelta(text)]
    assert parse(text, lenient=True, complete=False) == [TextDelta(text)]


def test_reasoning_comes_apart_from_text_and_calls() -> None:
    assert parse(f"<think>\nHm <tool_call> {{\n</think>\n\n{WEATHER}", reasoning=True) == [
        ReasoningDelta("Hm <tool_call> {"),
        *ADDED,
    ]
    assert parse("<think>a</think>b <think>", reasoning=True) == [
        ReasoningDelta("a"),
        TextDelta("b <think>"),
    ]
    assert parse("<think>cut </thi", reasoning=True, complete=False) == [
        ReasoningDelta("cut </thi")
    ]


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "```json\n",
    "```",
    "`",
    "<",
    '{"name": "add", "arguments": ',
    '{"name": "functions.exec", "input": ',
    '{"arguments": {"input": "\\n"}, "name": "functions.exec"',
    '{"name": "other"',
    '{"a": 1}',
    '"te\\"xt\\u00e9\\ud83d"',
    "{",
    "}",
    "[",
    "]",
    ",",
    "null",
    " ",
    "\n",
    "word",
    "😀",
    WEATHER,
]


@settings(max_examples=400)
@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
    st.lists(st.integers(0, 400), max_size=10),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_any_split_gives_the_same_pieces(
    text: str, cuts: list[int], lenient: bool, reasoning: bool, parallel: bool, complete: bool
) -> None:
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    options: dict[str, Any] = {
        "lenient": lenient,
        "reasoning": reasoning,
        "parallel": parallel,
        "complete": complete,
    }
    pieces = [text[start:stop] for start, stop in itertools.pairwise(edges)]
    once = parse(text, **options)
    assert parse(*pieces, **options) == once
    assert parse(*text, **options) == once
    assert all(piece.text for piece in once if not isinstance(piece, CallStarted | CallEnded))


@given(st.lists(st.integers(0, 100), max_size=8))
def test_real_calls_survive_any_split(cuts: list[int]) -> None:
    text = f"Adding.\n{WEATHER}\n"
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[start:stop] for start, stop in itertools.pairwise(edges)]
    assert parse(*pieces) == [TextDelta("Adding."), *ADDED]


def test_a_plain_name_finds_a_namespaced_tool_only_when_it_is_the_only_one() -> None:
    assert find_tool(TOOLS, "read") is TOOLS.tools[1]
    twins = ToolSet.of((ToolSpec("f", namespace="a"), ToolSpec("f", namespace="b")), b"x")
    assert find_tool(twins, "f") is None
    assert find_tool(twins, "b.f") is twins.tools[1]


def test_the_schema_of_a_forced_call_keeps_references_valid() -> None:
    parameters = {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    }
    tools = ToolSet.of(
        (ToolSpec("f", parameters=json.dumps(parameters)), ToolSpec("g", kind="custom")), b"x"
    )
    one = json.loads(forced_call_schema(tools, ToolForce(("f",))))
    place = one["properties"]["arguments"]["properties"]["node"]["$ref"]
    assert place == "#/properties/arguments/$defs/node"
    both = json.loads(forced_call_schema(tools, ToolForce(("g", "f"))))
    assert both["anyOf"][0]["properties"] == {"name": {"const": "g"}, "input": {"type": "string"}}
    nested = both["anyOf"][1]["properties"]["arguments"]["$defs"]["node"]["properties"]["next"]
    assert nested == {"$ref": "#/anyOf/1/properties/arguments/$defs/node"}
