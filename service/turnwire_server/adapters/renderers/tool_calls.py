"""The Hermes format with reasoning, as the simulated model writes it."""

from __future__ import annotations

from typing import Final

from turnwire_server.adapters.renderers.formats.call_parser import CallParser
from turnwire_server.adapters.renderers.formats.syntax import ANGLE_THINK, HERMES
from turnwire_server.session.tools import ToolSet

__all__ = ["CALL_CLOSE", "CALL_OPEN", "THINK_CLOSE", "THINK_OPEN", "ToolCallParser"]

CALL_OPEN: Final = HERMES.opener
CALL_CLOSE: Final = HERMES.closer
THINK_OPEN: Final = ANGLE_THINK.opener
THINK_CLOSE: Final = ANGLE_THINK.closer


class ToolCallParser(CallParser):
    """Parses `<tool_call>{"name": …, "arguments": {…}}</tool_call>` and `<think>…</think>`."""

    def __init__(
        self,
        tools: ToolSet,
        *,
        opening: str = "",
        forced: bool = False,
        parallel: bool = True,
        lenient: bool = False,
        reasoning: bool = False,
    ) -> None:
        """Parse the output of one turn; see `CallParser`. `reasoning`: `<think>` is known."""
        super().__init__(
            HERMES,
            tools,
            opening=opening,
            forced=forced,
            parallel=parallel,
            lenient=lenient,
            think=ANGLE_THINK if reasoning else None,
        )
