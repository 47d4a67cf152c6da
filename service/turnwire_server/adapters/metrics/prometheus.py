"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from turnwire_server.ports.metrics import AuditOutcome, Exposition, Levels, TurnFacts

__all__ = ["PrometheusMetrics"]

_BUCKETS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Seconds: a stage of ours takes microseconds, one of an engine may take a minute."""
_INFERENCE: Final = frozenset({"prefill", "decode"})
_FIRST: Final = "first"


class PrometheusMetrics:
    """`ports.Metrics`, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._turns = Counter(
            "turnwire_turns", "Turns that are over.", ["model", "status", "transport"],
            registry=registry,
        )  # fmt: skip
        self._tokens = Counter(
            "turnwire_tokens",
            "Tokens: input and, of them, cached; rendered (tokenized by the server); output and, "
            "of them, reasoning.",
            ["model", "kind"],
            registry=registry,
        )
        self._rerendered = Counter(
            "turnwire_rerendered_tokens",
            "Tokens rendered by turns that had to render more than what was new, by reason.",
            ["model", "reason"],
            registry=registry,
        )
        self._stages = Histogram(
            "turnwire_turn_stage_seconds", "Time of a turn by stage.", ["model", "stage"],
            buckets=_BUCKETS, registry=registry,
        )  # fmt: skip
        self._overhead = Histogram(
            "turnwire_turn_overhead_seconds", "Time of a turn but prefill and decode.", ["model"],
            buckets=_BUCKETS, registry=registry,
        )  # fmt: skip
        self._audits = Counter(
            "turnwire_audits", "Prompts that were rendered cold and compared, by outcome.",
            ["model", "outcome"], registry=registry,
        )  # fmt: skip
        self._levels = _LevelCollector()
        registry.register(self._levels)
        ProcessCollector(registry=registry)

    def turn_ended(self, facts: TurnFacts) -> None:
        """Count a turn."""
        model = facts.model
        self._turns.labels(model, facts.status, facts.transport).inc()
        for kind, count in (
            ("input", facts.input_tokens),
            ("cached", facts.cached_tokens),
            ("rendered", facts.rendered_tokens),
            ("output", facts.output_tokens),
            ("reasoning", facts.reasoning_tokens),
        ):
            if count:
                self._tokens.labels(model, kind).inc(count)
        if facts.rerender_reason not in ("", _FIRST):
            self._rerendered.labels(model, facts.rerender_reason).inc(facts.rendered_tokens)
        for stage, seconds in facts.stages.items():
            self._stages.labels(model, stage).observe(seconds)
        if facts.stages:
            ours = (part for stage, part in facts.stages.items() if stage not in _INFERENCE)
            self._overhead.labels(model).observe(sum(ours))

    def audited(self, model: str, outcome: AuditOutcome) -> None:
        """Count an audit."""
        self._audits.labels(model, outcome).inc()

    def exposition(self, levels: Levels) -> Exposition:
        """Return everything in Prometheus' text format."""
        self._levels.levels = levels
        return Exposition(CONTENT_TYPE_LATEST, generate_latest(self._registry))


class _LevelCollector(Collector):
    """Shows what was read off the server for this answer."""

    def __init__(self) -> None:
        self.levels: Levels | None = None

    def collect(self) -> Iterator[Metric]:
        levels = self.levels
        if levels is None:
            return
        connections = GaugeMetricFamily(
            "turnwire_connections", "Open connections.", labels=["transport"]
        )
        for transport, count in levels.connections.items():
            connections.add_metric([transport], count)
        yield connections
        yield GaugeMetricFamily("turnwire_turns_running", "Turns that run.", value=levels.running)
        yield GaugeMetricFamily(
            "turnwire_creates_queued", "Creates that wait for their lane.", value=levels.queued
        )
        dropped = CounterMetricFamily(
            "turnwire_responses_dropped", "Stored responses that were forgotten.", labels=["reason"]
        )
        for reason, count in levels.dropped.items():
            dropped.add_metric([reason], count)
        yield dropped
        restarts = CounterMetricFamily(
            "turnwire_engine_restarts", "Engines that were started again.", labels=["model"]
        )
        for model, count in levels.restarts.items():
            restarts.add_metric([model], count)
        yield restarts
