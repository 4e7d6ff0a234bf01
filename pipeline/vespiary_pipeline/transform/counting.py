"""Live messages counted by queue: how many, how old, how large, how often given out.

Owns what is counted in which class. Must never start a job. Called by the jobs and the report.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from vespiary_pipeline.schema import DEPTH, HISTOGRAM, REDELIVERED, Table

AGES_S: Final = (0, 1, 10, 60, 600, 3600, 21_600, 86_400, 604_800, 2_592_000)
"""Where classes of ages begin, seconds: up to a minute, an hour, a day, a week, a month."""

SIZES: Final = (0, 1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 24, 1 << 28)
"""Where classes of sizes begin, bytes."""

_QUEUE: Final = ("queue_id", "queue")


def depth(live: DataFrame) -> DataFrame:
    """Return what waits in each queue.

    Args:
        live: `schema.LIVE`.

    Returns:
        `schema.DEPTH`.
    """
    is_there = F.col("state") != "prepared"
    counts = {
        "messages": F.count_if(is_there),
        "locked": F.count_if(F.col("state") == "locked"),
        "paged": F.count_if(is_there & F.col("page_id").isNotNull()),
        "prepared": F.count_if(~is_there),
        "body_bytes": F.sum("body_bytes"),
        "oldest": F.min("arrival"),
        "oldest_file": F.min("file_id"),
    }
    return by_queue(live, counts, DEPTH)


def ages(live: DataFrame, now: datetime.datetime | None = None) -> DataFrame:
    """Return how many messages are how old.

    Args:
        live: `schema.LIVE`.
        now: Up to when they age, aware; None: up to when the query runs. What came later is of the
            first class, as clocks differ. Messages of unknown age are left out.

    Returns:
        `schema.HISTOGRAM` of seconds, in the classes of `AGES_S`.
    """
    until = F.current_timestamp() if now is None else F.lit(now).cast("timestamp")
    age_s = F.unix_seconds(until) - F.unix_seconds("arrival")
    return _histogram(live, F.greatest(age_s, F.lit(0)), AGES_S)


def sizes(live: DataFrame) -> DataFrame:
    """Return how many messages are how large.

    Args:
        live: `schema.LIVE`. Messages of unknown size are left out.

    Returns:
        `schema.HISTOGRAM` of bytes of the bodies, in the classes of `SIZES`.
    """
    return _histogram(live, F.col("body_bytes"), SIZES)


def redelivered(live: DataFrame, at_least: int = 1) -> DataFrame:
    """Return where messages come back again and again.

    Args:
        live: `schema.LIVE`.
        at_least: How often a message was given out to count.

    Returns:
        `schema.REDELIVERED`.
    """
    counts = {
        "messages": F.count("*"),
        "deliveries": F.sum("deliveries"),
        "most": F.max("deliveries"),
        "most_sequence": F.max_by("sequence", "deliveries"),
    }
    return by_queue(live.where(F.col("deliveries") >= at_least), counts, REDELIVERED)


def by_queue(rows: DataFrame, counts: dict[str, Column], table: Table, *further: str) -> DataFrame:
    """Return counts by queue, as a table has them.

    Args:
        rows: With `queue_id`, `queue` and `address`.
        counts: Aggregates by their column.
        table: Names and types of the result.
        further: Columns to group by besides.
    """
    # Messages of one queue may name several destinations: one of them stands for the queue.
    named = {"address": F.min("address"), **counts}
    grouped = rows.groupBy(*_QUEUE, *further).agg(
        *(column.alias(name) for name, column in named.items())
    )
    return as_table(grouped, table)


def as_table(rows: DataFrame, table: Table) -> DataFrame:
    """Return the columns of a table, in its order and of its types."""
    return rows.select(*(F.col(c.name).cast(c.spark).alias(c.name) for c in table.columns))


def _histogram(live: DataFrame, value: Column, classes: Sequence[int]) -> DataFrame:
    low = high = F.lit(None).cast("bigint")
    for begin, end in zip(classes, [*classes[1:], None], strict=True):
        low = F.when(F.col("value") >= begin, begin).otherwise(low)
        high = F.when(F.col("value") >= begin, F.lit(end).cast("bigint")).otherwise(high)
    known = live.withColumn("value", value).where(F.col("value").isNotNull())
    counts = {"messages": F.count("*"), "body_bytes": F.sum("body_bytes")}
    return by_queue(known.withColumns({"low": low, "high": high}), counts, HISTOGRAM, "low", "high")
