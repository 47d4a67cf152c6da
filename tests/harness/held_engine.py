"""An engine around another one that records what is asked of it and stops where a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from turnwire_server.ports.engine import (
    Constraint,
    Engine,
    EngineInfo,
    EngineRequest,
    EngineStep,
    Generation,
)

__all__ = ["HeldEngine", "Hold"]


@dataclass(slots=True, eq=False)
class Hold:
    """Where generations stop, and what has become of that."""

    text: str
    """Text of the last user message of the generations meant."""
    after_steps: int | None
    """How many steps they may make before; None: all, the last one too."""
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """Response ids of the generations that stopped here."""


class HeldEngine:
    """Implements `ports.Engine`. `log` has what happened, in order.

    Entries of `log`: `("generate", id)`, `("step", id)`, `("cancel", id)` and `("end", id)`,
    where the id is that of the response; a test may add entries of its own.
    """

    def __init__(self, inner: Engine) -> None:
        """Wrap `inner`."""
        self._inner = inner
        self.log: list[tuple[str, str]] = []
        self.requests: list[EngineRequest] = []
        self._holds: list[Hold] = []

    def hold(self, text: str, *, after_steps: int | None = 0) -> Hold:
        """Stop generations whose last user text is `text` before a step; 0 is within prefill.

        A generation never ends before it stopped: the end of a step that comes too early waits.
        With None it stops when all has been said, before it closes its stream.
        """
        hold = Hold(text, after_steps)
        self._holds.append(hold)
        return hold

    def release(self, hold: Hold) -> None:
        """Let everything go on that stops at `hold`, now and later."""
        hold.opened.set()

    async def held(self, hold: Hold) -> str:
        """Wait until one more generation stopped at `hold`; return its response id."""
        async with asyncio.timeout(20):
            return await hold.arrived.get()

    def request(self, response_id: str) -> EngineRequest:
        """Return what the engine was asked for a response."""
        return next(one for one in self.requests if one.request_id == response_id)

    @property
    def running(self) -> set[str]:
        """Response ids of the generations that have not ended."""
        running: set[str] = set()
        for what, response_id in self.log:
            if what == "generate":
                running.add(response_id)
            elif what == "end":
                running.discard(response_id)
        return running

    # The port.

    @property
    def info(self) -> EngineInfo:
        """What the inner engine is."""
        return self._inner.info

    async def start(self) -> None:
        """Start the inner engine."""
        await self._inner.start()

    async def close(self) -> None:
        """Close the inner engine, and let go of whatever is held."""
        for hold in self._holds:
            hold.opened.set()
        await self._inner.close()

    def refusal(self, constraint: Constraint) -> str | None:
        """Ask the inner engine."""
        return self._inner.refusal(constraint)

    def generate(self, request: EngineRequest) -> Generation:
        """Begin a generation."""
        self.requests.append(request)
        self.log.append(("generate", request.request_id))
        text = request.outline.last_user_text
        holds = [hold for hold in self._holds if hold.text == text]
        return _HeldGeneration(self, self._inner.generate(request), request.request_id, holds)


class _HeldGeneration:
    """One generation."""

    def __init__(
        self, engine: HeldEngine, inner: Generation, response_id: str, holds: list[Hold]
    ) -> None:
        self._engine = engine
        self._inner = inner
        self._iterator = aiter(inner)
        self._id = response_id
        self._holds = holds
        self._steps = 0
        self._cancelled = asyncio.Event()
        self._is_over = False
        self._last: EngineStep | None = None

    def __aiter__(self) -> AsyncIterator[EngineStep]:
        return self

    async def __anext__(self) -> EngineStep:
        for hold in self._holds:
            at = hold.after_steps
            if (at == self._steps or (at is None and self._is_over)) and not hold.opened.is_set():
                hold.arrived.put_nowait(self._id)
                await _first(hold.opened, self._cancelled)
        self._steps += 1
        if self._last is not None:
            step, self._last = self._last, None
            self._end()
            return replace(step, finish="cancelled") if self._cancelled.is_set() else step
        try:
            step = await anext(self._iterator)
        except Exception:
            self._end()
            raise
        self._engine.log.append(("step", self._id))
        if step.finish is not None:
            if any(hold.after_steps == self._steps for hold in self._holds):
                self._last = EngineStep(finish=step.finish)
                return replace(step, finish=None)
            self._end()
        return step

    def listen(self, take: Callable[[Sequence[int]], bool]) -> None:
        """Hand over what is due, unless a step may be held: then each is read."""
        if self._holds:
            return

        def noting(ids: Sequence[int]) -> bool:
            self._engine.log.append(("step", self._id))
            return take(ids)

        self._inner.listen(noting)

    def cancel(self) -> None:
        if not self._cancelled.is_set():
            self._engine.log.append(("cancel", self._id))
        self._cancelled.set()
        self._inner.cancel()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._engine.log.append(("end", self._id))


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
