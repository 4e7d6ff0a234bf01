"""Live messages with what their records say: headers, bodies, why they are dead letters.

Owns the way from a live place back to its record. Must never start a job. Called by the jobs and
the report.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from vespiary_pipeline.schema import DEAD_LETTERS
from vespiary_pipeline.transform.counting import by_queue

ORIGINAL_ADDRESS: Final = "_AMQ_ORIG_ADDRESS"
ORIGINAL_QUEUE: Final = "_AMQ_ORIG_QUEUE"
ORIGINAL_DELIVERIES: Final = "_AMQ_ORIG_DELIVERIES"
ACTUAL_EXPIRY: Final = "_AMQ_ACTUAL_EXPIRY"
"""Headers of moved messages (docs/howto/dead-letters.md)."""


def messages(records: DataFrame, live: DataFrame, *names: str) -> DataFrame:
    """Return live places with columns of their ADD records.

    Args:
        records: `schema.RECORDS` of the message journal, and of its pages for what stands in them.
            Fewer than all are well: places whose records are not there are left out.
        live: `schema.LIVE`.
        names: Columns of the records that are wanted, none of which `live` has.

    Returns:
        The columns of `live` and these.
    """
    adds = records.where(F.col("kind") == "ADD")
    in_journal = adds.where(F.col("journal") == "message").select("position", *names)
    in_pages = (
        adds.where(F.col("journal") == "page")
        .select(F.col("file_id").alias("page_id"), F.inline("places"), *names)
        .drop("number")
    )
    columns = [*live.columns, *names]
    standing = live.where(F.col("page_id").isNull()).join(in_journal, on="position")
    paged = live.join(in_pages, on=["page_id", "queue_id", "sequence"])
    return standing.select(*columns).unionByName(paged.select(*columns))


def dead_letters(records: DataFrame, live: DataFrame) -> DataFrame:
    """Return the live messages that were moved to where they are, by origin and reason.

    Args:
        records: As for `messages`, with `properties`.
        live: `schema.LIVE`.

    Returns:
        `schema.DEAD_LETTERS`.
    """
    properties = F.col("properties")
    moved = records.where(properties[ORIGINAL_ADDRESS].isNotNull())
    reason = (
        F.when(properties[ACTUAL_EXPIRY].isNotNull(), "expired")
        .when(properties[ORIGINAL_QUEUE].isNull(), "no_route")
        .when(properties[ORIGINAL_DELIVERIES].isNotNull(), "deliveries")
        .otherwise("moved")
    )
    found = messages(moved, live, "properties").select(
        "*",
        properties[ORIGINAL_ADDRESS].alias("original_address"),
        properties[ORIGINAL_QUEUE].alias("original_queue"),
        reason.alias("reason"),
    )
    counts = {
        "messages": F.count("*"),
        "body_bytes": F.sum("body_bytes"),
        "oldest": F.min("arrival"),
    }
    return by_queue(found, counts, DEAD_LETTERS, "original_address", "original_queue", "reason")
