"""Where a turn's time goes."""

from __future__ import annotations

from turnwire.v1 import response_pb2
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.renderer import Rendered

__all__ = ["Stages"]


class Stages:
    """A stop-watch over the stages of one turn: each `mark` ends the stage it names."""

    __slots__ = ("_clock", "_last", "seconds")

    def __init__(self, clock: Clock, received_at: float) -> None:
        """Start with the time since `received_at`, which was the stage `queue`."""
        self._clock = clock
        self._last = received_at
        self.seconds: dict[str, float] = {}
        """Stage -> seconds."""
        self.mark("queue")

    def mark(self, stage: str) -> None:
        """End a stage; the same name again adds up."""
        now = self._clock.monotonic()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def skip(self) -> None:
        """Leave out the time since the last mark: it was the client's own."""
        self._last = self._clock.monotonic()

    def write(
        self,
        timing: response_pb2.Timing,
        rendered: Rendered,
        *,
        cached: int,
        output: int,
        own: int = 0,
    ) -> None:
        """Make `timing`, which is empty, the public form, with the token counts of the turn.

        Args:
            timing: Where it is shown.
            rendered: What was rendered in all.
            cached: Tokens of the prompt that the engine had cached.
            output: Tokens that were sampled.
            own: Tokens of the prompt that the response sampled itself.
        """
        overhead = 0.0
        for stage, seconds in self.seconds.items():
            setattr(timing, _MEMBERS[stage], seconds * 1e3)
            if stage not in _INFERENCE:
                overhead += seconds
        timing.overhead_ms = overhead * 1e3
        timing.rerender_reason = rendered.rerender_reason
        tokens = timing.tokens
        tokens.input = len(rendered.prompt.ids) - own
        tokens.rendered = rendered.rendered_tokens
        # When the head was rendered again, what the client sent are the tokens behind it.
        head = rendered.prompt.head_length if rendered.rerender_reason else 0
        tokens.sent = max(0, rendered.rendered_tokens - head)
        tokens.cached = min(cached, tokens.input)
        tokens.output = output


_MEMBERS = {
    stage: f"{stage}_ms"
    for stage in (
        "queue",
        "resolve",
        "validate",
        "render",
        "screen",
        "prefill",
        "decode",
        "commit",
    )
}
"""Stages, and what shows them."""
_INFERENCE = frozenset({"prefill", "decode"})
"""Those in which the turn waits for its engine."""
