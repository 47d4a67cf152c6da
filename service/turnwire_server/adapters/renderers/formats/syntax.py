"""The syntaxes of tool calls and of reasoning, one per family of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "ANGLE_THINK",
    "HERMES",
    "LLAMA3_JSON",
    "MISTRAL",
    "QWEN_CODER",
    "SQUARE_THINK",
    "SYNTAXES",
    "CallSyntax",
    "ThinkSyntax",
    "find_syntax",
    "find_think",
]


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a model writes calls. The body of a call is a JSON object unless said otherwise."""

    name: str
    """The name that a configuration may use."""
    opener: str
    """Marker before a call or a list of calls."""
    closer: str = ""
    """Marker behind it, "" for none."""
    arguments_keys: frozenset[str] = frozenset({"arguments"})
    """Members of the object that may hold the arguments; those of `lenient` come on top."""
    separators: str = ""
    """Characters that may stand between two calls behind one opener."""
    arguments_marker: str = ""
    """Set when a call may also be a bare name, this marker, and the arguments."""
    identity_marker: str = ""
    """Set when an id may stand between the bare name and `arguments_marker`."""
    function_tags: bool = False
    """Whether a call may be `<function=…>` with `<parameter=…>` tags instead of an object."""
    is_control: bool = False
    """Whether the opener is a token that is never prose, so that it is always dropped."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that a vocabulary may hold as control tokens, whose text must be seen."""
        found = (self.opener, self.closer, self.arguments_marker, self.identity_marker)
        return tuple(marker for marker in found if marker)


@dataclass(frozen=True, slots=True)
class ThinkSyntax:
    """How a model marks its reasoning."""

    opener: str
    closer: str


HERMES: Final = CallSyntax("hermes", "<tool_call>", "</tool_call>")
"""Hermes, Qwen and others: `<tool_call>{"name": …, "arguments": …}</tool_call>`."""

QWEN_CODER: Final = CallSyntax("qwen_coder", "<tool_call>", "</tool_call>", function_tags=True)
"""Qwen3-Coder: `<tool_call><function=name><parameter=x>…`; objects are understood too."""

LLAMA3_JSON: Final = CallSyntax(
    "llama3_json",
    "<|python_tag|>",
    arguments_keys=frozenset({"arguments", "parameters"}),
    separators=";,",
    is_control=True,
)
"""Llama 3: a bare `{"name": …, "parameters": …}`, behind `<|python_tag|>` or not."""

MISTRAL: Final = CallSyntax(
    "mistral",
    "[TOOL_CALLS]",
    arguments_marker="[ARGS]",
    identity_marker="[CALL_ID]",
    is_control=True,
)
"""Mistral: `[TOOL_CALLS][{…}, {…}]`, and the newer `[TOOL_CALLS]name[ARGS]{…}`."""

SYNTAXES: Final = {syntax.name: syntax for syntax in (HERMES, QWEN_CODER, LLAMA3_JSON, MISTRAL)}

ANGLE_THINK: Final = ThinkSyntax("<think>", "</think>")
SQUARE_THINK: Final = ThinkSyntax("[THINK]", "[/THINK]")


def find_syntax(template: str) -> CallSyntax:
    """Return the call syntax that a chat template's source shows; Hermes when it shows none."""
    if "<function=" in template and "<parameter=" in template:
        return QWEN_CODER
    if MISTRAL.opener in template:
        return MISTRAL
    if HERMES.opener in template:
        return HERMES
    if LLAMA3_JSON.opener in template or "<|start_header_id|>" in template:
        return LLAMA3_JSON
    return HERMES


def find_think(template: str) -> ThinkSyntax | None:
    """Return how a chat template's source marks reasoning, None if it does not."""
    for syntax in (ANGLE_THINK, SQUARE_THINK):
        if syntax.opener in template or syntax.closer in template:
            return syntax
    return None
