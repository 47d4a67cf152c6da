"""What is measured: a conversation like an agent's, and the ways to carry it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import turnwire
from turnwire_server.cli.child import ChildServer

__all__ = ["ROWS", "TOOLS", "Row", "Scenario"]

_WORDS: Final = (
    "the session keeps what earlier turns computed and a new turn sends only what is new so the "
    "server works only for what is new while the engine keeps its cache and the client waits less"
).split()


@dataclass(frozen=True, slots=True)
class Row:
    """One way to carry the conversation."""

    name: str
    wire: Literal["grpc", "websocket", "http"]
    history: Literal["session", "full"]

    def url(self, server: ChildServer) -> str:
        """Return where this row connects to."""
        urls = {
            "grpc": server.grpc_url,
            "websocket": server.websocket_url,
            "http": server.http_url,
        }
        return urls[self.wire]


ROWS: Final = (
    Row("gRPC session", "grpc", "session"),
    Row("WebSocket session", "websocket", "session"),
    Row("HTTP, by response id", "http", "session"),
    Row("HTTP, full history", "http", "full"),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Size of the conversation and pace of the engine."""

    rate: float = 1000.0
    """Tokens per second of the simulated engine; 0: as fast as they are read."""
    prefill_rate: float = 0.0
    """Prompt tokens per second that are not cached; 0: at once."""
    turns: int = 12
    """Turns of one conversation; the first one brings the history."""
    history_words: int = 8_000
    """Length of the first turn's message; a word is about one token."""
    message_words: int = 60
    """Length of every later message."""
    output_tokens: int = 100
    """Tokens that the engine says in each turn."""
    repeats: int = 5
    """Conversations per row."""

    def message(self, turn: int) -> dict[str, Any]:
        """Return what turn number `turn` (from 0) brings."""
        count = self.history_words if turn == 0 else self.message_words
        words = [_WORDS[(turn * 7 + position) % len(_WORDS)] for position in range(count)]
        return {"role": "user", "content": " ".join(words)}

    def options(self, tag: str) -> turnwire.CreateOptions:
        """Return what every create repeats, as the API wants it.

        Args:
            tag: Stands first in the prompt, so that no conversation finds another's prefix.
        """
        script = json.dumps({"tokens": self.output_tokens, "tool_rounds": 0})
        return {
            "instructions": f"Conversation {tag}. Work step by step and use the tools.",
            "tools": TOOLS,
            "metadata": {"turnwire.sim": script},
            "include": ["turnwire.timing"],
        }

    def engine_s(self, stats: turnwire.TurnStats) -> float:
        """Return how long the engine takes by its settings, in seconds.

        The first token is due when prefill is over, each further one a period later.
        """
        prefill = decode = 0.0
        if self.prefill_rate:
            prefill = ((stats.tokens_input or 0) - (stats.tokens_cached or 0)) / self.prefill_rate
        if self.rate:
            decode = max(0, (stats.tokens_output or 0) - 1) / self.rate
        return prefill + decode

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for a results file."""
        return asdict(self)


def _tool(name: str, description: str, *parameters: str) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in parameters},
            "required": list(parameters),
            "additionalProperties": False,
        },
    }


TOOLS: Final[list[Any]] = [
    _tool("run_command", "Run a shell command and return its output.", "command", "directory"),
    _tool("read_file", "Read a text file.", "path"),
    _tool("write_file", "Replace a text file.", "path", "content"),
    _tool("search", "Find lines that match a regular expression.", "pattern", "directory"),
    _tool("fetch", "Get a page from the documentation.", "address"),
    _tool("note", "Keep a note for later.", "text"),
]
