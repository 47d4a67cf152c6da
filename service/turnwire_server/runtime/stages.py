"""Where a turn's time goes."""

from __future__ import annotations

from collections import defaultdict

from turnwire.v1.response_pb2 import Timing, TimingTokens
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.renderer import Rendered

__all__ = ["Stages"]


class Stages:
    """A stop-watch over the stages of one turn: each `mark` ends the stage it names."""

    __slots__ = ("_clock", "_last", "seconds")

    def __init__(self, clock: Clock, received_at: float) -> None:
        """Start with the time since `received_at`, which was the stage `queue`."""
        self._clock = clock
        self._last = now = clock.monotonic()
        self.seconds: defaultdict[str, float] = defaultdict(float, queue=now - received_at)
        """Stage -> seconds."""

    def mark(self, stage: str) -> None:
        """End a stage; the same name again adds up."""
        now = self._clock.monotonic()
        self.seconds[stage] += now - self._last
        self._last = now

    def skip(self) -> None:
        """Leave out the time since the last mark: it was the client's own."""
        self._last = self._clock.monotonic()

    def write(
        self,
        timing: Timing,
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
        seconds, prompt, reason = self.seconds, rendered.prompt, rendered.rerender_reason
        overhead = sum(each for stage, each in seconds.items() if stage not in _INFERENCE)
        given, fresh = len(prompt.ids) - own, rendered.rendered_tokens
        timing.CopyFrom(
            Timing(
                **{_MEMBERS[stage]: each * 1e3 for stage, each in seconds.items()},
                overhead_ms=overhead * 1e3,
                rerender_reason=reason,
                tokens=TimingTokens(
                    input=given,
                    # When the head was rendered again, what was sent are the tokens behind it.
                    sent=max(0, fresh - prompt.head_length) if reason else fresh,
                    rendered=fresh,
                    cached=min(cached, given),
                    output=output,
                ),
            )
        )


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
