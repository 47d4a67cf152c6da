"""What a turn cost."""

from __future__ import annotations

from dataclasses import dataclass

from turnwire._response import Response, Timing
from turnwire.errors import ResponseRejected, TurnFailed, TurnwireError

__all__ = ["Clock", "TurnStats", "stats_of"]


@dataclass(frozen=True, slots=True)
class TurnStats:
    """What one turn cost, as this client saw it.

    The token counts come from the server: `sent` and `rendered` need
    `include=["turnwire.timing"]`, which `session.run` asks for by itself.
    """

    response_id: str | None
    """Id of the response; None when the create was rejected."""
    status: str
    """Status of the response; `rejected` or `lost` when there is none."""
    ttft_s: float | None
    """Seconds from `create` to the first delta; None when there was none."""
    total_s: float
    """Seconds from `create` to the terminal event; the queue is part of it."""
    input_items: int
    """Items that the create brought."""
    tokens_input: int | None
    """Tokens of the whole prompt."""
    tokens_sent: int | None
    """Tokens of the items that the create brought."""
    tokens_rendered: int | None
    """Tokens that the server tokenized for this turn."""
    tokens_cached: int | None
    """Prompt tokens that the engine found in its prefix cache."""
    tokens_output: int | None
    """Tokens generated."""
    bytes_up: int
    """Payload bytes of the create, as often as it was sent."""
    bytes_down: int
    """Payload bytes of the turn's events."""
    overhead_ms: float | None
    """`total_s` without pauses and the engine's prefill and decode, in milliseconds: wire, server,
    client."""
    timing: Timing | None
    """Where the time went inside the server."""
    paused_s: float = 0.0
    """Seconds of `total_s` that a rollout waited for this client, its tools for example."""
    resends: int = 0
    """How often the create was sent again because its session was lost."""


@dataclass(frozen=True, slots=True)
class Clock:
    """When a turn did what, in seconds on `time.perf_counter`."""

    started: float
    first_delta: float | None
    ended: float
    paused_s: float


def stats_of(
    outcome: Response | TurnwireError,
    clock: Clock,
    *,
    response_id: str | None,
    input_items: int,
    bytes_up: int,
    bytes_down: int,
    resends: int,
) -> TurnStats:
    """Return what a turn cost that is over; `TurnStats` has the meanings."""
    response = outcome if isinstance(outcome, Response) else None
    if isinstance(outcome, TurnFailed):
        response = outcome.response
    timing = response.timing if response is not None else None
    usage = response.usage if response is not None else None
    tokens = timing.tokens if timing is not None else None
    total_s = clock.ended - clock.started
    engine_ms = timing.prefill_ms + timing.decode_ms if timing is not None else None
    return TurnStats(
        response_id=response_id,
        status=response.status if response is not None else _status_without_response(outcome),
        ttft_s=None if clock.first_delta is None else clock.first_delta - clock.started,
        total_s=total_s,
        input_items=input_items,
        tokens_input=usage.input_tokens if usage is not None else None,
        tokens_sent=tokens.sent if tokens is not None else None,
        tokens_rendered=tokens.rendered if tokens is not None else None,
        tokens_cached=usage.cached_tokens if usage is not None else None,
        tokens_output=usage.output_tokens if usage is not None else None,
        bytes_up=bytes_up,
        bytes_down=bytes_down,
        overhead_ms=None
        if engine_ms is None
        else max(0.0, (total_s - clock.paused_s) * 1000 - engine_ms),
        timing=timing,
        paused_s=clock.paused_s,
        resends=resends,
    )


def _status_without_response(outcome: Response | TurnwireError) -> str:
    return "rejected" if isinstance(outcome, ResponseRejected) else "lost"
