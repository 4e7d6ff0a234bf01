"""`log-journal-write-rate`: what the journal took in the last second, as a line of the log.

Owns: the differences between two readings of the counters. Must never touch the journal: it reads
the frozen statistics that metrics read too. Called by `app`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from vespiary_broker.store.counters import JournalStatistics

logger = logging.getLogger(__name__)

PERIOD_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRates:
    """What one journal took in a period.

    Attributes:
        writes_per_s: Writes that ended well, each with its flush (class D2).
        records_per_s: Records added.
        bytes_per_s: Bytes written, padding included.
        records_per_write: Size of a group commit.
        write_us: Mean time of a write from submission to completion, in microseconds.
    """

    writes_per_s: float
    records_per_s: float
    bytes_per_s: float
    records_per_write: float
    write_us: float


def rates_between(
    before: JournalStatistics, after: JournalStatistics, elapsed_s: float
) -> WriteRates | None:
    """Return the rates between two readings; None if nothing was written.

    Args:
        before: The older reading.
        after: The newer reading.
        elapsed_s: Seconds between them, above 0.
    """
    writes = after.writes - before.writes
    if not writes:
        return None
    records = after.records - before.records
    return WriteRates(
        writes_per_s=writes / elapsed_s,
        records_per_s=records / elapsed_s,
        bytes_per_s=(after.written_bytes - before.written_bytes) / elapsed_s,
        records_per_write=records / writes,
        write_us=(after.flush_sum_us - before.flush_sum_us) / writes,
    )


async def log_write_rates(
    statistics: Callable[[], JournalStatistics], *, period_s: float = PERIOD_S
) -> None:
    """Log the rates of every period in which something was written, until cancelled.

    Args:
        statistics: Reads the counters.
        period_s: Seconds between two lines.
    """
    before, before_s = statistics(), time.monotonic()
    while True:
        await asyncio.sleep(period_s)
        after, after_s = statistics(), time.monotonic()
        rates = rates_between(before, after, after_s - before_s)
        if rates is not None:
            logger.info(
                "journal writes/s=%.0f flushes/s=%.0f records/s=%.0f bytes/s=%.0f "
                "records/write=%.1f write_us=%.0f",
                rates.writes_per_s,
                rates.writes_per_s if after.durability == "D2" else 0.0,
                rates.records_per_s,
                rates.bytes_per_s,
                rates.records_per_write,
                rates.write_us,
            )
        before, before_s = after, after_s
