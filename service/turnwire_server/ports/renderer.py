"""The renderer port: items to token ids, and sampled ids back to what the model said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from turnwire.v1 import item_pb2
from turnwire_server.ports.engine import Constraint, FinishReason
from turnwire_server.session.output import OutputPiece
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tools import NO_TOOLS, ToolSet

__all__ = [
    "Auditable",
    "CountsReasoning",
    "Ending",
    "OutputParser",
    "Prompt",
    "RenderFailure",
    "RenderRequest",
    "Rendered",
    "Renderer",
    "RerenderReason",
    "ToolForce",
]

RerenderReason = Literal[
    "", "first", "instructions", "tools", "model", "template", "store", "compaction", "truncation"
]
"""Why more than the new items were rendered: "" it was not; `first`: nothing was there yet.

The last two are the runtime's: a summary, or a part, stands for the whole conversation."""


@dataclass(frozen=True, slots=True)
class ToolForce:
    """A tool call that this turn must begin with."""

    tool_names: tuple[str, ...]
    """Qualified names of the tools allowed, in order; never empty."""
    parallel: bool = False
    """Whether more calls may follow the first."""


@dataclass(slots=True)  # not frozen: made per turn, and that takes thrice as long
class RenderRequest:
    """One turn to render."""

    new_items: Sequence[item_pb2.Item]
    """Items that no engine has seen yet, in order."""
    history: Callable[[], Sequence[item_pb2.Item]]
    """All earlier items, oldest first: called only when `previous` cannot be continued."""
    previous: Prompt | None = None
    """The parent's prompt, None for a new conversation or when only its items are known."""
    instructions: str = ""
    tools: ToolSet = NO_TOOLS
    force: ToolForce | None = None
    """Set when the model must call a tool."""
    text_format: Constraint | None = None
    """Set when the answer's text must match it (`text.format`)."""
    parallel_calls: bool = True
    """Whether the model may call more than one tool."""
    generate: bool = True
    """False for a warm-up: the ids end where the next items go, without a generation prompt."""


@dataclass(slots=True)  # not frozen: made per turn
class Rendered:
    """A prompt, ready for an engine."""

    prompt: Prompt
    """Its `ids` are what the engine gets (generation prompt included)."""
    rendered_tokens: int
    """Tokens that this turn tokenized; the rest came from `previous`."""
    rerender_reason: RerenderReason
    constraint: Constraint | None = None
    """What the engine must enforce, as the renderer wants it (for a forced call or a format)."""
    opening: str = ""
    """Text already in the prompt that belongs to the output (e.g. the opener of a forced call)."""


class RenderFailure(Exception):
    """The template refused the conversation. `str()` is safe to show: it has no content in it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Where the output ends: steps of an engine may hold ids behind it, which are dropped."""

    ids: int
    """How many of the ids that the parser was fed belong to the output."""
    is_exact: bool
    """Whether they are what was said, no more and no less, with the markup that closes it."""


class OutputParser(Protocol):
    """Reads one turn's sampled ids. Detokenizes incrementally: text never retreats."""

    def more_text(self, token: int) -> str | None:
        """Return the text of the next id if it is nothing but more of a message: most are.

        Else None, and nothing was read: the id must be fed.
        """
        ...

    def feed(self, ids: Sequence[int]) -> Sequence[OutputPiece]:
        """Return what `ids` add. May hold back text that could be the start of markup."""
        ...

    @property
    def done(self) -> bool:
        """Whether nothing more comes out, whatever follows."""
        ...

    @property
    def ending(self) -> Ending | None:
        """Where the output ends, None before that is known; then the engine may be stopped.

        It may come later than `done`: the markup that closes a call belongs to the output too.
        """
        ...

    def finish(self, reason: FinishReason) -> Sequence[OutputPiece]:
        """Return what was held back. Called once, after the last `feed`.

        A character cut in the middle becomes one U+FFFD. A call that is open and not
        complete gets no `CallEnded`.
        """
        ...


@runtime_checkable
class CountsReasoning(Protocol):
    """An output parser that knows which ids were reasoning."""

    @property
    def reasoning_tokens(self) -> int:
        """How many ids so far gave text of a `ReasoningDelta`, each counted once."""
        ...


class Renderer(Protocol):
    """Prompt format of one model."""

    @property
    def fingerprint(self) -> str:
        """Digest of model, tokenizer and template."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an assistant turn."""
        ...

    def render(self, request: RenderRequest) -> Rendered:
        """Render one turn. Work is proportional to the new items unless the head changed.

        Raises:
            RenderFailure: the items cannot be rendered by this template.
        """
        ...

    def parser(self, request: RenderRequest, rendered: Rendered) -> OutputParser:
        """Return a parser for the output of this turn."""
        ...

    def sampled(self, rendered: Rendered, ids: Sequence[int], finish: FinishReason) -> Prompt:
        """Return the prompt of the conversation after the model sampled `ids`."""
        ...

    def count(self, text: str) -> int:
        """Return how many tokens `text` is."""
        ...


@runtime_checkable
class Auditable(Protocol):
    """A renderer whose prompts can be checked against those of a cold render."""

    @property
    def keeps_prefixes(self) -> bool:
        """Whether continuing a prompt must give what rendering its items at once gives.

        What the model sampled is kept as it came, so there it may be otherwise; everything that
        was rendered must be the same.
        """
        ...

    def cold(self) -> Renderer:
        """Return a renderer of the same prompts that remembers nothing, for another thread."""
        ...
