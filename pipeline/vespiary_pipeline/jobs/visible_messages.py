"""Which messages of a journal an export takes: DataFrame in, DataFrame out.

Owns: when a message became visible, which copies of it are passed over, and what of it goes into
the files. Must never start a job or read a file. Called by `exporting`.

A message is visible from its ADD record on, a member of a transaction from the COMMIT on. So
when an export has taken all up to a position, and the next one takes what became visible behind it,
nothing is missing and nothing there twice: a member far before that position, whose COMMIT came
late, included.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the field's own name for it)

from vespiary_pipeline.transform import transactions

VISIBLE: Final = "visible_position"
PARTITIONS: Final = ("address", "day")
READ: Final = (
    "journal",
    "path",
    "file_id",
    "offset",
    "position",
    "kind",
    "flags",
    "length",
    "transaction",
    "page_id",
    "places",
    "members",
    "digest",
    "crc",
    "gaps",
    "after_gap",
    "address",
    "queues",
    "arrival",
    "expires",
    "priority",
    "protocol",
    "large",
    "properties",
    "body_bytes",
)
"""Columns of `schema.RECORDS` that `visible` reads; with bodies also `body`."""

WRITTEN: Final = (
    "places",
    "queues",
    "arrival",
    "expires",
    "priority",
    "protocol",
    "large",
    "properties",
    "body_bytes",
    "file_id",
    "offset",
    "position",
    "transaction",
)
"""Columns of the files, besides `visible_position`, `address`, `day` and, with bodies, `body`."""

_FLAG_MOVED: Final = 8
"""The record is a copy that compaction made of an earlier one (journal-format §3.1)."""
_DAY_US: Final = 86_400_000_000


def visible(records: DataFrame, after: int, exported: DataFrame | None = None) -> DataFrame:
    """Return the messages that became visible behind a position, each once.

    Args:
        records: `schema.RECORDS`, at least `READ`, of one message journal and its kept copies; of
            the earliest member of a transaction that was undecided at `after`, or earlier, on.
        after: Position up to which all were taken; -1 takes all.
        exported: What was taken: `places` and `position`. None: nothing.

    Returns:
        The records, with `visible_position`.
    """
    is_message = (F.col("journal") == "message") & (F.col("kind") == "ADD")
    adds = records.where(is_message)
    committed = (
        transactions(records)
        .where(F.col("outcome") == "committed")
        .select(
            "transaction",
            F.col("first_position").alias("_first"),
            F.col("end_position").alias("_end"),
        )
    )
    alone = adds.where(~_is_member()).withColumn(VISIBLE, F.col("position"))
    joined = adds.where(_is_member()).join(committed, on="transaction")
    members = joined.where(F.col("position").between(F.col("_first"), F.col("_end"))).withColumn(
        VISIBLE, F.col("_end")
    )
    all_visible = alone.unionByName(members.drop("_first", "_end"))
    return _without_copies(all_visible.where(F.col(VISIBLE) > after), all_visible, exported)


def undecided_from(records: DataFrame) -> DataFrame:
    """Return one row with `scan_from`: where the first undecided transaction begins, else null.

    Args:
        records: As for `visible`.
    """
    is_open = F.col("outcome").isin("open", "prepared")
    return transactions(records).agg(
        F.min(F.when(is_open, F.col("first_position"))).alias("scan_from")
    )


def written(messages: DataFrame, *, has_bodies: bool) -> DataFrame:
    """Return what goes into the files: columns in order, the day of arrival in UTC, and sorted.

    Args:
        messages: From `visible`.
        has_bodies: Whether with `body`.
    """
    days = F.floor(F.unix_micros("arrival") / F.lit(_DAY_US)).cast("int")
    body = ("body",) if has_bodies else ()
    chosen = messages.select(
        VISIBLE,
        *WRITTEN,
        *body,
        "address",
        F.date_from_unix_date(days).alias("day"),
    )
    # Files of a good size for each folder, also where one address has nearly all messages.
    return chosen.hint("rebalance", *PARTITIONS).sortWithinPartitions(*PARTITIONS, VISIBLE)


def _is_member() -> Column:
    return F.coalesce(F.col("transaction"), F.lit(0)) != 0


def _without_copies(
    taken: DataFrame, all_visible: DataFrame, exported: DataFrame | None
) -> DataFrame:
    """Leave out what compaction copied from a record that is taken now, or was.

    A place belongs to one message for ever, and a copy has no place that its original has not.
    """
    moved = taken.where(F.col("flags").bitwiseAND(_FLAG_MOVED) != 0)
    copies = moved.select(
        F.col("position").alias("_copy"), F.inline("places").alias("queue_id", "sequence", "number")
    ).drop("number")
    held = all_visible.select("position", "places")
    if exported is not None:
        held = held.unionByName(exported.select("position", "places"))
    originals = held.select(
        "position", F.inline("places").alias("queue_id", "sequence", "number")
    ).drop("number")
    known = originals.join(F.broadcast(copies), on=["queue_id", "sequence"]).where(
        F.col("position") < F.col("_copy")
    )
    doubled = known.select(F.col("_copy").alias("position")).distinct()
    return taken.join(F.broadcast(doubled), on="position", how="left_anti")
