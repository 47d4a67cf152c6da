"""The screen port: verdicts on new input, beside prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from turnwire.v1 import item_pb2

__all__ = ["Screen", "ScreenEnding", "ScreenFailure", "Verdict"]

ScreenEnding = Literal["fail", "refuse"]
"""How a turn ends that may not go on: `response.failed`, or a completed refusal message."""


class ScreenFailure(Exception):
    """The screen cannot tell. `str()` is for the log: it never holds what was screened."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a safety check."""

    allowed: bool
    state: bytes = b""
    """What the screen wants to see again with the conversation's next items."""
    refusal: str = ""
    """What the client is told when not allowed; empty for the server's own words."""
    ending: ScreenEnding = "fail"
    """How the turn ends when not allowed."""
    categories: tuple[str, ...] = ()
    """Names of what was found, for the log: they may be set on a verdict that allows. Never
    content."""


class Screen(Protocol):
    """Reads only new input; carries its state along the conversation."""

    async def check(
        self, state: bytes, new_items: Sequence[item_pb2.Item], *, instructions: str = ""
    ) -> Verdict:
        """Judge new input. Bounded in time by the screen itself; cancelling is safe.

        Args:
            state: The state of the verdict on the parent, b"" at the start of a conversation.
                The conversation outlives a change of the screen's configuration, so a state may
                be one of an older configuration.
            new_items: The items that came since, oldest first. They must not be changed.
            instructions: The turn's own instructions. They are not part of the conversation.

        Raises:
            ScreenFailure: It cannot tell. The turn fails, as after any other exception: nothing
                leaves without a verdict.
        """
        ...
