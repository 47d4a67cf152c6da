"""Metrics for Prometheus.

Counts are plain numbers here, and become the library's families when somebody asks: its own
counters cost several times as much per turn, since they lock, and this runs on one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from turnwire_server.ports.metrics import (
    AuditOutcome,
    Exposition,
    Levels,
    TurnFacts,
    UsageLevels,
)

__all__ = ["PrometheusMetrics"]

_BUCKETS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Seconds: a stage of ours takes microseconds, one of an engine may take a minute."""
_INFERENCE: Final = frozenset({"prefill", "decode"})
_NOT_AGAIN: Final = frozenset({"", "first"})
"""Reasons of turns that rendered nothing twice."""
_TOGETHER: Final = 16
"""So many turns are counted at once: by themselves each finds all of this out of the caches."""

Counts = defaultdict[tuple[str, ...], int]
"""Values of the labels -> count."""


class _Histogram:
    """How often a number fell between two bounds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(_BUCKETS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return upper bounds and how many numbers are not above them."""
        shown, sum_so_far = [], 0
        for bound, count in zip((*map(str, _BUCKETS), "+Inf"), self.counts, strict=True):
            sum_so_far += count
            shown.append((bound, float(sum_so_far)))
        return shown


Histograms = defaultdict[tuple[str, ...], _Histogram]


class PrometheusMetrics(Collector):
    """`ports.Metrics`. Used on one thread."""

    def __init__(self) -> None:
        self._turns: Counts = defaultdict(int)
        self._tokens: Counts = defaultdict(int)
        self._rerendered: Counts = defaultdict(int)
        self._audits: Counts = defaultdict(int)
        self._stages: Histograms = defaultdict(_Histogram)
        self._overhead: Histograms = defaultdict(_Histogram)
        self._levels: Levels | None = None
        self._over: list[TurnFacts] = []
        """Turns that are not counted yet."""
        # A registry of its own: two servers of one process must not add up.
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def turn_ended(self, facts: TurnFacts) -> None:
        """Count a turn, with some others."""
        self._over.append(facts)
        if len(self._over) == _TOGETHER:
            self._count_turns()

    def _count_turns(self) -> None:
        for facts in self._over:
            self._count_turn(facts)
        self._over.clear()

    def _count_turn(self, facts: TurnFacts) -> None:
        model = facts.model
        self._turns[model, facts.status, facts.transport] += 1
        for kind, count in (
            ("input", facts.input_tokens),
            ("cached", facts.cached_tokens),
            ("rendered", facts.rendered_tokens),
            ("output", facts.output_tokens),
            ("reasoning", facts.reasoning_tokens),
        ):
            if count:
                self._tokens[model, kind] += count
        if facts.rerender_reason not in _NOT_AGAIN:
            self._rerendered[model, facts.rerender_reason] += facts.rendered_tokens
        overhead = 0.0
        for stage, seconds in facts.stages.items():
            self._stages[model, stage].observe(seconds)
            if stage not in _INFERENCE:
                overhead += seconds
        if facts.stages:
            self._overhead[model,].observe(overhead)

    def audited(self, model: str, outcome: AuditOutcome) -> None:
        """Count an audit."""
        self._audits[model, outcome] += 1

    def exposition(self, levels: Levels) -> Exposition:
        """Return everything in Prometheus' text format."""
        self._count_turns()
        self._levels = levels
        return Exposition(CONTENT_TYPE_LATEST, generate_latest(self._registry))

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the library."""
        levels = self._levels
        if levels is None:  # when it is registered, and nobody asked yet
            return
        yield _counter(
            "turnwire_turns",
            "Turns that are over.",
            ("model", "status", "transport"),
            self._turns,
        )
        yield _counter(
            "turnwire_tokens",
            "Tokens: input and, of them, cached; rendered (tokenized by the server); output and, "
            "of them, reasoning.",
            ("model", "kind"),
            self._tokens,
        )
        yield _counter(
            "turnwire_rerendered_tokens",
            "Tokens rendered by turns that had to render more than what was new, by reason.",
            ("model", "reason"),
            self._rerendered,
        )
        yield _counter(
            "turnwire_audits",
            "Prompts that were rendered cold and compared, by outcome.",
            ("model", "outcome"),
            self._audits,
        )
        yield _histogram(
            "turnwire_turn_stage_seconds",
            "Time of a turn by stage.",
            ("model", "stage"),
            self._stages,
        )
        yield _histogram(
            "turnwire_turn_overhead_seconds",
            "Time of a turn but prefill and decode.",
            ("model",),
            self._overhead,
        )
        yield from _families_of(levels)


def _families_of(levels: Levels) -> Iterator[Metric]:
    connections = GaugeMetricFamily(
        "turnwire_connections", "Open connections.", labels=["transport"]
    )
    for transport, count in levels.connections.items():
        connections.add_metric([transport], count)
    yield connections
    # The sum over all workers is their number.
    yield GaugeMetricFamily("turnwire_workers", "Processes that serve.", value=1)
    yield GaugeMetricFamily("turnwire_turns_running", "Turns that run.", value=levels.running)
    yield GaugeMetricFamily(
        "turnwire_sessions_detached",
        "Sessions that wait for a new connection.",
        value=levels.detached,
    )
    yield GaugeMetricFamily("turnwire_tasks", "Tasks of the event loop.", value=levels.tasks)
    yield GaugeMetricFamily(
        "turnwire_creates_queued", "Creates that wait for their lane.", value=levels.queued
    )
    yield _counter(
        "turnwire_responses_dropped",
        "Stored responses that were forgotten.",
        ("reason",),
        {(reason,): count for reason, count in levels.dropped.items()},
    )
    yield _counter(
        "turnwire_engine_restarts",
        "Engines that were started again.",
        ("model",),
        {(model,): count for model, count in levels.restarts.items()},
    )
    if levels.usage is not None:
        yield from _usage_families(levels.usage)


def _usage_families(usage: UsageLevels) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "turnwire_usage_open_records", "Records of responses that run.", value=usage.open
    )
    yield GaugeMetricFamily(
        "turnwire_usage_settled_records",
        "Records of responses that are over and not in the database yet.",
        value=usage.settled,
    )
    yield _counter(
        "turnwire_usage_closed_records",
        "Records that were closed, those of crashed processes as interrupted.",
        ("status",),
        {(status,): count for status, count in usage.closed.items()},
    )
    yield _counter(
        "turnwire_usage_write_failures",
        "Writes of usage that failed, to the journal or to the database.",
        ("where",),
        {("journal",): usage.journal_failures, ("database",): usage.table_failures},
    )
    backlog = GaugeMetricFamily(
        "turnwire_usage_export_backlog", "Records that wait to be exported.", labels=["sink"]
    )
    for sink, levels in usage.exports.items():
        backlog.add_metric([sink], levels.backlog)
    yield backlog
    yield _counter(
        "turnwire_usage_exported_records",
        "Records that were exported.",
        ("sink",),
        {(sink,): levels.delivered for sink, levels in usage.exports.items()},
    )
    yield _counter(
        "turnwire_usage_export_failures",
        "Attempts to export a record that failed.",
        ("sink",),
        {(sink,): levels.failures for sink, levels in usage.exports.items()},
    )


def _counter(
    name: str, what: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], int]
) -> Metric:
    family = CounterMetricFamily(name, what, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def _histogram(
    name: str, what: str, labels: tuple[str, ...], histograms: Mapping[tuple[str, ...], _Histogram]
) -> Metric:
    family = HistogramMetricFamily(name, what, labels=labels)
    for values, histogram in histograms.items():
        family.add_metric(values, histogram.buckets(), histogram.total)
    return family
