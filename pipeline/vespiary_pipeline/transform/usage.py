"""What keeps each file of a message journal: live messages and dead ones by cause.

Owns why a record is dead. Must never start a job. Called by the jobs and the report.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from vespiary_pipeline.schema import USAGE
from vespiary_pipeline.transform import outcomes
from vespiary_pipeline.transform.counting import as_table
from vespiary_pipeline.transform.settling import is_transactional, settled

_CAUSES: Final = ("ended", "superseded", "paged", "void")


def usage(files: DataFrame, records: DataFrame, live: DataFrame) -> DataFrame:
    """Return what lives in each file, what is dead there and why, and what keeps it.

    Args:
        files: `schema.FILES`; those of other journals, and without blocks, are passed over.
        records: `schema.RECORDS` of the message journal, with the columns of
            `live.RECORD_COLUMNS`.
        live: `schema.LIVE` of these records, in all states.

    Returns:
        `schema.USAGE`.
    """
    decided = settled(records).select("family", "id", "outcome", "begin_position", "end_position")
    used = files.where((F.col("journal") == "message") & (F.col("blocks") > 0))
    kept = (
        used.select("path", "file_id", "size_bytes", "used_bytes")
        .join(_messages(records, live, decided), on="file_id", how="left_outer")
        .join(_others(records, decided), on="file_id", how="left_outer")
    )
    numbers = ["live_places", "live_bytes", "branches", "pages"]
    numbers += [f"{cause}_bytes" for cause in _CAUSES]
    whole = kept.fillna(0, numbers)
    is_empty = (F.col("live_places") == 0) & (F.col("branches") == 0) & (F.col("pages") == 0)
    ratio = F.col("live_bytes") / F.when(F.col("used_bytes") > 0, F.col("used_bytes"))
    return as_table(whole.withColumns({"live_ratio": ratio, "empty": is_empty}), USAGE)


def _messages(records: DataFrame, live: DataFrame, decided: DataFrame) -> DataFrame:
    """Return by file what lives there, and the bytes of what is dead by cause."""
    adds = records.where((F.col("journal") == "message") & (F.col("kind") == "ADD"))
    share = F.floor(F.col("length") / F.size("places")).cast("bigint").alias("share_bytes")
    names = ("file_id", "position", "arrival", "transaction")
    places = adds.select(F.inline("places"), share, *names).drop("number")
    held = live.select(
        "queue_id", "sequence", "queue", "page_id", F.col("position").alias("live_position")
    ).withColumn("is_held", F.lit(True))
    transactions = (
        decided.where(F.col("family") == outcomes.TRANSACTION)
        .select(F.col("id").alias("transaction"), "outcome")
        .where(~F.col("outcome").isin(outcomes.COMMITTED, outcomes.PREPARED))
    )
    void = transactions.groupBy("transaction").agg(F.first("outcome").alias("outcome"))
    seen = places.join(held, on=["queue_id", "sequence"], how="left_outer").join(
        void, on="transaction", how="left_outer"
    )
    cause = (
        F.when(F.col("live_position") == F.col("position"), "live")
        .when(F.col("outcome").isNotNull(), "void")
        .when(F.col("page_id").isNotNull(), "paged")
        .when(F.col("is_held"), "superseded")
        .otherwise("ended")
    )
    return seen.withColumn("cause", cause).groupBy("file_id").agg(*_sums())


def _sums() -> list[Column]:
    is_live = F.col("cause") == "live"
    oldest = F.min(
        F.when(is_live, F.struct("arrival", "position", "queue_id", "queue", "sequence"))
    )
    sums = {
        "live_places": F.count_if(is_live),
        "live_bytes": F.sum(F.when(is_live, F.col("share_bytes"))),
        "pinned_queue_id": oldest["queue_id"],
        "pinned_queue": oldest["queue"],
        "pinned_sequence": oldest["sequence"],
        "pinned_since": oldest["arrival"],
    }
    for cause in _CAUSES:
        sums[f"{cause}_bytes"] = F.sum(F.when(F.col("cause") == cause, F.col("share_bytes")))
    return [column.alias(name) for name, column in sums.items()]


def _others(records: DataFrame, decided: DataFrame) -> DataFrame:
    """Return by file the records of branches in doubt, and the PAGE records that count."""
    is_page = F.col("kind") == "PAGE"
    chosen = records.where((F.col("journal") == "message") & (is_page | is_transactional())).select(
        "file_id",
        "position",
        F.when(is_page, outcomes.PAGE)
        .otherwise(outcomes.TRANSACTION)
        .cast("tinyint")
        .alias("family"),
        F.when(is_page, F.col("page_id")).otherwise(F.col("transaction")).alias("id"),
    )
    is_branch = (F.col("outcome") == outcomes.PREPARED) & (
        F.col("position") >= F.col("begin_position")
    )
    is_current = (F.col("outcome") == outcomes.CURRENT) & (
        F.col("position") == F.col("end_position")
    )
    return (
        chosen.join(decided, on=["family", "id"])
        .groupBy("file_id")
        .agg(F.count_if(is_branch).alias("branches"), F.count_if(is_current).alias("pages"))
    )
