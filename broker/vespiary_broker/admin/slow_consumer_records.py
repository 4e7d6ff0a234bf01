"""Slow consumers on their way to the metrics.

Owns the record and its metrics. Must never hold state. Called by `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from vespiary_broker.admin.journal_records import Record


class SlowConsumers(Record, frozen=True):
    """Consumers that were found to be slow.

    Attributes:
        detected: Periods in which a consumer was slow, since the start.
        killed: Connections that were ended for it since the start.
    """

    detected: int
    killed: int


def metrics_of(slow_consumers: SlowConsumers, prefix: str) -> Iterator[Metric]:
    """Yield the metrics."""
    yield CounterMetricFamily(
        f"{prefix}_slow_consumers",
        "Periods in which a consumer acknowledged less than slow-consumer-threshold asks for.",
        value=slow_consumers.detected,
    )
    yield CounterMetricFamily(
        f"{prefix}_slow_consumers_killed",
        "Connections ended because a consumer was slow and slow-consumer-policy is KILL.",
        value=slow_consumers.killed,
    )
