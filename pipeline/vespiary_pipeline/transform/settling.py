"""Which transactions count, and which PAGE record of each page: DataFrame in, DataFrame out.

Owns how the records of one transaction come together in Spark; what becomes of them `outcomes`
decides. Must never start a job. Called by the jobs, and by `live`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the field's own name for it)

from vespiary_codec.journal.record_types import RecordType
from vespiary_pipeline.schema import TRANSACTIONS
from vespiary_pipeline.transform import outcomes

_SETTLED: Final = (
    "family tinyint, id bigint, outcome string, members_found bigint, members_named bigint,"
    " incomplete boolean, begin_position bigint, first_position bigint, last_position bigint,"
    " end_position bigint, branch string"
)
_ITEM: Final = ("crc", "length", "gaps", "after_gap", "members", "digest")
_MEMBERS: Final = ("ADD", "ACK", "DUPLICATE")
_ENDS: Final = ("COMMIT", "PREPARE", "ROLLBACK")
_PAGES: Final = ("PAGE", "PAGE_DONE")


def transactions(records: DataFrame) -> DataFrame:
    """Return what became of each transaction, by the rules of journal-format §3.3.

    Args:
        records: `schema.RECORDS` of a message journal; others of its rows are passed over. With
            the column `data` the XIDs of prepared branches are read.

    Returns:
        `schema.TRANSACTIONS`.
    """
    found = settled(records.where(is_transactional()))
    return found.select(F.col("id").alias("transaction"), *TRANSACTIONS.names[1:])


def is_transactional() -> Column:
    """Return whether a record is a member or an end of a transaction."""
    return (F.col("journal") == "message") & (F.coalesce(F.col("transaction"), F.lit(0)) != 0)


def settled(records: DataFrame) -> DataFrame:
    """Return a row for each transaction and each page, with columns as `outcomes.SETTLED`."""
    is_page = F.col("kind").isin(*_PAGES)
    kinds = F.col("kind").isin(*_MEMBERS, *_ENDS, *_PAGES)
    chosen = records.where((F.col("journal") == "message") & kinds & (is_transactional() | is_page))
    if "data" in records.columns:
        prepare = F.when(F.col("kind") == "PREPARE", F.col("data"))
    else:
        prepare = F.lit(None).cast("binary")
    items = chosen.select(
        F.when(is_page, outcomes.PAGE)
        .otherwise(outcomes.TRANSACTION)
        .cast("tinyint")
        .alias("family"),
        F.when(is_page, F.col("page_id")).otherwise(F.col("transaction")).alias("id"),
        F.struct("position", _code().alias("code"), *_ITEM).alias("item"),
        prepare.alias("prepare"),
    )
    lists = items.groupBy("family", "id").agg(
        F.sort_array(F.collect_list("item")).alias("items"),
        F.first("prepare", ignorenulls=True).alias("prepare"),
    )
    return lists.mapInArrow(outcomes.settle, _SETTLED)


def _code() -> Column:
    code = F.lit(outcomes.MEMBER)
    for kind in (*_ENDS, *_PAGES):
        code = F.when(F.col("kind") == kind, int(RecordType[kind])).otherwise(code)
    return code
