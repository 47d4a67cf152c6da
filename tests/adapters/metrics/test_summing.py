from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from turnwire_server.adapters.metrics.prometheus import PrometheusMetrics
from turnwire_server.adapters.metrics.summing import sum_expositions
from turnwire_server.ports.metrics import Levels, TurnFacts


def shown(turns: int, *, model: str = "m", seconds: float = 0.002, running: int = 0) -> bytes:
    """What a process shows."""
    metrics = PrometheusMetrics()
    for _ in range(turns):
        metrics.turn_ended(
            TurnFacts(model, "completed", "grpc", output_tokens=5, stages={"render": seconds})
        )
    levels = Levels({"grpc": 3}, running=running, queued=0, dropped={}, restarts={})
    return metrics.exposition(levels).body


def values(body: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_counters_gauges_and_histograms_of_the_living_are_added() -> None:
    one, other = shown(2, running=1), shown(3, seconds=0.2, running=4)
    added = values(sum_expositions([one, other]).body)
    turns = (("model", "m"), ("status", "completed"), ("transport", "grpc"))
    assert added["turnwire_turns_total", turns] == 5
    assert added["turnwire_turns_running", ()] == 5
    assert added["turnwire_connections", (("transport", "grpc"),)] == 6
    assert added["turnwire_workers", ()] == 2
    stage = (("model", "m"), ("stage", "render"))
    assert added["turnwire_turn_stage_seconds_count", stage] == 5
    assert round(added["turnwire_turn_stage_seconds_sum", stage], 6) == 0.604
    bucket = "turnwire_turn_stage_seconds_bucket"
    by_bound = {
        dict(labels)["le"]: value for (name, labels), value in added.items() if name == bucket
    }
    assert (by_bound["0.0025"], by_bound["0.25"], by_bound["+Inf"]) == (2, 5, 5)


def test_what_only_one_has_is_there() -> None:
    added = values(sum_expositions([shown(1, model="a"), shown(2, model="b")]).body)
    for model, count in (("a", 1), ("b", 2)):
        labels = (("model", model), ("status", "completed"), ("transport", "grpc"))
        assert added["turnwire_turns_total", labels] == count


def test_the_dead_count_and_are_not_there() -> None:
    added = values(sum_expositions([shown(1)], [shown(2, running=7)]).body)
    turns = (("model", "m"), ("status", "completed"), ("transport", "grpc"))
    assert added["turnwire_turns_total", turns] == 3
    assert added["turnwire_turns_running", ()] == 0
    assert added["turnwire_workers", ()] == 1


def test_what_processes_share_is_not_added() -> None:
    one = b"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 100\n"
    other = b"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 200\n"
    assert values(sum_expositions([other, one]).body) == {("process_start_time_seconds", ()): 100}
    backlog = (
        b"# TYPE turnwire_usage_export_backlog gauge\n"
        b'turnwire_usage_export_backlog{sink="file"} %d\n'
    )
    added = values(sum_expositions([backlog % 4, backlog % 6]).body)
    assert added == {("turnwire_usage_export_backlog", (("sink", "file"),)): 6}


def test_a_sum_can_be_added_again() -> None:
    one = sum_expositions([shown(1), shown(1)]).body
    assert values(sum_expositions([one, shown(1)]).body)["turnwire_workers", ()] == 3
