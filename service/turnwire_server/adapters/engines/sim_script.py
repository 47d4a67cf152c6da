"""What a simulated turn is told to do: the metadata script, and the lines of a trace.

Both are JSON objects with the members of `SimScript`; `docs/sim.md` describes them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final

__all__ = ["NAMED_SCRIPTS", "ScriptFailure", "SimCall", "SimScript", "read_script", "read_trace"]

_MAX_TOKENS: Final = 1_000_000
_MAX_SECONDS: Final = 3_600.0
_MAX_CALLS: Final = 128
_MAX_KNOWN: Final = 64
_MAX_KNOWN_CHARS: Final = 256


class ScriptFailure(Exception):
    """A script or a trace cannot be read. `str()` says why and holds no content."""


@dataclass(frozen=True, slots=True)
class SimCall:
    """One tool call to make."""

    name: str
    """Qualified name; it need not be a tool that was offered."""
    arguments: str = "{}"
    """JSON text of a function's arguments."""
    input: str | None = None
    """Free-form input; set for a custom tool."""


@dataclass(frozen=True, slots=True)
class SimScript:
    """What to do; None and empty values leave it to the agent's defaults."""

    text: str | None = None
    """The message, before any call."""
    after: str = ""
    """More text, after the calls."""
    tokens: int | None = None
    """Exact length of the message: it is cut, or made longer with words."""
    reasoning: str = ""
    """Reasoning, before everything else."""
    calls: tuple[SimCall, ...] = ()
    """Calls to make while fewer than `tool_rounds` tool outputs are there."""
    tool_rounds: int | None = None
    """Replaces the setting of that name; 1 when there are `calls`."""
    call_tokens: int | None = None
    """Replaces the setting of that name."""
    tokens_per_second: float | None = None
    """Replaces the setting of that name."""
    split_characters: bool = False
    """One token per UTF-8 byte of the message: characters beyond ASCII are split."""
    silent_s: float = 0.0
    """Seconds without a token …"""
    silent_after: int = 0
    """… after this many of them."""
    fail_after: int | None = None
    """Break, as an engine would, after this many tokens."""
    repeat_after: int | None = None
    """End, as an engine does whose model goes in circles, after this many tokens."""
    steps: tuple[tuple[float, str], ...] = ()
    """The whole output with its times: seconds to wait, then text (markup included)."""


NAMED_SCRIPTS: Final = MappingProxyType(
    {
        "emoji": SimScript(text="Simulated: 😀 👨‍👩‍👧‍👦 🇺🇳 👍🏽", split_characters=True),
        "cjk": SimScript(text="Simulated: 世界 삼겹살 こんにちは", split_characters=True),
        "think": SimScript(reasoning="Simulated reasoning.", text="Simulated answer."),
        "long": SimScript(tokens=2_000),
        "fail": SimScript(fail_after=8),
        "silent": SimScript(silent_s=30.0, silent_after=4),
    }
)
"""Scripts that can be asked for by name."""

_FIELDS = {field.name for field in fields(SimScript)}
_NUMBERS: Final = frozenset({int, float, bool})
_known: dict[str, SimScript] = {}
"""Scripts of nothing but numbers: whoever measures the server sends one with every turn."""


def read_script(text: str) -> SimScript:
    """Read a script: a name, a JSON object, or else the message itself.

    Raises:
        ScriptFailure: it is a JSON object that is no script.
    """
    known = NAMED_SCRIPTS.get(text) or _known.get(text)
    if known is not None:
        return known
    if not text.lstrip().startswith("{"):
        return SimScript(text=text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ScriptFailure("the script is not valid JSON") from None
    script = _script(value)
    if len(text) <= _MAX_KNOWN_CHARS and _NUMBERS.issuperset(map(type, value.values())):
        if len(_known) == _MAX_KNOWN:
            _known.clear()
        _known[text] = script
    return script


def read_trace(text: str) -> tuple[SimScript, ...]:
    """Read a trace: one script object per line; blank lines and lines with `#` are skipped.

    Raises:
        ScriptFailure: a line is no script; the message has its number.
    """
    scripts = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            scripts.append(_script(json.loads(line)))
        except (ValueError, RecursionError):
            raise ScriptFailure(f"line {number} of the trace is not valid JSON") from None
        except ScriptFailure as failure:
            raise ScriptFailure(f"line {number} of the trace: {failure}") from None
    if not scripts:
        raise ScriptFailure("the trace has no lines")
    return tuple(scripts)


def _script(value: object) -> SimScript:
    if not isinstance(value, dict):
        raise ScriptFailure("a script must be a JSON object")
    members: dict[str, Any] = {}
    for key, part in value.items():
        match key:
            case "text" | "after" | "reasoning":
                if not isinstance(part, str):
                    raise ScriptFailure(f"`{key}` must be a string")
                # Python's JSON accepts lone surrogates; no engine could emit them.
                members[key] = part.encode("utf-8", "replace").decode()
            case "split_characters":
                if not isinstance(part, bool):
                    raise ScriptFailure(f"`{key}` must be true or false")
                members[key] = part
            case "silent_s" | "tokens_per_second":
                members[key] = _number(key, part, _MAX_SECONDS if key == "silent_s" else 1e9)
            case "calls":
                members[key] = _calls(part)
            case "steps":
                members[key] = _steps(part)
            case _ if key in _FIELDS:
                members[key] = int(_number(key, part, _MAX_TOKENS))
            case _:
                raise ScriptFailure(f"unknown member; known are {', '.join(sorted(_FIELDS))}")
    return SimScript(**members)


def _number(key: str, value: object, most: float) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not 0 <= value <= most:  # type: ignore[operator]  # it is a number here
        raise ScriptFailure(f"`{key}` must be a number from 0 to {most:g}")
    return float(value)  # type: ignore[arg-type]


def _calls(value: object) -> tuple[SimCall, ...]:
    if not isinstance(value, list) or len(value) > _MAX_CALLS:
        raise ScriptFailure(f"`calls` must be a list of at most {_MAX_CALLS}")
    calls = []
    for part in value:
        if not isinstance(part, dict) or not isinstance(part.get("name"), str):
            raise ScriptFailure("each of `calls` must be an object with a `name`")
        if "input" in part:
            if not isinstance(part["input"], str):
                raise ScriptFailure("`input` of a call must be a string")
            calls.append(SimCall(part["name"], input=part["input"]))
        else:
            arguments = part.get("arguments", {})
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            calls.append(SimCall(part["name"], arguments=text))
    return tuple(calls)


def _steps(value: object) -> tuple[tuple[float, str], ...]:
    if not isinstance(value, list):
        raise ScriptFailure("`steps` must be a list")
    steps = []
    for part in value:
        if not isinstance(part, list) or len(part) != 2 or not isinstance(part[1], str):
            raise ScriptFailure("each of `steps` must be [seconds, text]")
        steps.append((_number("steps", part[0], _MAX_SECONDS), part[1]))
    return tuple(steps)
