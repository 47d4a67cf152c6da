"""The tools of a turn as the model may call them, under one fingerprint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["NO_TOOLS", "ToolSet", "ToolSpec"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One client tool: a function (JSON arguments) or a custom tool (free-form input)."""

    name: str
    kind: Literal["function", "custom"] = "function"
    namespace: str | None = None
    description: str = ""
    parameters: str = ""
    """JSON Schema of the arguments as JSON text; "" means an object without constraints."""
    grammar: str = ""
    """Definition of a custom tool's `format` of type grammar; "" when there is none."""
    grammar_syntax: str = ""
    """`lark` or `regex`; "" when there is no grammar."""

    @property
    def qualified_name(self) -> str:
        """The name that the model sees: `namespace.name`, or the plain name."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @property
    def input_pattern(self) -> str:
        """Regular expression of all of a custom tool's input, "" when it has none."""
        return f"^(?:{self.grammar})$" if self.grammar_syntax == "regex" else ""


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The tools of a turn, in order, and a digest of all that a prompt shows of them."""

    tools: tuple[ToolSpec, ...] = ()
    fingerprint: bytes = b""
    by_qualified_name: dict[str, ToolSpec] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, tools: tuple[ToolSpec, ...], fingerprint: bytes) -> ToolSet:
        """Build a set with its index."""
        return cls(tools, fingerprint, {tool.qualified_name: tool for tool in tools})

    def __bool__(self) -> bool:
        return bool(self.tools)


NO_TOOLS = ToolSet()
