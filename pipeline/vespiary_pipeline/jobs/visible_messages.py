"""Which messages of a journal an export takes: DataFrame in, DataFrame out.

Owns: when a message became visible, which copies of it are passed over, and what of it goes into
the files. Must never start a job or read a file. Called by `exporting`.

A message is visible from its ADD record on, a member of a transaction from the COMMIT on. So
when an export has taken all up to a position, and the next one takes what became visible behind it,
nothing is missing and nothing there twice: a member far before that position, whose COMMIT came
late, included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the field's own name for it)

from vespiary_pipeline.jobs.message_columns import FLAG_MOVED, PARTITIONS, VISIBLE, WRITTEN
from vespiary_pipeline.transform import transactions

_PLACE: Final = ("journal", "position", "kind", "flags", "transaction", "places")
_SETTLED: Final = (
    "journal",
    "position",
    "kind",
    "length",
    "transaction",
    "page_id",
    "members",
    "digest",
    "crc",
    "gaps",
    "after_gap",
)
ADDS: Final = {"kinds": "ADD"}
"""Options of the format: records that may be messages."""
_TRANSACTIONAL: Final = {"kinds": "COMMIT,PREPARE,ROLLBACK", "members": "true"}

Read = Callable[[tuple[str, ...], Mapping[str, str]], DataFrame]
"""Returns some columns of `schema.RECORDS` of one message journal and its kept copies, without what
options of the format leave out; from the earliest member of a transaction that was undecided at
`after`, or earlier, on."""

_DAY_US: Final = 86_400_000_000


def settled(read: Read) -> DataFrame:
    """Return what became of each transaction.

    Args:
        read: Reads the journal.
    """
    return transactions(read(_SETTLED, _TRANSACTIONAL))


def visible(
    read: Read,
    columns: tuple[str, ...],
    decided: DataFrame,
    after: int = -1,
    exported: DataFrame | None = None,
    *,
    has_moved: bool = True,
    broadcast: bool = True,
) -> DataFrame:
    """Return the messages that became visible behind a position, each once.

    Args:
        read: Reads the journal. Bodies are read once, and never shuffled for this.
        columns: At least `MESSAGE`.
        decided: From `settled`.
        after: Position up to which all were taken; -1 takes all.
        exported: What was taken: `places` and `position`. None: nothing.
        has_moved: Copies that compaction made are behind `after`.
        broadcast: Every executor gets all transactions that were committed.

    Returns:
        The records, with `visible_position`.
    """
    taken = _visible(read(columns, ADDS), decided, broadcast).where(F.col(VISIBLE) > after)
    if not has_moved:
        return taken
    copies = doubled(read, decided, after, exported, broadcast=broadcast)
    return taken.join(F.broadcast(copies), on="position", how="left_anti")


def committed(decided: DataFrame) -> DataFrame:
    """Return the transactions that were committed: `transaction`, where it begins and ends.

    One whose members are gone makes nothing visible and is left out: it begins nowhere.

    Args:
        decided: From `settled`.
    """
    is_there = (F.col("outcome") == "committed") & F.col("first_position").isNotNull()
    return decided.where(is_there).select("transaction", "first_position", "end_position")


def undecided_from(decided: DataFrame) -> DataFrame:
    """Return one row: `count`, and where the first undecided one begins as `scan_from`, else null.

    Args:
        decided: From `settled`.
    """
    is_open = F.col("outcome").isin("open", "prepared")
    first = F.min(F.when(is_open, F.col("first_position")))
    return decided.agg(first.alias("scan_from"), F.count("*").alias("count"))


def _visible(records: DataFrame, decided: DataFrame, broadcast: bool) -> DataFrame:
    adds = records.where((F.col("journal") == "message") & (F.col("kind") == "ADD"))
    ended = committed(decided).select(
        "transaction", F.col("first_position").alias("_first"), F.col("end_position").alias("_end")
    )
    # An id that came again is several transactions; a member is of the one around it.
    joined = adds.join(
        F.broadcast(ended) if broadcast else ended, on="transaction", how="left_outer"
    )
    is_member = F.coalesce(F.col("transaction"), F.lit(0)) != 0
    is_there = ~is_member | F.col("position").between(F.col("_first"), F.col("_end"))
    found = joined.where(is_there).withColumn(VISIBLE, F.coalesce("_end", "position"))
    return found.drop("_first", "_end")


def written(messages: DataFrame, *, has_bodies: bool) -> DataFrame:
    """Return what goes into the files: columns in order, the day of arrival in UTC, and sorted.

    Args:
        messages: From `visible`.
        has_bodies: Whether with `body`.
    """
    body = ("body",) if has_bodies else ()
    chosen = messages.select(
        VISIBLE,
        *WRITTEN,
        *body,
        "address",
        _day().alias("day"),
    )
    # Files of a good size for each folder, also where one address has nearly all messages.
    return chosen.hint("rebalance", *PARTITIONS).sortWithinPartitions(*PARTITIONS, VISIBLE)


def _day() -> Column:
    days = F.floor(F.unix_micros("arrival") / F.lit(_DAY_US)).cast("int")
    return F.date_from_unix_date(days)


def doubled(
    read: Read,
    decided: DataFrame,
    after: int,
    exported: DataFrame | None,
    *,
    broadcast: bool = True,
) -> DataFrame:
    """Return `position` of each copy that compaction made of a record that is taken now, or was.

    A place belongs to one message for ever, and a copy has no place that its original has not.

    Args:
        read: Reads the journal.
        decided: From `settled`.
        after: Position up to which all were taken.
        exported: What was taken, as for `visible`.
        broadcast: As for `visible`.
    """
    every = _visible(read(_PLACE, ADDS), decided, broadcast)
    is_moved = F.col("flags").bitwiseAND(FLAG_MOVED) != 0
    moved = every.where((F.col(VISIBLE) > after) & is_moved)
    copies = moved.select(
        F.col("position").alias("_copy"), F.inline("places").alias("queue_id", "sequence", "number")
    ).drop("number")
    held = every.select("position", "places")
    if exported is not None:
        held = held.unionByName(exported.select("position", "places"))
    originals = held.select(
        "position", F.inline("places").alias("queue_id", "sequence", "number")
    ).drop("number")
    known = originals.join(F.broadcast(copies), on=["queue_id", "sequence"]).where(
        F.col("position") < F.col("_copy")
    )
    return known.select(F.col("_copy").alias("position")).distinct()
