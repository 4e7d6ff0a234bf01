"""What has a name, and how much more may, on its way to the metrics.

Owns the record and its metrics. Must never hold state. Called by `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vespiary_broker.admin.journal_records import Record


class Naming(Record, frozen=True):
    """Limits of addresses and queues, and what went by itself.

    Attributes:
        addresses_max: Most addresses; 0 for any number.
        queues_max: Most queues; 0 for any number.
        refused: Addresses, queues, subscriptions and sessions that were refused since the start.
        permissions_refused: How often a user lacked a permission since the start.
        permissions_withheld: Messages that subscribers of wildcards did not get since the start,
            for their users may not consume them.
        throttled: How often a connection was not read for a while since the start: its user sent
            too fast.
        addresses_deleted: Addresses that scans have deleted since the start.
        queues_deleted: Queues that scans have deleted since the start.
    """

    addresses_max: int
    queues_max: int
    refused: int
    permissions_refused: int
    permissions_withheld: int
    throttled: int
    addresses_deleted: int
    queues_deleted: int


def metrics_of(naming: Naming, prefix: str) -> Iterator[Metric]:
    """Yield the metrics."""
    for name, text, value in (
        (
            "addresses_max",
            "Most addresses that there may be; 0 is any number.",
            naming.addresses_max,
        ),
        ("queues_max", "Most queues that there may be; 0 is any number.", naming.queues_max),
    ):
        yield GaugeMetricFamily(f"{prefix}_{name}", text, value=value)
    for name, text, value in (
        (
            "limits_refused",
            "Addresses, queues, subscriptions and sessions refused because of a limit.",
            naming.refused,
        ),
        (
            "permissions_refused",
            "What was refused because a user lacked a permission.",
            naming.permissions_refused,
        ),
        (
            "permissions_withheld",
            "Messages that subscribers of wildcards did not get: their users may not consume them.",
            naming.permissions_withheld,
        ),
        (
            "reads_throttled",
            "Connections not read for a while because their user sent too fast.",
            naming.throttled,
        ),
        (
            "addresses_auto_deleted",
            "Addresses that scans for unused ones deleted.",
            naming.addresses_deleted,
        ),
        (
            "queues_auto_deleted",
            "Queues that scans for unused ones deleted.",
            naming.queues_deleted,
        ),
    ):
        yield CounterMetricFamily(f"{prefix}_{name}", text, value=value)
