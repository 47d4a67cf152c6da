"""The screen port: verdicts on new input, beside prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from turnwire.v1 import item_pb2

__all__ = ["Screen", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a safety check."""

    allowed: bool
    state: bytes = b""
    """What the screen wants to see again with the conversation's next items."""
    refusal: str = ""
    """What the client is told when not allowed."""


class Screen(Protocol):
    """Reads only new input; carries its state along the conversation."""

    async def check(self, state: bytes, new_items: Sequence[item_pb2.Item]) -> Verdict:
        """Judge `new_items` given the parent's `state` (b"" at the start). Cancelling is safe."""
        ...
