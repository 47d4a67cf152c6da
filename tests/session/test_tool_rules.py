from __future__ import annotations

import pytest

from turnwire.v1.response_pb2 import Response
from turnwire.v1.tool_pb2 import (
    CustomTool,
    CustomToolFormat,
    CustomToolGrammarFormat,
    FunctionTool,
    McpTool,
    NamespaceTool,
    Tool,
    WebSearchTool,
)
from turnwire_server.session.errors import Rejection
from turnwire_server.session.tool_rules import ToolCatalogue, is_json_object
from turnwire_server.session.tools import NO_TOOLS, ToolSpec


def function(name="shell", **fields):
    return Tool(function=FunctionTool(name=name, **fields))


def custom(name="exec", **fields):
    return Tool(custom=CustomTool(name=name, **fields))


def grammar(syntax="lark", definition="start: /.*/"):
    return CustomToolFormat(grammar=CustomToolGrammarFormat(syntax=syntax, definition=definition))


def namespace(name="mcp__fs", *tools):
    return Tool(namespace=NamespaceTool(name=name, tools=tools))


WEB = Tool(web_search=WebSearchTool())


def check(*tools, added=()):
    checked = ToolCatalogue().check(tools, [tool.SerializeToString() for tool in added])
    assert not isinstance(checked, Rejection), checked
    return checked


def refused(*tools):
    rejection = ToolCatalogue().check(tools)
    assert isinstance(rejection, Rejection)
    return rejection.code, rejection.param


def echoed(checked):
    return Response.FromString(checked.echo).tools


def names(checked):
    return [tool.qualified_name for tool in checked.tools.tools]


def test_functions_and_custom_tools_become_specs_in_order():
    checked = check(
        function("shell", description="runs", parameters='{"type":"object"}'),
        custom("exec", format=grammar()),
        custom("note"),
    )
    assert checked.tools.tools == (
        ToolSpec("shell", "function", None, "runs", '{"type":"object"}'),
        ToolSpec("exec", "custom", None, grammar="start: /.*/", grammar_syntax="lark"),
        ToolSpec("note", "custom"),
    )
    assert not checked.warnings


def test_the_tools_of_a_namespace_keep_name_and_namespace_apart():
    checked = check(function("read"), namespace("mcp__fs", function("read"), custom("edit")))
    assert names(checked) == ["read", "mcp__fs.read", "mcp__fs.edit"]
    spec = checked.tools.by_qualified_name["mcp__fs.read"]
    assert (spec.name, spec.namespace) == ("read", "mcp__fs")


def test_a_namespace_of_34_tools_is_fine():
    inner = [function(f"tool{index}") for index in range(34)]
    assert len(check(namespace("big", *inner)).tools.tools) == 34


def test_a_tool_that_this_server_does_not_run_is_dropped_with_a_warning():
    checked = check(WEB, function("shell"), Tool(mcp=McpTool(server_label="x")))
    assert names(checked) == ["shell"]
    assert [(warning.code, warning.param) for warning in checked.warnings] == [
        ("tool_not_supported", "tools[0]"),
        ("tool_not_supported", "tools[2]"),
    ]


def test_tools_are_echoed_whole_and_unknown_members_survive():
    tools = [
        function("a", extra_json='{"x_new":1}', strict=True),
        namespace("n", function("b", extra_json='{"deep":[1]}')),
        WEB,
    ]
    assert list(echoed(check(*tools))) == tools


def test_credentials_are_not_echoed_and_the_create_keeps_them():
    tool = Tool(mcp=McpTool(server_label="x", authorization="secret", headers='{"k":"secret"}'))
    checked = check(tool)
    (shown,) = echoed(checked)
    assert shown.mcp.server_label == "x"
    assert b"secret" not in checked.echo
    assert tool.mcp.authorization == "secret"


@pytest.mark.parametrize(
    ("tool", "code", "param"),
    [
        (Tool(), "missing_required_parameter", "tools[1].type"),
        (function(""), "missing_required_parameter", "tools[1].name"),
        (function("a b"), "invalid_value", "tools[1].name"),
        (function("a.b"), "invalid_value", "tools[1].name"),
        (function("x" * 129), "invalid_value", "tools[1].name"),
        (custom("é"), "invalid_value", "tools[1].name"),
        (function("first"), "invalid_value", "tools[1].name"),
        (custom("first"), "invalid_value", "tools[1].name"),
        (function("f", parameters="[]"), "invalid_value", "tools[1].parameters"),
        (function("f", parameters="{"), "invalid_value", "tools[1].parameters"),
        (function("f", parameters='{"a":' * 50_000), "invalid_value", "tools[1].parameters"),
        (custom("c", format=grammar("ebnf")), "invalid_value", "tools[1].format.syntax"),
        (
            custom("c", format=grammar(definition="")),
            "missing_required_parameter",
            "tools[1].format.definition",
        ),
        (
            custom("c", format=CustomToolFormat()),
            "missing_required_parameter",
            "tools[1].format.type",
        ),
        (namespace("", function()), "missing_required_parameter", "tools[1].name"),
        (namespace("n/m", function()), "invalid_value", "tools[1].name"),
        (
            namespace("n", function(), function("")),
            "missing_required_parameter",
            "tools[1].tools[1].name",
        ),
        (namespace("n", function("f"), function("f")), "invalid_value", "tools[1].tools[1].name"),
        (namespace("n", WEB), "invalid_value", "tools[1].tools[0].type"),
        (namespace("n", namespace("m")), "invalid_value", "tools[1].tools[0].type"),
        (namespace("n", Tool()), "missing_required_parameter", "tools[1].tools[0].type"),
    ],
)
def test_a_bad_tool_is_refused_with_its_path(tool, code, param):
    assert refused(function("first"), tool) == (code, param)


def test_free_text_is_a_format_too():
    assert names(check(custom("c", format=CustomToolFormat(text={})))) == ["c"]


def test_a_refusal_quotes_no_more_than_a_piece_of_the_name():
    rejection = ToolCatalogue().check([function("x y" * 100_000)])
    assert len(rejection.message) < 512


def test_the_fingerprint_changes_with_tools_and_order_and_with_nothing_else():
    a, b = function("a"), function("b")
    fingerprint = check(a, b).tools.fingerprint
    assert check(a, b).tools.fingerprint == fingerprint
    others = [check(b, a), check(a), check(a, added=[b]), check(a, function("b", description="x"))]
    fingerprints = {fingerprint, *(other.tools.fingerprint for other in others)}
    assert len(fingerprints) == 5


def test_without_callable_tools_the_set_is_empty():
    assert check().tools == NO_TOOLS
    assert not check(WEB).tools
    assert check(WEB).tools == NO_TOOLS


def test_tools_added_by_items_come_behind_and_replace_their_older_namesakes():
    checked = check(
        function("a"),
        added=[function("b", description="old"), function("b", description="new"), custom("a")],
    )
    assert [(tool.name, tool.kind, tool.description) for tool in checked.tools.tools] == [
        ("a", "custom", ""),
        ("b", "function", "new"),
    ]
    assert [tool.function.name for tool in echoed(checked)] == ["a"]


def test_what_is_dropped_of_added_tools_is_not_said_again_with_every_turn():
    checked = check(function("a"), added=[WEB, function("b")])
    assert names(checked) == ["a", "b"]
    assert not checked.warnings


def test_the_tools_of_an_item_are_checked_at_their_place():
    catalogue = ToolCatalogue()
    rejection = catalogue.check_list([function("a"), function("")], "input[2].tools")
    assert (rejection.code, rejection.param) == (
        "missing_required_parameter",
        "input[2].tools[1].name",
    )
    (warning,) = catalogue.check_list([function("a"), WEB], "input[2].tools")
    assert warning.param == "input[2].tools[1]"
    assert catalogue.check_list([function("a")], "input[2].tools") == ()


def test_known_tools_are_not_checked_again():
    catalogue = ToolCatalogue()
    first = catalogue.check([function("a")])
    assert catalogue.check([function("a")]) is first
    bad = catalogue.check([function("")])
    assert catalogue.check([function("")]) is bad


def test_the_catalogue_is_bounded_in_bytes_and_keeps_what_was_used_last():
    catalogue = ToolCatalogue(max_bytes=20_000)
    lists = [[function(f"tool{index}", description="x" * 8_000)] for index in range(3)]
    first = catalogue.check(lists[0])
    second = catalogue.check(lists[1])
    assert catalogue.check(lists[0]) is first
    catalogue.check(lists[2])
    assert catalogue.check(lists[0]) is first
    assert catalogue.check(lists[1]) is not second


def test_lists_without_bytes_are_counted_too():
    catalogue = ToolCatalogue(max_bytes=10_000)
    first = catalogue.check([Tool()])
    for count in range(2, 20):
        catalogue.check([Tool()] * count)
    assert catalogue.check([Tool()]) is not first


def test_many_tools_are_known_though_nobody_takes_their_digest_again(monkeypatch):
    catalogue = ToolCatalogue()
    many = [function(f"tool{index}") for index in range(20)]
    first = catalogue.check(many)
    with monkeypatch.context() as patch:
        patch.setattr("hashlib.blake2b", lambda **_: pytest.fail("taken"))
        assert catalogue.check([function(f"tool{index}") for index in range(20)]) is first
    assert catalogue.check(many, [WEB.SerializeToString()]) is not first


@pytest.mark.parametrize("is_added", [False, True])
def test_many_tools_with_credentials_are_known_by_their_digest_alone(is_added):
    catalogue = ToolCatalogue()
    many = [function(f"tool{index}") for index in range(20)]
    mcp = Tool(mcp=McpTool(server_label="files", authorization="SECRET"))
    added = [mcp.SerializeToString()] if is_added else []
    own = many if is_added else [*many, mcp]
    assert catalogue.check(own, added) is catalogue.check(own, added)
    assert "SECRET" not in repr((catalogue._newest, catalogue._known))


def test_one_changed_tool_among_many_makes_other_tools():
    catalogue = ToolCatalogue()
    many = [function(f"tool{index}") for index in range(20)]
    first = catalogue.check(many)
    many[7] = function("other")  # first, last and their number are as they were
    second = catalogue.check(many)
    assert "other" in names(second) and "other" not in names(first)
    many[7] = function("tool7")
    assert catalogue.check(many) is first


def test_what_was_kept_to_know_many_tools_is_forgotten_with_them():
    catalogue = ToolCatalogue(max_bytes=20_000)
    for index in range(5):
        many = [function(f"tool{index}_{each}", description="x" * 500) for each in range(20)]
        catalogue.check(many)
    assert len(catalogue._newest) == 1
    assert catalogue.check(many) is catalogue.check(many)


def test_a_list_beyond_the_bound_pushes_nothing_out():
    catalogue = ToolCatalogue(max_bytes=10_000)
    small = catalogue.check([function("a")])
    big = [function("b", description="x" * 20_000)]
    assert catalogue.check(big) == catalogue.check(big)
    assert catalogue.check([function("a")]) is small


@pytest.mark.parametrize("text", ["{}", ' {"a": [1, null]} '])
def test_this_is_the_json_of_an_object(text):
    assert is_json_object(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        "{",
        "{}x",
        '{"a":NaN}',
        '{"a":-Infinity}',
        pytest.param("[" * 100_000, id="nested without end"),
        pytest.param('{"a":' + "1" * 5_000 + "}", id="a number without end"),
    ],
)
def test_this_is_not_the_json_of_an_object(text):
    assert not is_json_object(text)


def test_tools_with_a_grammar_are_found_by_name_with_the_path_of_their_format():
    grammar = CustomToolFormat(grammar=CustomToolGrammarFormat(syntax="regex", definition="a+"))
    with_grammar = Tool(custom=CustomTool(name="g", format=grammar))
    inner = NamespaceTool(name="ns", tools=[function("a"), with_grammar])
    tools = [function("f"), with_grammar, Tool(namespace=inner)]
    checked = ToolCatalogue().check(tools)
    assert checked.grammars == {"g": "tools[1].format", "ns.g": "tools[2].tools[1].format"}
