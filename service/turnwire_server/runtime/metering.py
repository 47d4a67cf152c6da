"""What the metrics are told of a turn."""

from __future__ import annotations

from turnwire.v1 import response_pb2
from turnwire_server.ports.metrics import Metrics, TurnFacts
from turnwire_server.runtime.afterwork import AfterWork
from turnwire_server.runtime.run import TurnRun

__all__ = ["count_turn", "turn_facts"]


def count_turn(run: TurnRun, transport: str, metrics: Metrics, afterwork: AfterWork) -> None:
    """Count a turn that is over, after what its client waits for."""

    async def count() -> None:
        metrics.turn_ended(turn_facts(run, transport))

    afterwork.add(count, response_id=run.turn.response_id)


def turn_facts(run: TurnRun, transport: str) -> TurnFacts:
    """Return what the metrics are told."""
    if not run.has_begun:
        return TurnFacts(run.model_name, "refused", transport)
    response, rendered = run.assembler.response, run.whole_prompt
    used = response.usage
    return TurnFacts(
        model=run.model_name,
        status=_status(response_pb2.ResponseStatus.Name(response.status)),
        transport=transport,
        input_tokens=used.input_tokens,
        cached_tokens=used.input_tokens_details.cached_tokens,
        output_tokens=used.output_tokens,
        reasoning_tokens=used.output_tokens_details.reasoning_tokens,
        rendered_tokens=rendered.rendered_tokens,
        rerender_reason=rendered.rerender_reason,
        stages=run.stages.seconds,
    )


def _status(name: str) -> str:
    name = name.removeprefix("RESPONSE_STATUS_").lower()
    return name if name in ("completed", "incomplete", "failed", "cancelled") else "abandoned"
