"""The metrics of several processes as those of one server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from turnwire_server.ports.metrics import Exposition

__all__ = ["sum_expositions"]

_LEAST: Final = frozenset({"process_start_time_seconds"})
"""Of these the least one is the server's."""
_MOST: Final = frozenset({"turnwire_usage_export_backlog", "process_max_fds"})
"""Of these the greatest one is: all processes tell the same of what they share."""
_GROWING: Final = frozenset({"counter", "histogram", "summary"})
"""Types that only grow: what a dead process counted still happened."""


class _Fixed(Collector):
    """Families that are there already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield them; called by the library."""
        yield from self._families


def sum_expositions(living: Sequence[bytes], past: Sequence[bytes] = ()) -> Exposition:
    """Add up what processes show; takes some milliseconds for each.

    Args:
        living: Metrics of processes that live, in Prometheus' text format.
        past: The last ones of processes that do not: what they counted, not how they were.
    """
    families: dict[str, Metric] = {}
    sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for body, is_past in (*((one, False) for one in living), *((one, True) for one in past)):
        for family in text_string_to_metric_families(body.decode()):
            if is_past and family.type not in _GROWING:
                continue
            families.setdefault(family.name, family)
            values = sums.setdefault(family.name, {})
            for sample in family.samples:
                key = sample.name, tuple(sample.labels.items())
                values[key] = _joined(family.name, values.get(key), sample.value)
    for name, family in families.items():
        family.samples = []
        for (sample_name, labels), value in sums[name].items():
            family.add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry()
    registry.register(_Fixed(families.values()))
    return Exposition(CONTENT_TYPE_LATEST, generate_latest(registry))


def _joined(name: str, before: float | None, value: float) -> float:
    if before is None:
        return value
    if name in _LEAST:
        return min(before, value)
    return max(before, value) if name in _MOST else before + value
