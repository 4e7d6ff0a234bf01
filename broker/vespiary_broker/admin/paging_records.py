"""What the API shows of paging, and its metrics.

Owns the names. Must never hold logic. Used by `records` and `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vespiary_broker.admin.journal_records import Record

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class Paging(Record, frozen=True):
    """Messages that were moved out of memory into page files.

    Attributes:
        pages: Pages that hold messages.
        pages_bytes: Size of their files.
        open_pages: Pages whose messages have their places in memory.
        addresses: Addresses that have pages.
        written: Pages written.
        written_bytes: Their size.
        opened: Pages opened for a queue.
        removed: Pages removed.
        removals_failed: Pages that could not be removed; the next start tries again.
        failures: Pages that could not be written.
        damaged: Pages that can't be read.
        waiting_queues: Queues that get no page before more of those open is acknowledged.
        blocked_reason: Why no page can be written now; empty if it can.
    """

    pages: int
    pages_bytes: int
    open_pages: int
    addresses: int
    written: int
    written_bytes: int
    opened: int
    removed: int
    removals_failed: int
    failures: int
    damaged: int
    waiting_queues: int
    blocked_reason: str


def metrics_of(paging: Paging, prefix: str) -> Iterator[Metric]:
    """Yield the metrics.

    Args:
        paging: The figures.
        prefix: Beginning of their names.
    """
    # A broker starts without it: only a scrape pays for the import.
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, text, value in (
        ("pages", "Page files that hold messages.", paging.pages),
        ("pages_bytes", "Size of the page files.", paging.pages_bytes),
        ("open_pages", "Pages whose messages have places in memory.", paging.open_pages),
        ("folders", "Addresses that have pages: each has a folder.", paging.addresses),
        ("damaged", "Pages that can't be read.", paging.damaged),
        (
            "waiting_queues",
            "Queues that get no page before more is acknowledged: max-read-page-* is reached.",
            paging.waiting_queues,
        ),
        ("blocked", "1 while no page can be written.", int(bool(paging.blocked_reason))),
    ):
        yield GaugeMetricFamily(f"{prefix}_paging_{name}", text, value=value)
    for name, text, value in (
        ("written", "Pages written.", paging.written),
        ("written_bytes", "Bytes of pages written.", paging.written_bytes),
        ("opened", "Pages opened for a queue.", paging.opened),
        ("removed", "Pages removed.", paging.removed),
        ("removals_failed", "Pages that could not be removed.", paging.removals_failed),
        ("failures", "Pages that could not be written.", paging.failures),
    ):
        yield CounterMetricFamily(f"{prefix}_paging_{name}", text, value=value)
