"""What the metrics are told of a turn."""

from __future__ import annotations

from turnwire_server.ports.metrics import Metrics, TurnFacts
from turnwire_server.runtime.afterwork import AfterWork
from turnwire_server.runtime.run import TurnRun

__all__ = ["count_turn", "turn_facts"]


def count_turn(run: TurnRun, transport: str, metrics: Metrics, afterwork: AfterWork) -> None:
    """Count a turn that is over, after what its client waits for."""
    afterwork.soon(
        lambda: metrics.turn_ended(turn_facts(run, transport)), response_id=run.turn.response_id
    )


def turn_facts(run: TurnRun, transport: str) -> TurnFacts:
    """Return what the metrics are told."""
    if not run.has_begun:
        return TurnFacts(run.model_name, "refused", transport)
    rendered, settled = run.whole_prompt, run.settled
    facts = TurnFacts(
        model=run.model_name,
        status="abandoned" if settled is None else settled.status,
        transport=transport,
        rendered_tokens=rendered.rendered_tokens,
        rerender_reason=rendered.rerender_reason,
        stages=run.stages.seconds,
    )
    if settled is not None:
        facts.input_tokens, facts.cached_tokens = settled.input_tokens, settled.cached_tokens
        facts.output_tokens, facts.reasoning_tokens = (
            settled.output_tokens,
            settled.reasoning_tokens,
        )
    return facts
