"""The engine port: token ids in, token ids out, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from turnwire_server.session.tokens import TokenIds
from turnwire_server.session.tools import NO_TOOLS, ToolSet

__all__ = [
    "ALL_SAMPLING",
    "Constraint",
    "Engine",
    "EngineFailure",
    "EngineInfo",
    "EngineRequest",
    "EngineStep",
    "FinishReason",
    "Generation",
    "Sampling",
    "TurnOutline",
]

FinishReason = Literal["stop", "repeated", "length", "cancelled", "overrun"]
"""Why a generation ended: an end-of-turn token or the constraint's end; the model went in circles
and the engine made an end of it; `max_tokens` or the context is full; cancelled by us; more than
`max_pending_tokens` waited unread."""

ConstraintKind = Literal["json_schema", "json_object", "regex", "lark", "ebnf"]


ALL_SAMPLING = frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty"})
"""Names of the sampling parameters that a create may have."""


@dataclass(slots=True)  # not frozen: made per turn, and that takes thrice as long
class Sampling:
    """How to choose tokens. None means the engine's own default."""

    max_tokens: int
    """Most tokens to generate, >= 1 (0 only together with `prefill_only`)."""
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the generated text must match from its first token on."""

    kind: ConstraintKind
    text: str
    """The JSON Schema as JSON text, the regex or the grammar; "" for `json_object`."""


@dataclass(slots=True)  # not frozen: made per turn, and that takes thrice as long
class TurnOutline:
    """Plain facts about the turn for engines that act a part (`sim`); real engines ignore it."""

    tools: ToolSet = NO_TOOLS
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the qualified name of the one tool that must be called."""
    tool_outputs: int = 0
    """Tool outputs after the last user message of the whole conversation."""
    last_user_text: str = ""
    """Text of the last user message, cut to 4,096 characters."""
    script: str = ""
    """Value of the create's `metadata["turnwire.sim"]`, "" when absent: a script's name or text."""
    task: Literal["turn", "summary"] = "turn"
    """`summary` when the model is asked to sum the conversation up (a compaction)."""


@dataclass(slots=True)  # not frozen: made per turn, and that takes thrice as long
class EngineRequest:
    """One generation."""

    request_id: str
    """The response id; unique among running generations."""
    ids: TokenIds
    """The whole prompt. The engine must not change it."""
    sampling: Sampling
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the turn; the last one is reported in the final step when it was sampled."""
    constraint: Constraint | None = None
    session_hint: str = ""
    """Same value for turns of one conversation: a hint for cache affinity, "" for none."""
    prefill_only: bool = False
    """Fill the prefix cache and generate nothing (a warm-up): one step without ids."""
    max_pending_tokens: int = 65_536
    """Bound on generated and unread ids; beyond it the generation ends with `overrun`."""
    outline: TurnOutline = field(default_factory=TurnOutline)


@dataclass(slots=True)  # not frozen: made per token, and that takes twice as long
class EngineStep:
    """What became ready since the last step: any number of ids, and the end if it was reached."""

    ids: Sequence[int] = ()
    finish: FinishReason | None = None
    """None while the generation goes on; after a step with a reason there is no other."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; set in the first step, None afterwards."""


class EngineFailure(Exception):
    """The engine broke (child died, device error). Detail is for logs, never for a peer."""


class Generation(Protocol):
    """A running generation."""

    def __aiter__(self) -> AsyncIterator[EngineStep]:
        """Yield steps until one has a finish reason.

        The first step comes as soon as prefill is over, possibly without ids.

        Raises:
            EngineFailure: the engine broke; the generation is over.
        """
        ...

    def listen(self, take: Callable[[Sequence[int]], bool]) -> None:
        """Let ids be handed to `take` while the reader waits for the next step.

        To wake a task for each token costs more than what is done with the token. While `take`
        returns that there is room, the reader sleeps on; else it gets a step without ids, and
        nothing is handed over until it asks for the next. The first step and the one with the
        finish reason are the reader's, and so is what `take` raises. An engine may ignore this,
        for some steps or for all.
        """
        ...

    def cancel(self) -> None:
        """Stop at once: synchronous, idempotent, safe at any time (before, in and after prefill).

        The engine is told before this returns. The iterator then yields a last step with
        `finish="cancelled"` (ids that were ready come with it), unless it was over already.
        """
        ...


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is and can do."""

    name: str
    """`sim`, `openvino`, …: said in docs and in `/v1/models` as `owned_by`."""
    context_length: int
    """Most prompt plus output tokens."""
    constraints: frozenset[ConstraintKind] = frozenset()
    """Kinds of constraint it enforces."""
    sampling: frozenset[str] = ALL_SAMPLING
    """Names of the fields of `Sampling` that it follows, beside `max_tokens`."""
    images: bool = False
    """Whether messages and tool outputs may hold images; its renderer must take them too."""
    simulated: bool = False
    """True when no model runs."""


class Engine(Protocol):
    """An inference engine."""

    @property
    def info(self) -> EngineInfo:
        """What it is; constant after `start`."""
        ...

    async def start(self) -> None:
        """Load what is needed; the engine serves after this returns.

        Raises:
            EngineFailure: it cannot; `str()` is one clear sentence for the operator.
        """
        ...

    async def close(self) -> None:
        """Stop running generations and give everything back. Idempotent."""
        ...

    def refusal(self, constraint: Constraint) -> str | None:
        """Return why it cannot enforce `constraint`, None when it can.

        The words end a sentence and quote nothing of the constraint: a client is told them.
        Called for every constrained turn, on the loop: what it found out before is remembered.
        """
        ...

    def generate(self, request: EngineRequest) -> Generation:
        """Begin a generation. Never blocks; failures surface in the iterator."""
        ...
