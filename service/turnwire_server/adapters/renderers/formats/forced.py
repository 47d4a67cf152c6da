"""How a call that the model must make begins, goes on and ends, per syntax."""

from __future__ import annotations

import json
from dataclasses import dataclass

from turnwire_server.adapters.renderers.call_members import arguments_schema, forced_call_schema
from turnwire_server.adapters.renderers.formats.syntax import CallSyntax
from turnwire_server.ports.engine import Constraint
from turnwire_server.ports.renderer import ToolForce
from turnwire_server.session.tools import ToolSet

__all__ = ["ForcedCall", "forced_call"]


@dataclass(frozen=True, slots=True)
class ForcedCall:
    """A call that begins in the prompt."""

    opening: str
    """Put into the prompt, and read by the parser as part of the output."""
    constraint: Constraint
    """What the model must write behind it."""
    closing: str = ""
    """What history has behind what the model wrote, before the end of the turn."""


def forced_call(
    syntax: CallSyntax, tools: ToolSet, force: ToolForce, *, by_name: bool = False
) -> ForcedCall:
    """Return how to force a call of a tool that `force` allows.

    A syntax with tags is forced as an object, which it understands too and a schema can
    describe.

    Args:
        syntax: How the model writes calls.
        tools: What there is.
        force: What must be called.
        by_name: Whether the model's template writes the tool's name before its arguments
            (newer Mistral); done so when only one function is allowed.
    """
    if syntax.arguments_marker:
        tool = tools.by_qualified_name[force.tool_names[0]]
        if by_name and len(force.tool_names) == 1 and tool.kind == "function":
            schema = json.dumps(arguments_schema(tool), ensure_ascii=False)
            opening = f"{syntax.opener}{tool.qualified_name}{syntax.arguments_marker}"
            return ForcedCall(opening, Constraint("json_schema", schema))
        schema = forced_call_schema(tools, force, as_list=True)
        return ForcedCall(syntax.opener, Constraint("json_schema", schema))
    if "parameters" in syntax.arguments_keys:
        # Bare, as the model does it; the parser is told that a call is forced.
        schema = forced_call_schema(tools, force, key="parameters")
        return ForcedCall("", Constraint("json_schema", schema))
    schema = forced_call_schema(tools, force)
    closing = f"\n{syntax.closer}" if syntax.closer else ""
    return ForcedCall(f"{syntax.opener}\n", Constraint("json_schema", schema), closing)
