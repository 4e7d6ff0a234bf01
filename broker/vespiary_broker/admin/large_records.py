"""What the API shows of large messages, and their metrics.

Owns the names. Must never hold logic. Used by `records` and `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vespiary_broker.admin.journal_records import Record

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class LargeMessages(Record, frozen=True):
    """Messages whose bodies stand in files of their own.

    Attributes:
        live: Bodies that messages refer to.
        live_bytes: Their size.
        damaged: Live bodies whose file is missing, or of another size or checksum.
        receiving: Bodies that are being received.
        waiting: Bodies of these that wait for room on a full disk.
        received: Bodies received.
        received_bytes: Their size.
        delivered: Bodies sent whole to consumers.
        delivered_bytes: Their size.
        removed: Files removed because nobody needed them any more.
        swept: Files without a message that the start removed.
        removals_failed: Files that could not be removed.
    """

    live: int
    live_bytes: int
    damaged: int
    receiving: int
    waiting: int
    received: int
    received_bytes: int
    delivered: int
    delivered_bytes: int
    removed: int
    swept: int
    removals_failed: int


def metrics_of(large: LargeMessages, prefix: str) -> Iterator[Metric]:
    """Yield the metrics.

    Args:
        large: The figures.
        prefix: Beginning of their names.
    """
    # A broker starts without it: only a scrape pays for the import.
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, text, value in (
        ("live", "Large bodies that messages refer to.", large.live),
        ("live_bytes", "Size of the large bodies that messages refer to.", large.live_bytes),
        ("damaged", "Live large bodies whose file is lost or damaged.", large.damaged),
        ("receiving", "Large bodies that are being received.", large.receiving),
        ("waiting", "Large bodies that wait for room on a full disk.", large.waiting),
    ):
        yield GaugeMetricFamily(f"{prefix}_large_messages_{name}", text, value=value)
    for name, text, value in (
        ("received", "Large bodies received.", large.received),
        ("received_bytes", "Bytes of large bodies received.", large.received_bytes),
        ("delivered", "Large bodies sent whole to consumers.", large.delivered),
        ("delivered_bytes", "Bytes of large bodies sent whole.", large.delivered_bytes),
        ("removed", "Files removed that nobody needed any more.", large.removed),
        ("swept", "Files of no message that the start removed.", large.swept),
        ("removals_failed", "Files that could not be removed.", large.removals_failed),
    ):
        yield CounterMetricFamily(f"{prefix}_large_messages_{name}", text, value=value)
