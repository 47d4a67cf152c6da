from __future__ import annotations

import pytest

from turnwire.v1.tool_pb2 import (
    AllowedToolsChoice,
    HostedToolChoice,
    McpToolChoice,
    NamedToolChoice,
    ToolChoice,
)
from turnwire_server.session.errors import Rejection
from turnwire_server.session.tool_choice import CheckedChoice, check_tool_choice
from turnwire_server.session.tools import NO_TOOLS, ToolSet, ToolSpec

TOOLS = ToolSet.of(
    (
        ToolSpec("shell"),
        ToolSpec("exec", "custom"),
        ToolSpec("read", namespace="fs"),
        ToolSpec("read", namespace="web"),
        ToolSpec("write", namespace="fs"),
        ToolSpec("shell", namespace="fs"),
    ),
    b"x",
)


def function(name, namespace=None):
    return ToolChoice(function=NamedToolChoice(name=name, namespace=namespace))


def custom(name):
    return ToolChoice(custom=NamedToolChoice(name=name))


def allowed(*tools, mode="auto"):
    return ToolChoice(allowed_tools=AllowedToolsChoice(mode=mode, tools=tools))


WEB = ToolChoice(web_search=HostedToolChoice())


def refused(choice, tools=TOOLS):
    rejection = check_tool_choice(choice, tools)
    assert isinstance(rejection, Rejection)
    return rejection.code, rejection.param


@pytest.mark.parametrize("mode", ["none", "auto", "required"])
def test_a_mode_holds_for_all_tools(mode):
    assert check_tool_choice(ToolChoice(mode=mode), TOOLS) == CheckedChoice(mode, None)


def test_without_a_choice_the_model_chooses():
    assert check_tool_choice(None, TOOLS) == CheckedChoice("auto")


@pytest.mark.parametrize("mode", ["none", "auto"])
def test_without_tools_a_mode_that_needs_none_is_fine(mode):
    assert check_tool_choice(ToolChoice(mode=mode), NO_TOOLS) == CheckedChoice(mode)


def test_without_tools_none_can_be_required():
    assert refused(ToolChoice(mode="required"), NO_TOOLS) == ("invalid_value", "tool_choice")
    assert refused(function("shell"), NO_TOOLS) == ("invalid_value", "tool_choice.name")


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        (function("shell"), "shell"),
        (function("read", "web"), "web.read"),
        (function("fs.read"), "fs.read"),
        (function("write"), "fs.write"),
        (function("shell", "fs"), "fs.shell"),
        (custom("exec"), "exec"),
    ],
)
def test_a_named_tool_is_required(choice, name):
    assert check_tool_choice(choice, TOOLS) == CheckedChoice("required", (name,))


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (function("nope"), "tool_choice.name"),
        (function("exec"), "tool_choice.name"),
        (custom("shell"), "tool_choice.name"),
        (function("read", "nope"), "tool_choice.name"),
        (function("read"), "tool_choice.namespace"),
        (ToolChoice(mode="maybe"), "tool_choice"),
        (ToolChoice(mode=""), "tool_choice"),
        (allowed(function("shell"), mode="none"), "tool_choice.mode"),
        (allowed(function("shell"), function("nope")), "tool_choice.tools[1].name"),
        (allowed(ToolChoice(mode="auto")), "tool_choice.tools[0]"),
        (allowed(allowed(function("shell"))), "tool_choice.tools[0]"),
        (allowed(), "tool_choice.tools"),
        (allowed(WEB, mode="required"), "tool_choice.tools"),
    ],
)
def test_a_choice_that_names_nothing_or_too_much_is_refused(choice, param):
    assert refused(choice) == ("invalid_value", param)


@pytest.mark.parametrize(
    ("choice", "param"),
    [(ToolChoice(), "tool_choice.type"), (allowed(ToolChoice()), "tool_choice.tools[0].type")],
)
def test_a_choice_needs_a_type(choice, param):
    assert refused(choice) == ("missing_required_parameter", param)


@pytest.mark.parametrize("choice", [WEB, ToolChoice(mcp=McpToolChoice(server_label="x"))])
def test_a_tool_that_this_server_does_not_run_cannot_be_chosen(choice):
    assert refused(choice) == ("unsupported_value", "tool_choice.type")


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_named_once_in_their_order(mode):
    choice = allowed(custom("exec"), WEB, function("shell"), custom("exec"), mode=mode)
    assert check_tool_choice(choice, TOOLS) == CheckedChoice(mode, ("exec", "shell"))


def test_when_all_allowed_tools_were_dropped_nothing_is_called():
    assert check_tool_choice(allowed(WEB), TOOLS) == CheckedChoice("none")


@pytest.mark.parametrize(
    ("choice", "outline"),
    [
        (CheckedChoice("required", ("shell",)), "shell"),
        (CheckedChoice("required", ("shell", "exec")), "required"),
        (CheckedChoice("required"), "required"),
        (CheckedChoice("auto", ("shell",)), "auto"),
        (CheckedChoice("none"), "none"),
    ],
)
def test_an_engine_that_acts_a_part_hears_the_one_tool_or_the_mode(choice, outline):
    assert choice.outline == outline


def test_a_refusal_quotes_no_more_than_a_piece_of_the_name():
    assert len(check_tool_choice(function("x" * 100_000), TOOLS).message) < 512
