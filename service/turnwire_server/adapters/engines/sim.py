"""The simulated engine: no model, but real token ids, real prefix lengths, and a pace.

Transports are compared on it, because it costs next to nothing and does the same every time.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from turnwire_server.adapters.engines.prefix_index import PrefixIndex, PrefixMatch
from turnwire_server.adapters.engines.schema_example import NoExample, example_of
from turnwire_server.adapters.engines.sim_agent import AgentSettings, SimAgent, SimOutput
from turnwire_server.adapters.engines.sim_pacing import ROUNDING
from turnwire_server.adapters.engines.sim_script import ScriptFailure, SimScript, read_trace
from turnwire_server.adapters.renderers.sim_tokens import sim_tokens
from turnwire_server.adapters.renderers.vocabulary import VocabularyFailure
from turnwire_server.ports.clock import Clock, Timer
from turnwire_server.ports.engine import (
    Constraint,
    EngineFailure,
    EngineInfo,
    EngineRequest,
    EngineStep,
    FinishReason,
)

__all__ = ["ScriptHook", "SimEngine", "SimGeneration", "SimSettings"]

_NEXT = 1 - ROUNDING
"""So many tokens behind one that is due, the next is due as well."""

ScriptHook = Callable[[EngineRequest], str | Sequence[int] | None]
"""Decides a turn for a test: text with markup, ids as they are, or None for the default."""


@dataclass(frozen=True, slots=True)
class SimSettings:
    """How the simulated engine behaves."""

    tokens_per_second: float = 0.0
    """Pace of a generation; 0 means as fast as it is read."""
    prefill_tokens_per_second: float = 0.0
    """Pace of the prompt's tokens that are not cached; 0 means at once."""
    context_length: int = 131_072
    """Most prompt plus output tokens."""
    step_tokens: int = 32
    """Tokens per step when the reader sets the pace."""
    max_cached_tokens: int = 4_000_000
    """Size of the simulated prefix cache."""
    images: bool = True
    """Whether images are taken; nobody looks at them, the prompt only says that they are there."""
    agent: AgentSettings = field(default_factory=AgentSettings)
    trace_path: Path | None = None
    """A trace to replay, read by `start`."""


@lru_cache(maxsize=256)
def _refusal(constraint: Constraint) -> str | None:
    if constraint.kind != "json_schema":
        return None
    try:
        example_of(json.loads(constraint.text))
    except (ValueError, NoExample):
        return "no value was found that it allows"
    return None


class SimEngine:
    """Acts as an inference engine (`ports.Engine`)."""

    def __init__(
        self, settings: SimSettings, clock: Clock, *, script: ScriptHook | None = None
    ) -> None:
        """Pace by `clock`; `script` decides turns in tests."""
        self._settings = settings
        self._clock = clock
        self._script = script
        self._agent: SimAgent | None = None
        self._prefixes = PrefixIndex(max_tokens=settings.max_cached_tokens)
        self._running: weakref.WeakSet[SimGeneration] = weakref.WeakSet()
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        """What it is."""
        return EngineInfo(
            name="sim",
            context_length=self._settings.context_length,
            constraints=frozenset({"json_schema", "json_object"}),
            sampling=frozenset(),
            images=self._settings.images,
            simulated=True,
        )

    async def start(self) -> None:
        """Load the vocabulary and the trace.

        Raises:
            EngineFailure: one of them cannot be read.
        """
        try:
            trace = await asyncio.to_thread(self._read_trace)
            tokens = await asyncio.to_thread(sim_tokens)
        except (ScriptFailure, VocabularyFailure) as failure:
            raise EngineFailure(f"the simulated engine cannot start: {failure}") from failure
        except (OSError, UnicodeDecodeError) as error:
            raise EngineFailure("the simulated engine cannot read its trace file") from error
        self._agent = SimAgent(
            tokens,
            self._settings.agent,
            tokens_per_second=self._settings.tokens_per_second,
            trace=trace,
        )
        self._closed = False

    async def close(self) -> None:
        """Cancel what runs. Idempotent."""
        self._closed = True
        for generation in list(self._running):
            generation.cancel()

    def refusal(self, constraint: Constraint) -> str | None:
        """Return why no text can be made up for `constraint`, None when one can."""
        return _refusal(constraint)

    def generate(self, request: EngineRequest) -> SimGeneration:
        """Begin a generation; its prefill begins now, whenever it is read."""
        generation = SimGeneration(self, request, self._clock, self._settings, self._prefixes)
        self._running.add(generation)
        return generation

    def output(self, request: EngineRequest) -> SimOutput:
        """Decide what is said to `request`.

        Raises:
            EngineFailure: the engine does not run.
        """
        if self._closed or self._agent is None:
            raise EngineFailure("the simulated engine is not running")
        said = self._script(request) if self._script is not None else None
        if said is not None:
            return self._agent.text_output(said)
        return self._agent.output(request)

    def _read_trace(self) -> tuple[SimScript, ...]:
        path = self._settings.trace_path
        return () if path is None else read_trace(path.read_text(encoding="utf-8"))


class SimGeneration:
    """One generation. It has no task of its own: it happens while it is read."""

    def __init__(
        self,
        engine: SimEngine,
        request: EngineRequest,
        clock: Clock,
        settings: SimSettings,
        prefixes: PrefixIndex,
    ) -> None:
        """Begin at the clock's present time."""
        # What `_hand_over` touches stands together.
        self._monotonic = clock.monotonic
        self._began = clock.monotonic()
        """When prefill began; once it is over, when the first token was due."""
        self._even_rate = 0.0
        """Tokens per second where nothing else decides when one is due, else 0."""
        self._sent = 0
        self._limit = 0
        self._ids: Sequence[int] = ()
        """All that will be said."""
        self._take: Callable[[Sequence[int]], bool] | None = None
        """Who listens."""
        self._timer: Timer | None = None
        """While the reader waits: it holds this, a cycle."""
        self._waiting: asyncio.Future[bool] | None = None
        """Resolved when the newest wait is over: whether who listens has no room."""
        self._output: SimOutput | None = None
        self._soon: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._engine = engine
        self._request = request
        self._settings = settings
        self._prefixes = prefixes
        self._match: PrefixMatch | None = None
        self._over = False
        self._cancelled = False

    def __aiter__(self) -> AsyncIterator[EngineStep]:
        """Return itself: there is one reader."""
        return self

    async def __anext__(self) -> EngineStep:
        """Return the next step, waiting until it is due."""
        if self._over:
            raise StopAsyncIteration
        output = self._output
        try:
            if output is None:
                return await self._prefill()
            due_at = self._began
            if self._sent < self._limit and not self._cancelled:
                sent, rate = self._sent, self._even_rate
                due_at += sent / rate if rate else output.pace.when(sent)
            # Also when it is due: reading must not starve the loop.
            if await self._until(due_at):
                return EngineStep()
            due = self._due(output)
            if self._sent < self._limit and not self._cancelled:
                # Rounding in the clock must not make a token late whose time has come.
                due = max(due, self._sent + 1)
            return self._step(output, due)
        except EngineFailure:
            self._over = True
            raise

    def listen(self, take: Callable[[Sequence[int]], bool]) -> None:
        """Hand ids to `take`; see `ports.Generation`."""
        if self._over or self._cancelled or self._output is None:
            return  # nothing comes any more
        if self._output.fail_after is None:
            self._take = take

    def cancel(self) -> None:
        """Stop at once; a wait that is going on ends."""
        if self._over or self._cancelled:
            return
        self._cancelled = True
        self._take = None  # who listens holds this: a cycle
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    async def _prefill(self) -> EngineStep:
        request, settings = self._request, self._settings
        if self._cancelled:
            return self._last("cancelled", cached_tokens=0)
        output = self._engine.output(request)
        self._match = match = self._prefixes.look_up(request.ids)
        if settings.prefill_tokens_per_second:
            missing = len(request.ids) - match.cached
            self._began += missing / settings.prefill_tokens_per_second
            if self._began > self._monotonic():
                await self._until(self._began)
            if self._cancelled:
                return self._last("cancelled", cached_tokens=match.cached)
        self._prefixes.prefilled(match, request.ids)
        room = max(0, settings.context_length - len(request.ids))
        self._limit = min(len(output.ids), request.sampling.max_tokens, room)
        if output.repeat_after is not None:
            self._limit = min(self._limit, output.repeat_after)
        self._output, self._ids = output, output.ids
        if output.fail_after is None:
            self._even_rate = output.pace.even_rate
        if request.prefill_only:
            return self._last("stop", cached_tokens=match.cached)
        return self._step(output, self._due(output), cached_tokens=match.cached)

    def _step(self, output: SimOutput, due: int, *, cached_tokens: int | None = None) -> EngineStep:
        """Return what is due, cut to the bounds, and the end if it is reached."""
        pulled = output.pace.pulled
        if output.fail_after is not None and not self._cancelled:
            if self._sent >= output.fail_after:
                raise EngineFailure("the script asked for a failure")
            due = min(due, output.fail_after)
        count = max(0, due - self._sent)
        finish: FinishReason | None = None
        if self._cancelled:
            count, finish = (0 if pulled else count), "cancelled"
        elif pulled:
            count = min(count, self._settings.step_tokens)
        elif count > self._request.max_pending_tokens:
            finish = "overrun"
        count = min(count, self._request.max_pending_tokens)
        ids = output.ids[self._sent : self._sent + count]
        self._sent += count
        if finish is None and self._sent >= self._limit:
            finish = "stop" if self._limit == len(output.ids) else "length"
            if self._limit == output.repeat_after:
                finish = "repeated"
        if finish is not None:
            return self._last(finish, ids, cached_tokens=cached_tokens)
        return EngineStep(ids, cached_tokens=cached_tokens)

    def _due(self, output: SimOutput) -> int:
        return output.pace.due(self._monotonic() - self._began, self._limit)

    def _last(
        self, finish: FinishReason, ids: Sequence[int] = (), *, cached_tokens: int | None = None
    ) -> EngineStep:
        self._over = True
        self._take = None  # who listens holds this: a cycle
        if self._match is not None and self._output is not None:
            sampled = self._output.ids[: self._sent]
            self._prefixes.generated(self._match, self._request.ids, sampled)
            self._loop.call_soon(self._prefixes.catch_up)  # the turn's end does not wait for it
        return EngineStep(ids, finish, cached_tokens)

    async def _until(self, due_at: float) -> bool:
        """Wait until `_hand_over`, called at `due_at`, or `cancel` has something for the reader.

        Returns:
            Whether who listens has no room.
        """
        self._waiting = self._loop.create_future()
        self._go_on(due_at)
        try:
            return await self._waiting
        finally:
            self._waiting = None  # what it raises holds the frames that hold this: a cycle
            # The reader may have gone away.
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._soon is not None:
                self._soon.cancel()
                self._soon = None

    def _go_on(self, due_at: float) -> None:
        """Call `_hand_over` at `due_at`, in the loop's next turn at the earliest."""
        if self._cancelled or due_at <= self._monotonic():
            self._soon = self._loop.call_soon(self._hand_over)
            return
        if self._timer is None:
            self._timer = self._clock.timer(self._loop, self._hand_over)
        self._timer.start(due_at)

    def _wake(self, *, is_full: bool = False) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(is_full)

    def _hand_over(self) -> None:
        """Hand what is due to who listens and wait on; the reader is woken for all else."""
        take, sent, rate = self._take, self._sent, self._even_rate
        if take is None:
            return self._wake()
        try:
            due: int | None = sent + 1
            if not rate or (self._monotonic() - self._began) * rate >= sent + _NEXT:
                due = self._due_together()  # mostly only one is
            if due is None or due >= self._limit:
                return self._wake()
            self._sent = due
            # One is no slice: that takes an object more.
            ids = (self._ids[sent],) if due == sent + 1 else self._ids[sent:due]
            if not take(ids):
                self._wake(is_full=True)
            elif rate and self._timer is not None:
                self._timer.start(self._began + due / rate)
            elif not self._cancelled:
                assert self._output is not None
                self._go_on(self._began + self._output.pace.when(due))
        except Exception as bug:  # the loop would log it, and the reader wait for ever
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_exception(bug)

    def _due_together(self) -> int | None:
        """Return how many tokens are handed over once it is done; None: too many are not read."""
        assert self._output is not None
        due = max(self._sent + 1, self._due(self._output))
        if self._output.pace.pulled:
            return min(due, self._sent + self._settings.step_tokens)
        return due if due - self._sent <= self._request.max_pending_tokens else None
