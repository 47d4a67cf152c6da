"""What an engine can do with a create's settings: constraints, or a warning, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from turnwire.v1 import client_event_pb2, error_pb2, response_pb2
from turnwire_server.ports.engine import Constraint, Engine, EngineInfo
from turnwire_server.session.errors import Rejection
from turnwire_server.session.presence import number
from turnwire_server.session.tool_choice import CheckedChoice
from turnwire_server.session.tool_rules import CheckedTools
from turnwire_server.session.tools import ToolSet

__all__ = ["check_forced", "ignored_settings", "text_constraint", "unforced_grammars"]

Create = client_event_pb2.ResponseCreate

_USUAL: Final = (
    ("temperature", 1.0),
    ("top_p", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
)
"""Sampling parameters, and the value that asks for nothing."""


def text_constraint(create: Create, engine: Engine) -> Constraint | Rejection | None:
    """Return what the answer's text must match; refused when the engine cannot see to it."""
    match create.text.format.WhichOneof("format"):
        case "json_schema":
            constraint = Constraint("json_schema", create.text.format.json_schema.schema)
        case "json_object":
            constraint = Constraint("json_object", "")
        case _:
            return None
    if constraint.kind in engine.info.constraints:
        why = engine.refusal(constraint)
        return constraint if why is None else _cannot_hold(why, "text.format.schema")
    return Rejection(
        error_pb2.ERROR_REASON_UNSUPPORTED_VALUE,
        f"The model's engine cannot hold its text to {constraint.kind}.",
        param="text.format.type",
    )


def _cannot_hold(why: str, path: str) -> Rejection:
    return Rejection(
        error_pb2.ERROR_REASON_INVALID_VALUE, f"The schema cannot be enforced: {why}.", param=path
    )


def check_forced(
    tools: CheckedTools, choice: CheckedChoice, may_call: ToolSet, engine: Engine
) -> Rejection | None:
    """Refuse a turn that must call a tool whose input the engine cannot hold to its rules.

    Calls are held to JSON. Of the grammars, only a regular expression can be part of that.
    """
    if choice.mode != "required" or _forced_pattern(choice, may_call, engine):
        return None
    for tool in may_call.tools:
        if not tool.parameters or "json_schema" not in engine.info.constraints:
            continue
        why = engine.refusal(Constraint("json_schema", tool.parameters))
        if why is not None:
            return _cannot_hold(why, f"{tools.paths[tool.qualified_name]}.parameters")
    names = [tool.qualified_name for tool in may_call.tools]
    if not all(name in tools.grammars for name in names):
        return None
    return Rejection(
        error_pb2.ERROR_REASON_UNSUPPORTED_VALUE,
        "The model's engine cannot hold a forced call to a grammar.",
        param=tools.grammars[names[0]],
    )


def _forced_pattern(choice: CheckedChoice, may_call: ToolSet, engine: Engine) -> bool:
    """Return whether the one tool that must be called is held to a regular expression."""
    if choice.mode != "required" or len(may_call.tools) != 1:
        return False
    pattern = may_call.tools[0].input_pattern
    if not pattern or not engine.info.constraints.issuperset(("regex", "json_schema")):
        return False
    return engine.refusal(Constraint("regex", pattern)) is None


def unforced_grammars(
    tools: CheckedTools, choice: CheckedChoice, may_call: ToolSet, engine: Engine
) -> Iterator[response_pb2.Warning]:
    """Yield a warning for each tool that may be called without its grammar."""
    if _forced_pattern(choice, may_call, engine):
        return
    for tool in may_call.tools:
        path = tools.grammars.get(tool.qualified_name)
        if path is not None:
            yield response_pb2.Warning(
                code="grammar_not_enforced",
                message="The model was told the grammar; its engine cannot hold a call to it.",
                param=path,
            )


def ignored_settings(create: Create, engine: EngineInfo) -> Iterator[response_pb2.Warning]:
    """Yield a warning for each setting that changes nothing here."""
    if create.top_logprobs or "message.output_text.logprobs" in create.include:
        yield response_pb2.Warning(
            code="logprobs_not_available",
            message="This server gives no log probabilities.",
            param="top_logprobs" if create.top_logprobs else "include",
        )
    for name, usual in _USUAL:
        value = number(create, name)
        if value is not None and value != usual and name not in engine.sampling:
            yield response_pb2.Warning(
                code="sampling_not_available",
                message=f"The model's engine has no {name}; it was ignored.",
                param=name,
            )
