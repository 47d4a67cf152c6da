"""Rules for `tool_choice`: which tools a turn may or must call."""

from __future__ import annotations

from dataclasses import dataclass

from turnwire.v1 import error_pb2, tool_pb2
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.tools import ToolSet

__all__ = ["CheckedChoice", "check_tool_choice"]

_MODES = frozenset({"none", "auto", "required"})


@dataclass(frozen=True, slots=True)
class CheckedChoice:
    """What `tool_choice` means for the turn."""

    mode: str = "auto"
    """`none`, `auto` or `required`."""
    allowed: tuple[str, ...] | None = None
    """Qualified names that the turn is held to; None means all tools."""

    @property
    def outline(self) -> str:
        """The choice as an engine that acts a part wants it."""
        if self.mode == "required" and self.allowed is not None and len(self.allowed) == 1:
            return self.allowed[0]
        return self.mode


_AUTO = CheckedChoice()


def check_tool_choice(
    choice: tool_pb2.ToolChoice | None, tools: ToolSet
) -> CheckedChoice | Rejection:
    """Check a create's `tool_choice` (None when absent) against its tools."""
    if choice is None:
        return _AUTO
    match choice.WhichOneof("choice"):
        case "mode":
            return _mode(choice.mode, tools)
        case "function":
            return _named(choice.function, "function", tools, "tool_choice")
        case "custom":
            return _named(choice.custom, "custom", tools, "tool_choice")
        case "allowed_tools":
            return _allowed(choice.allowed_tools, tools)
        case None:
            return _untyped("tool_choice")
        case hosted:
            return Rejection(
                error_pb2.ERROR_REASON_UNSUPPORTED_VALUE,
                f"This server runs no tool of type '{hosted}'.",
                param="tool_choice.type",
            )


def _mode(mode: str, tools: ToolSet) -> CheckedChoice | Rejection:
    if mode not in _MODES:
        return _refused(
            "tool_choice", f"{quoted(mode)} is not one of 'none', 'auto' and 'required'."
        )
    if mode == "required" and not tools:
        return _refused("tool_choice", "tool_choice 'required' needs tools that can be called.")
    return CheckedChoice(mode)


def _find(named: tool_pb2.NamedToolChoice, kind: str, tools: ToolSet) -> list[str]:
    """Return the qualified names of the tools that may be meant."""
    name = f"{named.namespace}.{named.name}" if named.namespace else named.name
    exact = tools.by_qualified_name.get(name)
    if exact is not None and exact.kind == kind:
        return [name]
    # An inner tool may be named without its namespace.
    return [tool.qualified_name for tool in tools.tools if tool.name == name and tool.kind == kind]


def _named(
    named: tool_pb2.NamedToolChoice, kind: str, tools: ToolSet, path: str
) -> CheckedChoice | Rejection:
    names = _find(named, kind, tools)
    if len(names) == 1:
        return CheckedChoice("required", tuple(names))
    if names:
        return _refused(
            f"{path}.namespace",
            f"Tools of several namespaces are named {quoted(named.name)}: say which.",
        )
    return _refused(f"{path}.name", f"No {kind} tool is named {quoted(named.name)}.")


def _allowed(choice: tool_pb2.AllowedToolsChoice, tools: ToolSet) -> CheckedChoice | Rejection:
    if choice.mode not in ("auto", "required"):
        return _refused("tool_choice.mode", "mode must be 'auto' or 'required'.")
    names: list[str] = []
    for index, entry in enumerate(choice.tools):
        path = f"tool_choice.tools[{index}]"
        arm = entry.WhichOneof("choice")
        if arm is None:
            return _untyped(path)
        if arm in ("mode", "allowed_tools"):
            return _refused(path, "A mode or a list of tools cannot be here.")
        if arm not in ("function", "custom"):
            continue  # a tool that this server does not run, dropped from `tools` with a warning
        found = _named(getattr(entry, arm), arm, tools, path)
        if isinstance(found, Rejection):
            return found
        names.extend(found.allowed or ())
    if names:
        return CheckedChoice(choice.mode, tuple(dict.fromkeys(names)))
    if choice.tools and choice.mode == "auto":
        return CheckedChoice("none")  # all that it may call is dropped
    return _refused("tool_choice.tools", "tools must name at least one tool that can be called.")


def _untyped(path: str) -> Rejection:
    return Rejection(
        error_pb2.ERROR_REASON_MISSING_REQUIRED_PARAMETER,
        "The choice of a tool needs a type.",
        param=f"{path}.type",
    )


def _refused(path: str, message: str) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_INVALID_VALUE, message, param=path)
