"""What is counted is what Prometheus reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from turnwire_server.adapters.metrics.prometheus import PrometheusMetrics
from turnwire_server.ports.metrics import ExportLevels, Levels, TurnFacts, UsageLevels

NOTHING = Levels(connections={}, running=0, queued=0, dropped={}, restarts={})


def samples(metrics: PrometheusMetrics, levels: Levels = NOTHING) -> dict[tuple, float]:
    text = metrics.exposition(levels).body.decode()
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def facts(**changes) -> TurnFacts:
    plain = {
        "model": "m",
        "status": "completed",
        "transport": "grpc",
        "input_tokens": 100,
        "cached_tokens": 80,
        "output_tokens": 7,
        "rendered_tokens": 20,
    }
    return TurnFacts(**{**plain, **changes})


def test_turns_are_counted_by_model_status_and_transport():
    metrics = PrometheusMetrics()
    metrics.turn_ended(facts())
    metrics.turn_ended(facts())
    metrics.turn_ended(facts(status="failed", transport="http"))
    found = samples(metrics)
    assert found["turnwire_turns_total", "m", "completed", "grpc"] == 2
    assert found["turnwire_turns_total", "m", "failed", "http"] == 1


def test_each_turn_is_counted_once_whenever_somebody_asks():
    metrics = PrometheusMetrics()
    for number in range(1, 70):
        metrics.turn_ended(facts())
        if number % 7 == 0 or number > 64:
            assert samples(metrics)["turnwire_turns_total", "m", "completed", "grpc"] == number


def test_tokens_are_added_by_kind():
    metrics = PrometheusMetrics()
    metrics.turn_ended(facts())
    metrics.turn_ended(facts(reasoning_tokens=3))
    found = samples(metrics)
    kinds = {"input": 200, "cached": 160, "output": 14, "rendered": 40, "reasoning": 3}
    assert {kind: found["turnwire_tokens_total", kind, "m"] for kind in kinds} == kinds


@pytest.mark.parametrize(
    ("reason", "counted"), [("", False), ("first", False), ("tools", True), ("store", True)]
)
def test_only_what_had_to_be_rendered_again_counts_as_such(reason, counted):
    metrics = PrometheusMetrics()
    metrics.turn_ended(facts(rerender_reason=reason))
    found = samples(metrics).get(("turnwire_rerendered_tokens_total", "m", reason))
    assert found == (20 if counted else None)


def test_overhead_is_every_stage_but_those_of_inference():
    metrics = PrometheusMetrics()
    stages = {"queue": 0.25, "render": 0.5, "prefill": 8.0, "decode": 16.0}
    metrics.turn_ended(facts(stages=stages))
    found = samples(metrics)
    assert found["turnwire_turn_overhead_seconds_sum", "m"] == 0.75
    assert found["turnwire_turn_stage_seconds_sum", "m", "decode"] == 16.0
    assert found["turnwire_turn_stage_seconds_count", "m", "queue"] == 1
    # A turn that was refused had no stages worth a place in the distribution.
    metrics.turn_ended(TurnFacts("", "refused", "grpc"))
    assert samples(metrics)["turnwire_turn_overhead_seconds_count", "m"] == 1


def test_audits_are_counted_by_outcome():
    metrics = PrometheusMetrics()
    metrics.audited("m", "mismatch")
    assert samples(metrics)["turnwire_audits_total", "m", "mismatch"] == 1


def test_levels_are_those_of_the_moment():
    metrics = PrometheusMetrics()
    levels = Levels(
        connections={"grpc": 2},
        running=1,
        queued=3,
        dropped={"evicted": 4, "expired": 5},
        restarts={"m": 6},
        tasks=7,
    )
    found = samples(metrics, levels)
    assert found["turnwire_tasks",] == 7
    assert found["turnwire_connections", "grpc"] == 2
    assert found["turnwire_turns_running",] == 1
    assert found["turnwire_creates_queued",] == 3
    assert found["turnwire_responses_dropped_total", "evicted"] == 4
    assert found["turnwire_responses_dropped_total", "expired"] == 5
    assert found["turnwire_engine_restarts_total", "m"] == 6
    assert samples(metrics)["turnwire_turns_running",] == 0


def test_two_servers_of_one_process_count_apart():
    one, other = PrometheusMetrics(), PrometheusMetrics()
    one.turn_ended(facts())
    assert ("turnwire_turns_total", "m", "completed", "grpc") not in samples(other)


def test_usage_is_shown_where_a_ledger_tells_of_it():
    metrics = PrometheusMetrics()
    assert not any(name.startswith("turnwire_usage") for name, *_ in samples(metrics))
    exports = {"webhook": ExportLevels("webhook", 3, 4, 5)}
    usage = UsageLevels(1, 2, {"completed": 6, "interrupted": 7}, 8, 9, exports)
    found = samples(metrics, replace(NOTHING, usage=usage))
    assert found["turnwire_usage_open_records",] == 1
    assert found["turnwire_usage_settled_records",] == 2
    assert found["turnwire_usage_closed_records_total", "completed"] == 6
    assert found["turnwire_usage_closed_records_total", "interrupted"] == 7
    assert found["turnwire_usage_write_failures_total", "journal"] == 8
    assert found["turnwire_usage_write_failures_total", "database"] == 9
    assert found["turnwire_usage_export_backlog", "webhook"] == 3
    assert found["turnwire_usage_exported_records_total", "webhook"] == 4
    assert found["turnwire_usage_export_failures_total", "webhook"] == 5
