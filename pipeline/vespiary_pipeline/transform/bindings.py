"""What a bindings journal says: the last value of each key, and the queues.

Owns the meaning of keys and values (journal-format §3.4). Must never start a job. Called by the
jobs; the queues go into `live`, where places of queues that are not known are void.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from vespiary_pipeline.schema import QUEUES
from vespiary_pipeline.schema import Column as TableColumn


def bindings(records: DataFrame, journal: str = "bindings") -> DataFrame:
    """Return the last value of each key that was not removed.

    Args:
        records: `schema.RECORDS`; rows of other journals are passed over.
        journal: `bindings` or `jms`.

    Returns:
        `schema.BINDINGS`.
    """
    said = records.where((F.col("journal") == journal) & F.col("kind").isin("PUT", "REMOVE"))
    last = said.groupBy("key").agg(
        F.max_by(F.struct("kind", "value", "position"), "position").alias("last")
    )
    return last.where(F.col("last.kind") == "PUT").select("key", "last.value", "last.position")


def queues(records: DataFrame) -> DataFrame:
    """Return the queues that the bindings know.

    Args:
        records: `schema.RECORDS` of a bindings journal; rows of other journals are passed over.

    Returns:
        `schema.QUEUES`.
    """
    known = bindings(records).where(F.col("key").startswith("queue/"))
    queue_id = F.substring_index("key", "/", -1).cast("bigint").alias("queue_id")
    return known.select(queue_id, *map(_field, QUEUES.columns[1:-1]), "value")


def _field(column: TableColumn) -> Column:
    key = "name" if column.name == "queue" else column.name.replace("_", "-")
    return F.get_json_object("value", f"$['{key}']").cast(column.spark).alias(column.name)
