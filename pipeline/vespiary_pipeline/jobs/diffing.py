"""`diff`: what waits in one broker's files and not in another's.

Owns what is the same: a place (queue and number) with the same message, or, by content, as many
equal messages in a queue, wherever they stand. Compared are the messages that a broker would
recover, with their headers and bodies. Called by the command line.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the field's own name for it)

from vespiary_pipeline.jobs.broker_files import BrokerFiles
from vespiary_pipeline.transform import RECORD_COLUMNS, messages

BY: Final = ("place", "content")
KINDS: Final = ("only_in_a", "only_in_b", "changed", "same")
_READ: Final = ("properties", "body", "error")


def contents(files: BrokerFiles) -> DataFrame:
    """Return each live message's queue, number, and a digest of what it is.

    A body that cannot be read counts by the reason, so it is equal to no body.

    Args:
        files: Where it lives.
    """
    columns = tuple(dict.fromkeys((*RECORD_COLUMNS, *_READ)))
    found = messages(files.records(columns, with_pages=True), files.live(), *_READ)
    lines = F.transform(
        F.array_sort(F.map_entries(F.coalesce("properties", _no_headers()))),
        lambda entry: F.concat_ws("=", entry["key"], entry["value"]),
    )
    parts = (
        F.concat_ws("\n", lines),
        F.coalesce(F.hex("body"), F.concat(F.lit("?"), F.coalesce("error", F.lit("")))),
        F.coalesce(F.col("priority").cast("string"), F.lit("")),
        F.coalesce(F.unix_micros("expires").cast("string"), F.lit("")),
    )
    return found.select(
        F.coalesce("queue", F.concat(F.lit("#"), F.col("queue_id").cast("string"))).alias("queue"),
        "sequence",
        "body_bytes",
        F.sha2(F.concat_ws("\0", *parts), 256).alias("digest"),
    )


def _no_headers() -> Column:
    return F.create_map().cast("map<string,string>")


def differences(left: DataFrame, right: DataFrame, by: str) -> DataFrame:
    """Return a row for each message, and of equal ones in one queue how many; with `kind`.

    Args:
        left: `contents` of the one.
        right: Of the other.
        by: `place` or `content`.

    Returns:
        `queue`, `sequence` (null by content), `kind` (of `KINDS`), `messages`.
    """
    if by == "content":
        return _by_content(left, right)
    joined = left.alias("a").join(right.alias("b"), ["queue", "sequence"], "full_outer")
    kind = (
        F.when(F.col("b.digest").isNull(), "only_in_a")
        .when(F.col("a.digest").isNull(), "only_in_b")
        .when(F.col("a.digest") != F.col("b.digest"), "changed")
        .otherwise("same")
    )
    return joined.select("queue", "sequence", kind.alias("kind"), F.lit(1).alias("messages"))


def _by_content(left: DataFrame, right: DataFrame) -> DataFrame:
    counts = [one.groupBy("queue", "digest").count() for one in (left, right)]
    joined = counts[0].alias("a").join(counts[1].alias("b"), ["queue", "digest"], "full_outer")
    here, there = (F.coalesce(f"{name}.count", F.lit(0)) for name in "ab")
    found = F.array(
        F.struct(F.lit("same").alias("kind"), F.least(here, there).alias("messages")),
        F.struct(F.lit("only_in_a").alias("kind"), (here - there).alias("messages")),
        F.struct(F.lit("only_in_b").alias("kind"), (there - here).alias("messages")),
    )
    rows = joined.select("queue", F.inline(found))
    sequence = F.lit(None).cast("bigint").alias("sequence")
    return rows.where("messages > 0").select("queue", sequence, "kind", "messages")


def by_queue(rows: DataFrame) -> DataFrame:
    """Return how many messages of each kind there are in each queue.

    Args:
        rows: From `differences`.
    """
    counts = rows.groupBy("queue").pivot("kind", list(KINDS)).sum("messages")
    return counts.na.fill(0, list(KINDS)).orderBy("queue")
