"""Fingerprints of prompts: under which model, instructions and tools ids are valid."""

from __future__ import annotations

import hashlib

from turnwire_server.ports.renderer import RenderRequest, RerenderReason
from turnwire_server.session.prompt import Prompt

__all__ = ["digest", "rerender_reason", "turn_fingerprint"]


def digest(data: bytes) -> str:
    """Return a digest of `data`, 32 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:32]


def turn_fingerprint(renderer: str, request: RenderRequest) -> str:
    """Return renderer, instructions and tools, each as a digest of its own."""
    tools = request.tools
    tools_key = tools.fingerprint or repr(tools.tools).encode()
    parts = (renderer, digest(request.instructions.encode()), digest(tools_key) if tools else "")
    return ".".join(parts)


def rerender_reason(previous: Prompt | None, fingerprint: str) -> RerenderReason:
    """Return what changed since `previous`, "" if nothing did or there is none."""
    if previous is None or previous.fingerprint == fingerprint:
        return ""
    before, now = previous.fingerprint.split("."), fingerprint.split(".")
    if len(before) != 3 or before[0] != now[0]:
        return "model"
    return "instructions" if before[1] != now[1] else "tools"
