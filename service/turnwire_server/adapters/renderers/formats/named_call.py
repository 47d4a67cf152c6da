"""Calls that begin with the bare name of their tool: `name`, a marker, the object of arguments."""

from __future__ import annotations

from typing import Final, NamedTuple

from turnwire_server.adapters.renderers.call_members import find_tool
from turnwire_server.adapters.renderers.formats.syntax import CallSyntax
from turnwire_server.session.tools import ToolSet, ToolSpec

__all__ = ["NamedHead", "named_end", "named_head"]

_LONGEST_NAME: Final = 256


class NamedHead(NamedTuple):
    """What stands before the arguments."""

    text: str
    """All of it; empty when no arguments come near enough."""
    name: str
    tool: ToolSpec | None
    """None when there is no such tool."""


def named_head(pending: str, syntax: CallSyntax, tools: ToolSet) -> NamedHead | None:
    """Read a bare name up to its arguments; None when more text is needed to know."""
    end = pending.find("{")
    if end < 0 and len(pending) <= _LONGEST_NAME:
        return None
    if not 0 <= end <= _LONGEST_NAME:
        return NamedHead("", "", None)
    head = pending[:end]
    name = _name_of(head, syntax)
    return NamedHead(head, name, find_tool(tools, name))


def named_end(pending: str, syntax: CallSyntax, tools: ToolSet) -> NamedHead:
    """Read a bare name from a text that ended where its arguments should begin."""
    if not syntax.arguments_marker or syntax.arguments_marker not in pending:
        return NamedHead(pending, "", None)
    name = _name_of(pending, syntax)
    return NamedHead(pending.partition(syntax.arguments_marker)[0], name, find_tool(tools, name))


def _name_of(head: str, syntax: CallSyntax) -> str:
    name = head.partition(syntax.arguments_marker)[0]
    return name.partition(syntax.identity_marker)[0].strip()
