"""What came and went when: records counted by time and queue.

Owns what counts as traffic. Must never start a job. Called by the jobs and the report.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from vespiary_codec.journal.record_types import RecordFlag
from vespiary_pipeline.schema import TIMELINE
from vespiary_pipeline.transform.counting import by_queue


def timeline(
    records: DataFrame, bucket: str = "1 minute", queues: DataFrame | None = None
) -> DataFrame:
    """Return messages that came and went, by time and queue.

    Args:
        records: `schema.RECORDS`; rows of other journals than the message journal are passed over.
        bucket: Length of a bucket, as Spark spells intervals (`10 seconds`, `1 hour`).
        queues: `schema.QUEUES`, which give names and addresses; None: addresses are destinations of
            messages.

    Returns:
        `schema.TIMELINE`.
    """
    kind = F.col("kind")
    is_copy = F.col("flags").bitwiseAND(int(RecordFlag.MOVED)) != 0
    counted = (kind == "ADD") & ~is_copy | kind.isin("ACK", "COUNT")
    chosen = records.where((F.col("journal") == "message") & counted).select(
        F.window("block_time", bucket)["start"].alias("bucket"),
        "kind",
        "address",
        F.floor(F.col("length") / F.size("places")).alias("share_bytes"),
        F.inline("places"),
    )
    if queues is None:
        named = chosen.withColumn("queue", F.lit(None).cast("string"))
    else:
        known = queues.select("queue_id", "queue", F.col("address").alias("bound"))
        named = chosen.join(F.broadcast(known), on="queue_id", how="left_outer").withColumn(
            "address", F.coalesce("bound", "address")
        )
    is_add = kind == "ADD"
    counts = {
        "adds": F.count_if(is_add),
        "add_bytes": F.coalesce(F.sum(F.when(is_add, F.col("share_bytes"))), F.lit(0)),
        "acks": F.coalesce(F.sum(F.when(kind == "ACK", F.col("number"))), F.lit(0)),
        "counts": F.count_if(kind == "COUNT"),
    }
    return by_queue(named, counts, TIMELINE, "bucket")
