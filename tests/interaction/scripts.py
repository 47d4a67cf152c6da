"""Creates that more than one test of this folder sends."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["CUSTOM", "SHELL", "WEATHER", "call_output", "function", "said", "script", "user"]


def function(name: str, **more: Any) -> dict[str, Any]:
    """Return a function tool with one string argument, `cmd`."""
    schema = {
        "type": "object",
        "properties": {"cmd": {"type": "string"}},
        "required": ["cmd"],
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "parameters": schema, **more}


SHELL = function("exec_command", description="Runs a command.", strict=True)
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": None,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": None,
}
CUSTOM = {"type": "custom", "name": "apply", "description": "Applies a patch."}


def script(**members: Any) -> dict[str, str]:
    """Return the metadata that tells the simulated engine what to do."""
    return {"turnwire.sim": json.dumps(members, ensure_ascii=False)}


def said(text: str) -> dict[str, str]:
    """Return the metadata that makes the simulated engine say `text`."""
    return script(text=text)


def user(text: str) -> dict[str, str]:
    """Return a user message."""
    return {"role": "user", "content": text}


def call_output(call: Any, output: str = "hello") -> dict[str, Any]:
    """Return the output that answers a call, given as a message."""
    kind = "custom_tool_call_output" if hasattr(call, "input") else "function_call_output"
    return {"type": kind, "call_id": call.call_id, "output": output}
