"""What a response object and an error must hold, whatever showed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from turnwire_server.conformance.checks import Json
from turnwire_server.conformance.findings import Findings

__all__ = ["check_end", "check_error", "check_members", "is_count"]

_Test = Callable[[Any], bool]


def is_count(value: object) -> bool:
    """Return whether `value` is a whole number from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _object(value: object) -> bool:
    return isinstance(value, dict)


def _list(value: object) -> bool:
    return isinstance(value, list)


def _nullable(test: _Test) -> _Test:
    return lambda value: value is None or test(value)


def _reasoning(value: object) -> bool:
    return isinstance(value, dict) and {"effort", "summary"} <= value.keys()


def _format(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("format"), dict)


def _pairs(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _tools(value: object) -> bool:
    return isinstance(value, list) and all(_is_tool(tool) for tool in value)


def _is_tool(tool: object) -> bool:
    if not isinstance(tool, dict) or not _name(tool.get("type")):
        return False
    return tool["type"] != "function" or {"name", "description", "parameters", "strict"} <= (
        tool.keys()
    )


_MEMBERS: Final[dict[str, tuple[_Test, str]]] = {
    "id": (_name, "a string"),
    "object": (lambda value: value == "response", "`response`"),
    "created_at": (is_count, "a whole number"),
    "completed_at": (_nullable(is_count), "a whole number or null"),
    "background": (_flag, "a boolean"),
    "error": (_nullable(_object), "an object or null"),
    "incomplete_details": (_nullable(_object), "an object or null"),
    "instructions": (_nullable(lambda value: _text(value) or _list(value)), "text, items or null"),
    "max_output_tokens": (_nullable(is_count), "a whole number or null"),
    "max_tool_calls": (_nullable(is_count), "a whole number or null"),
    "model": (_name, "a string"),
    "parallel_tool_calls": (_flag, "a boolean"),
    "previous_response_id": (_nullable(_text), "a string or null"),
    "prompt_cache_key": (_nullable(_text), "a string or null"),
    "reasoning": (_reasoning, "an object with `effort` and `summary`"),
    "safety_identifier": (_nullable(_text), "a string or null"),
    "service_tier": (_text, "a string"),
    "store": (_flag, "a boolean"),
    "temperature": (_number, "a number"),
    "text": (_format, "an object with `format`"),
    "tool_choice": (lambda value: _text(value) or _object(value), "a string or an object"),
    "tools": (_tools, "a list of tools, functions with description, parameters and strict"),
    "top_logprobs": (is_count, "a whole number"),
    "top_p": (_number, "a number"),
    "truncation": (_text, "a string"),
    "presence_penalty": (_number, "a number"),
    "frequency_penalty": (_number, "a number"),
    "user": (_nullable(_text), "a string or null"),
    "metadata": (_pairs, "an object of strings"),
}
"""Members with rules of their own (`status`, `output`, `usage`) are not here."""


def check_members(findings: Findings, response: Json, event: Json) -> None:
    """Check that a response has every member, of the right type."""
    for name, (test, expected) in _MEMBERS.items():
        if name not in response:
            findings.require("response.members", False, f"`{name}` is missing", event)
        else:
            right = test(response[name])
            findings.require("response.members", right, f"`{name}` is not {expected}", event)


def check_end(findings: Findings, response: Json, event: Json) -> None:
    """Check what only a response that is over has: usage, and why it is over."""
    status = response.get("status")
    _check_usage(findings, response.get("usage"), event)
    completed_at, error = response.get("completed_at"), response.get("error")
    details = response.get("incomplete_details")

    def require(holds: object, reason: str) -> None:
        findings.require("terminal.details", holds, reason, event)

    has_time = completed_at is not None
    require(has_time == (status == "completed"), "`completed_at` does not fit the status")
    require((error is not None) == (status == "failed"), "`error` does not fit the status")
    if isinstance(error, dict):
        require(_name(error.get("code")) and _text(error.get("message")), "`error` without a code")
    is_cut = status == "incomplete"
    require((details is not None) == is_cut, "`incomplete_details` does not fit the status")
    if isinstance(details, dict):
        require(_name(details.get("reason")), "`incomplete_details` without a reason")
    output = response.get("output")
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    cut = [index for index, item in enumerate(items) if item.get("status") == "incomplete"]
    findings.require(
        "terminal.whole",
        not (cut and status == "completed"),
        "a completed response has an incomplete item",
        event,
    )
    findings.require(
        "terminal.whole",
        cut in ([], [len(items) - 1]),
        "an item before the last one is incomplete",
        event,
    )


def _check_usage(findings: Findings, usage: object, event: Json) -> None:
    def require(holds: object, reason: str) -> bool:
        return findings.require("terminal.usage", holds, reason, event)

    if not require(isinstance(usage, dict), "a response that is over has no `usage`"):
        return
    assert isinstance(usage, dict)
    read, written = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    numbers = {
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "total_tokens": usage.get("total_tokens"),
        "input_tokens_details.cached_tokens": (
            read.get("cached_tokens") if isinstance(read, dict) else None
        ),
        "output_tokens_details.reasoning_tokens": (
            written.get("reasoning_tokens") if isinstance(written, dict) else None
        ),
    }
    for name, value in numbers.items():
        if not require(is_count(value), f"`usage.{name}` is not a whole number"):
            return
    took, gave, total, cached, reasoned = (int(value or 0) for value in numbers.values())
    for holds, reason in (
        (total == took + gave, "`total_tokens` is not the sum of input and output"),
        (cached <= took, "more `cached_tokens` than `input_tokens`"),
        (reasoned <= gave, "more `reasoning_tokens` than `output_tokens`"),
    ):
        findings.require("usage.sums", holds, reason, event)


def check_error(findings: Findings, rule: str, error: object, shown: object) -> None:
    """Check the `error` object of an error event or of a body.

    Args:
        findings: Where to say what is wrong.
        rule: `error.frame` or `error.body`.
        error: The value of `error`.
        shown: What it came in.
    """
    if not findings.require(rule, isinstance(error, dict), "`error` is not an object", shown):
        return
    assert isinstance(error, dict)
    for name in ("type", "code", "message"):
        findings.require(rule, _name(error.get(name)), f"`error.{name}` is not a string", shown)
    param = error.get("param")
    findings.require(rule, _nullable(_text)(param), "`error.param` is not a string or null", shown)
