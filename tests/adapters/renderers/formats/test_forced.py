from __future__ import annotations

import json

import pytest

from turnwire_server.adapters.renderers.formats.call_parser import CallParser
from turnwire_server.adapters.renderers.formats.forced import forced_call
from turnwire_server.adapters.renderers.formats.syntax import (
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    QWEN_CODER,
    CallSyntax,
)
from turnwire_server.ports.renderer import ToolForce
from turnwire_server.session.output import CallDelta, CallEnded, CallStarted
from turnwire_server.session.tools import ToolSet, ToolSpec

PARAMETERS = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "integer"}}}
TOOLS = ToolSet.of(
    (ToolSpec("add", parameters=json.dumps(PARAMETERS)), ToolSpec("exec", kind="custom")), b"x"
)


@pytest.mark.parametrize(
    ("syntax", "by_name", "written", "closing"),
    [
        (HERMES, False, '{"name": "add", "arguments": {"a": 1}}', "\n</tool_call>"),
        (QWEN_CODER, False, '{"name": "add", "arguments": {"a": 1}}', "\n</tool_call>"),
        (LLAMA3_JSON, False, '{"name": "add", "parameters": {"a": 1}}', ""),
        (MISTRAL, False, '[{"name": "add", "arguments": {"a": 1}}]', ""),
        (MISTRAL, True, '{"a": 1}', ""),
    ],
)
def test_what_a_forced_call_lets_the_model_write_is_parsed_as_that_call(
    syntax: CallSyntax, by_name: bool, written: str, closing: str
) -> None:
    forced = forced_call(syntax, TOOLS, ToolForce(("add",)), by_name=by_name)
    parser = CallParser(syntax, TOOLS, opening=forced.opening, forced=True, parallel=False)
    pieces = [*parser.feed(written), *parser.finish(complete=True)]
    assert pieces == [CallStarted("add"), CallDelta('{"a": 1}'), CallEnded()]
    assert forced.closing == closing
    assert forced.constraint.kind == "json_schema"


def test_references_of_a_forced_calls_schema_lead_to_its_definitions() -> None:
    for syntax, by_name in (
        (HERMES, False),
        (LLAMA3_JSON, False),
        (MISTRAL, False),
        (MISTRAL, True),
    ):
        for names in (("add",), ("exec", "add")):
            forced = forced_call(syntax, TOOLS, ToolForce(names), by_name=by_name)
            schema = json.loads(forced.constraint.text)
            (reference,) = [
                part.split('"')[0] for part in forced.constraint.text.split('"$ref": "')[1:]
            ]
            target = schema
            for key in reference.split("/")[1:]:
                target = target[int(key)] if isinstance(target, list) else target[key]
            assert target == {"type": "integer"}


def test_a_list_of_forced_calls_has_one_call_unless_more_may_follow() -> None:
    one = json.loads(forced_call(MISTRAL, TOOLS, ToolForce(("exec", "add"))).constraint.text)
    assert (one["minItems"], one["maxItems"]) == (1, 1)
    force = ToolForce(("add",), parallel=True)
    assert "maxItems" not in json.loads(forced_call(MISTRAL, TOOLS, force).constraint.text)


def test_a_custom_tool_is_forced_as_an_object_with_its_input() -> None:
    force = ToolForce(("exec",))
    schema = json.loads(forced_call(MISTRAL, TOOLS, force, by_name=True).constraint.text)
    assert schema["items"]["properties"]["input"] == {"type": "string"}
