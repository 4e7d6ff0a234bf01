"""Rows of a query to a queue of a broker in a process of its own: rows a second.

Owns: the rows, the query that is timed, and the check that the queue has each of them once. Must
never: give a figure for a run where it has not. Called by `benchmarks.pipeline.live_queues`.
"""

import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.broker import RunningBroker, running_broker
from benchmarks.pipeline.scanning import ScanError
from benchmarks.pipeline.streaming import (
    BATCH_ROWS,
    StreamRun,
    progress_of,
    run_of,
    wait_for_end,
)
from vespiary_pipeline import register
from vespiary_pipeline.stream.reader import StreamReader
from vespiary_pipeline.stream.stream_options import StreamOptions

QUEUE: Final = "bench.sink"
_DIGITS: Final = 20
_TASKS: Final = 2


class SinkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    Attributes:
        batches: How many of `BATCH_ROWS` rows.
        body_bytes: Of each row, at least 20.
        delivery: Mode of the sink.
    """

    batches: int
    body_bytes: int
    delivery: str = "fenced"

    @property
    def rows(self) -> int:
        """Of all batches together."""
        return self.batches * BATCH_ROWS


def write_numbers(spark: SparkSession, folder: Path, rows: int) -> None:
    """Write numbers from 0 on to Parquet files, as many files as tasks for each batch."""
    files = rows * _TASKS // BATCH_ROWS
    spark.range(0, rows, 1, files).write.parquet(str(folder))


def _rows(spark: SparkSession, numbers: Path, body_bytes: int) -> DataFrame:
    text = F.lpad(F.col("id").cast("string"), _DIGITS, "0")
    filled = F.concat(text, F.lit("x" * (body_bytes - _DIGITS)))
    source = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", _TASKS)
    return source.parquet(str(numbers)).select(filled.cast("binary").alias("body"))


def check_bodies(bodies: Iterable[bytes], plan: SinkPlan) -> None:
    """Refuse a run whose rows are not all in the queue, once.

    Args:
        bodies: What is in the queue.
        plan: What was written.

    Raises:
        ScanError: Rows are missing, doubled or changed.
    """
    seen = bytearray(plan.rows)
    count = 0
    for body in bodies:
        seen[int(body[:_DIGITS])] = len(body) == plan.body_bytes
        count += 1
    if count != plan.rows or not all(seen):
        raise ScanError(
            f"{count} messages with {sum(seen)} of the rows are in the queue, and {plan.rows} rows "
            "were written"
        )


def stored(broker: RunningBroker) -> Iterator[bytes]:
    """Yield the bodies of all messages of the queue, read without Spark."""
    options = StreamOptions(f"http://127.0.0.1:{broker.http_port}", (QUEUE,), stream="check")
    reader = StreamReader(options, ("sequence", "body"))
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    for part in reader.partitions(begin, end):
        for batch in reader.read(part):
            yield from batch.column("body").to_pylist()


def write(
    spark: SparkSession, broker: RunningBroker, numbers: Path, plan: SinkPlan, home: Path
) -> StreamRun:
    """Write all rows to the queue.

    Args:
        spark: The session.
        broker: The broker.
        numbers: What `write_numbers` wrote.
        plan: What is measured.
        home: A folder that is made and removed: the checkpoint.

    Raises:
        ScanError: The queue has not every row once.
    """
    register(spark)
    begun = time.perf_counter()
    try:
        query = (
            _rows(spark, numbers, plan.body_bytes)
            .writeStream.format("vespiary")
            .outputMode("append")
            .option("checkpointLocation", str(home))
            .option("url", f"http://127.0.0.1:{broker.http_port}")
            .option("stompUrl", f"stomp://127.0.0.1:{broker.port}")
            .option("address", QUEUE)
            .option("delivery", plan.delivery)
            .trigger(availableNow=True)
            .start()
        )
        used = wait_for_end(query, broker)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    clock_s = time.perf_counter() - begun
    run = run_of(progress_of(query), clock_s, used, broker.ready.durability)
    check_bodies(stored(broker), plan)
    return run


def measure(spark: SparkSession, folder: Path, numbers: Path, plan: SinkPlan) -> StreamRun:
    """Write to a new broker, and stop it.

    Args:
        spark: The session.
        folder: Where the broker's data goes; emptied at the end.
        numbers: What `write_numbers` wrote, as many rows as the plan has.
        plan: What is measured.

    Raises:
        ScanError: The queue has not every row once.
        BrokerError: The broker did not run.
    """
    data = folder / "broker"
    try:
        with running_broker(data) as broker:
            return write(spark, broker, numbers, plan, folder / "checkpoint")
    finally:
        shutil.rmtree(data, ignore_errors=True)
