from __future__ import annotations

from turnwire_server.session.tools import NO_TOOLS, ToolSet, ToolSpec


def test_a_tool_is_known_by_its_qualified_name():
    plain, inner = ToolSpec("read"), ToolSpec("read", namespace="fs")
    assert (plain.qualified_name, inner.qualified_name) == ("read", "fs.read")
    tools = ToolSet.of((plain, inner), b"x")
    assert tools.by_qualified_name == {"read": plain, "fs.read": inner}


def test_a_regex_is_that_of_all_the_input():
    regex = ToolSpec("pick", kind="custom", grammar="a|b", grammar_syntax="regex")
    lark = ToolSpec("pick", kind="custom", grammar="start: A", grammar_syntax="lark")
    assert (regex.input_pattern, lark.input_pattern) == ("^(?:a|b)$", "")
    assert ToolSpec("read").input_pattern == ""


def test_a_set_is_true_when_it_has_tools():
    assert ToolSet.of((ToolSpec("read"),), b"x")
    assert not NO_TOOLS
