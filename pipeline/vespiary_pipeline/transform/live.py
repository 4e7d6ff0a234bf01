"""The messages that a broker would recover: DataFrame in, DataFrame out.

Owns the rules of journal-format §3 and §4.6 as one grouping: everything that is said of a place (a
queue and a sequence) comes together, and the latest word counts. Must never start a job. Called by
the jobs.

What a record says counts where it stands; what a member of a transaction says counts where the
COMMIT stands, in the order of the members; what a branch in doubt adds counts behind everything.
So the order of all words is the pair (`at`, `position`). Ranges of an ACK become sequences one by
one up to `WIDE`; longer ones are kept as ranges and looked through by what is left of their queue,
so that a range over a thousand million sequences costs what one over ten does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from vespiary_pipeline.schema import LIVE
from vespiary_pipeline.transform import outcomes
from vespiary_pipeline.transform.settling import is_transactional, settled

STATES: Final = ("live", "prepared", "locked")
"""Of a place: deliverable; added by a branch in doubt; ended by such a branch. A broker recovers
all three, and gives nobody those of the last two."""

WIDE: Final = 4096
"""Ranges of an ACK with more sequences than this are not taken apart."""

_BEHIND_ALL: Final = 1 << 62
"""Added to the positions of what branches in doubt add: above the position of any record."""

_BEFORE_ALL: Final = -1
"""Where the records in page files count: they say what a message is, never that it is there."""

_FACTS: Final = (
    "file_id",
    "offset",
    "address",
    "arrival",
    "expires",
    "priority",
    "length",
    "share_bytes",
    "body_bytes",
    "large",
    "transaction",
)

RECORD_COLUMNS: Final = (
    "journal",
    "file_id",
    "offset",
    "position",
    "kind",
    "length",
    "transaction",
    "page_id",
    "places",
    "deliveries",
    "members",
    "digest",
    "crc",
    "gaps",
    "after_gap",
    "address",
    "arrival",
    "expires",
    "priority",
    "large",
    "body_bytes",
)
"""Columns of `schema.RECORDS` that `live` reads. It reads its input four times: whoever has them
parsed (and not cached, or as Parquet) should ask for these alone."""


def live(
    records: DataFrame,
    queues: DataFrame | None = None,
    states: Sequence[str] = STATES,
    *,
    broadcast: bool = True,
) -> DataFrame:
    """Return the places of messages that a broker would recover from these records.

    Args:
        records: `schema.RECORDS`, at least `RECORD_COLUMNS`, of one broker: its message journal,
            and with it the records of its page files, if what stands in pages is to be described
            where the journal no longer has it.
        queues: `schema.QUEUES`; places of others are void, as the broker has it. None: all count,
            and none has a name.
        states: Which of `STATES` are wanted.
        broadcast: Whether every executor gets all transactions that count: some 100 bytes each.
            False for journals with many millions of them: then the records of transactions are
            shuffled to them.

    Returns:
        `schema.LIVE`.
    """
    decided = _decided(records, broadcast)
    places = _resolved(_exploded(_words(records, decided))).join(
        F.broadcast(_wide(records, decided)), on="queue_id", how="left_outer"
    )
    is_ended = F.exists("ranges", lambda r: _covers(r) & ~r["is_lock"] & (r["order"] > _since()))
    is_locked = F.exists("ranges", lambda r: _covers(r) & r["is_lock"])
    held = places.where(~F.coalesce(is_ended, F.lit(False))).withColumn(
        "state",
        F.when(F.col("is_prepared"), "prepared")
        .when(F.col("locked").isNotNull() | F.coalesce(is_locked, F.lit(False)), "locked")
        .otherwise("live"),
    )
    if queues is None:
        named = held.withColumn("queue", F.lit(None).cast("string"))
    else:
        known = queues.select("queue_id", "queue", F.col("address").alias("bound"))
        named = held.join(F.broadcast(known), on="queue_id").withColumn(
            "address", F.coalesce("bound", "address")
        )
    wanted = named.where(F.col("state").isin(*states))
    return wanted.select(*(F.col(c.name).cast(c.spark).alias(c.name) for c in LIVE.columns))


# --- what is said, and when it counts -------------------------------------------------------------


def _decided(records: DataFrame, broadcast: bool) -> DataFrame:
    """Return the transactions and pages that count."""
    counting = (outcomes.COMMITTED, outcomes.PREPARED, outcomes.CURRENT)
    decided = settled(records).where(F.col("outcome").isin(*counting))
    chosen = decided.select("family", "id", "outcome", "begin_position", "end_position")
    return F.broadcast(chosen) if broadcast else chosen


def _words(records: DataFrame, decided: DataFrame) -> DataFrame:
    """Return the records that count, each with `order`: where it does."""
    is_page_file = F.col("journal") == "page"
    in_journal = (F.col("journal") == "message") & F.col("kind").isin("ADD", "ACK", "COUNT", "PAGE")
    is_member = is_transactional()
    is_paged = F.col("kind") == "PAGE"
    chosen = records.where(in_journal | (is_page_file & (F.col("kind") == "ADD"))).select(
        "*",
        # What is neither joins nothing; its position spreads it over all partitions.
        F.when(is_member, outcomes.TRANSACTION).when(is_paged, outcomes.PAGE).otherwise(0)
        .cast("tinyint").alias("family"),
        F.when(is_member, F.col("transaction")).when(is_paged, F.col("page_id"))
        .otherwise(F.col("position")).alias("id"),
    )  # fmt: skip
    is_there = (F.col("family") != outcomes.TRANSACTION) | (
        (F.col("position") >= F.col("begin_position"))
        & (
            (F.col("outcome") == outcomes.PREPARED)
            | (
                (F.col("outcome") == outcomes.COMMITTED)
                & (F.col("position") < F.col("end_position"))
            )
        )
    )
    at = (
        F.when(is_page_file, _BEFORE_ALL)
        .when(F.col("family") != outcomes.TRANSACTION, F.col("position"))
        .when(F.col("outcome") == outcomes.COMMITTED, F.col("end_position"))
        .otherwise(F.col("position") + _BEHIND_ALL)
    )
    counted = chosen.join(decided, on=["family", "id"], how="left_outer").where(is_there)
    return counted.withColumns(
        {
            "order": F.struct(at.alias("at"), "position"),
            "is_doubtful": (F.col("family") == outcomes.TRANSACTION)
            & (F.col("outcome") == outcomes.PREPARED),
            "is_current": (F.col("outcome") == outcomes.CURRENT)
            & (F.col("position") == F.col("end_position")),
            "share_bytes": F.floor(F.col("length") / F.size("places")).cast("bigint"),
        }
    )


def _by_place(words: DataFrame) -> DataFrame:
    names = ("kind", "order", "is_doubtful", "is_current", "page_id", "deliveries", *_FACTS)
    return words.select(F.inline("places"), *names)


def _exploded(words: DataFrame) -> DataFrame:
    """Return a row for each place that a record speaks of, those of wide ranges left out."""
    by_range = _by_place(words).where((F.col("kind") != "ACK") | (F.col("number") <= WIDE))
    # Only a damaged journal has sequences so high that the end of a range is out of range.
    first, room = F.col("sequence"), F.lit((1 << 63) - 1) - F.col("sequence")
    each = F.explode(F.sequence(first, first + F.least(F.col("number") - 1, room)))
    rest = [name for name in by_range.columns if name not in ("sequence", "number")]
    return by_range.select(each.alias("sequence"), *rest)


def _wide(records: DataFrame, decided: DataFrame) -> DataFrame:
    """Return the wide ranges of each queue as `ranges`."""
    is_wide = (F.col("kind") == "ACK") & F.exists("places", lambda place: place["number"] > WIDE)
    words = _words(records.where(is_wide), decided)
    ranges = _by_place(words).where(F.col("number") > WIDE)
    one = F.struct("sequence", "number", "order", F.col("is_doubtful").alias("is_lock"))
    return ranges.groupBy("queue_id").agg(F.collect_list(one).alias("ranges"))


def _covers(one: Column) -> Column:
    sequence = F.col("sequence")
    return (sequence >= one["sequence"]) & (sequence - one["sequence"] < one["number"])


def _since() -> Column:
    return F.col("since")


# --- the latest word on each place ----------------------------------------------------------------


def _resolved(words: DataFrame) -> DataFrame:
    """Return the places that nothing ended but wide ranges, which are not looked at here."""
    kind, order = F.col("kind"), F.col("order")
    is_doubtful = F.col("is_doubtful")
    grouped = words.groupBy("queue_id", "sequence").agg(
        F.max(F.when(kind == "ADD", F.struct("order", *_FACTS))).alias("added"),
        F.max(F.when((kind == "ACK") & ~is_doubtful, order)).alias("ended"),
        F.max(F.when((kind == "ACK") & is_doubtful, order)).alias("locked"),
        F.max(F.when(kind == "PAGE", order)).alias("paged"),
        F.max(F.when((kind == "PAGE") & F.col("is_current"), F.struct("order", "page_id"))).alias(
            "standing"
        ),
        F.max(F.when(kind == "COUNT", F.struct("order", "deliveries"))).alias("counted"),
    )
    added, ended, paged = F.col("added.order"), F.col("ended"), F.col("paged")
    standing = F.col("standing.order")
    in_journal = (
        (added["at"] > _BEFORE_ALL)
        & (ended.isNull() | (added > ended))
        & (paged.isNull() | (added > paged))
    )
    in_page = standing.isNotNull() & (ended.isNull() | (standing > ended))
    seen = grouped.select(
        "*",
        F.coalesce(in_journal, F.lit(False)).alias("in_journal"),
        F.coalesce(in_page, F.lit(False)).alias("in_page"),
    )
    is_journal = F.col("in_journal")
    # What was said of deliveries before the message was ended or moved to a page is void.
    reset = F.greatest(F.col("ended.at"), F.col("paged.at"), F.lit(_BEFORE_ALL))
    is_counted = F.col("counted.order.at") > F.when(is_journal, reset).otherwise(standing["at"])
    return seen.where(is_journal | F.col("in_page")).select(
        "queue_id",
        "sequence",
        F.when(is_journal, added).otherwise(standing).alias("since"),
        "locked",
        (is_journal & (added["at"] >= _BEHIND_ALL)).alias("is_prepared"),
        F.when(is_journal, added["position"]).alias("position"),
        F.when(~is_journal, F.col("standing.page_id")).alias("page_id"),
        F.when(is_counted, F.col("counted.deliveries")).when(is_journal, 0).alias("deliveries"),
        F.when(is_journal, F.col("added.file_id")).alias("file_id"),
        F.when(is_journal, F.col("added.offset")).alias("offset"),
        *(F.col(f"added.{name}").alias(name) for name in _FACTS[2:]),
    )
