"""A live queue through Spark, from a broker in a process of its own: messages a second.

Owns: the fill, the query that is timed, and the check that it saw every message once. Must never:
give a figure for a run that did not. Called by `benchmarks.pipeline.live_queues`.
"""

import json
import shutil
import statistics
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import generator
from benchmarks.broker import RunningBroker, running_broker
from benchmarks.pipeline.processes import SparkProcesses, SparkUsage
from benchmarks.pipeline.scanning import ScanError
from benchmarks.usage import Usage
from vespiary_pipeline import register

BATCH_ROWS: Final = 100_000
PHASES: Final = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
"""Parts of a micro-batch as Spark's progress names them, in their order."""

_FILL = generator.Load(window=500, warmup=0.0, seconds=3600.0)
_PRIME: Final = 1_000_003
_LOOK_S: Final = 0.25


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    Attributes:
        messages: In all queues together.
        body_bytes: Of each message.
        queues: How many; each is a partition at least.
        settings: Of the broker.
        batch_rows: `maxMessagesPerTrigger`.
        columns: DDL of the columns that are asked for; empty: all, with bodies.
    """

    messages: int
    body_bytes: int
    queues: int = 1
    settings: tuple[str, ...] = ()
    batch_rows: int = BATCH_ROWS
    columns: str = ""


class StreamRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a query over all that was in its queues.

    Attributes:
        durability: The broker's class.
        rows: Of each batch.
        batch_s: What Spark says that each batch took, all calls of the source included.
        clock_s: From the start of the query to its end.
        phase_ms: Median of each part of a batch, by its name.
        broker_us: Processor time of the broker for each message behind the first batch.
        jvm_us: That of the JVM.
        python_us: That of the Python workers.
        worker_peak_bytes: Peak of memory of the largest of those.
    """

    durability: str
    rows: list[int]
    batch_s: list[float]
    clock_s: float
    phase_ms: dict[str, float]
    broker_us: float
    jvm_us: float
    python_us: float
    worker_peak_bytes: int

    @property
    def rows_per_s(self) -> float:
        """Rows a second of all batches behind the first."""
        return sum(self.rows[1:]) / sum(self.batch_s[1:])

    @property
    def rows_per_s_by_clock(self) -> float:
        """Rows a second of the whole run: with the query's start and its end."""
        return sum(self.rows) / self.clock_s


# --- the broker -----------------------------------------------------------------------------------


def api(broker: RunningBroker, path: str) -> Any:
    """Return what the broker's HTTP API answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/api/v1{path}") as answer:
        return json.load(answer)


def fill(broker: RunningBroker, binary: Path, plan: Plan) -> dict[str, int]:
    """Fill the queues; return how many messages each has.

    Raises:
        ScanError: Not all messages are there.
        GeneratorError: The load did not run.
    """
    load = msgspec.structs.replace(
        _FILL, messages=plan.messages, body_size=plan.body_bytes, queues=plan.queues
    )
    if plan.body_bytes > 65536:
        load = msgspec.structs.replace(load, window=16)
    generator.run_load(binary, broker.port, load)
    names = [f"bench.{number}" for number in range(plan.queues)]
    found = {name: int(api(broker, f"/queues/{name}")["messages"]) for name in names}
    if sum(found.values()) != plan.messages:
        raise ScanError(f"{found} messages are in the queues, and {plan.messages} were sent")
    return found


# --- the query ------------------------------------------------------------------------------------


def _source(spark: SparkSession, broker: RunningBroker, queues: Sequence[str], plan: Plan) -> Any:
    register(spark)
    source = spark.readStream.format("vespiary").options(
        url=f"http://127.0.0.1:{broker.http_port}",
        queues=",".join(queues),
        maxMessagesPerTrigger=str(plan.batch_rows),
    )
    return source.schema(plan.columns) if plan.columns else source


def _observed(frame: DataFrame) -> DataFrame:
    """Have the query itself count and sum what it sees."""
    sequence = F.col("sequence")
    return frame.observe(
        "seen",
        F.count(F.lit(1)).alias("rows"),
        F.sum(sequence).alias("sum"),
        F.sum(sequence * sequence % _PRIME).alias("squares"),
        F.sum(F.octet_length("body")).alias("bytes"),
    )


def _expected(queues: dict[str, int], body_bytes: int) -> dict[str, int]:
    return {
        "rows": sum(queues.values()),
        "sum": sum(count * (count + 1) // 2 for count in queues.values()),
        "squares": sum(
            number * number % _PRIME for count in queues.values() for number in range(1, count + 1)
        ),
        "bytes": body_bytes * sum(queues.values()),
    }


def progress_of(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return the progress of all batches that had rows."""
    found = [json.loads(one.json) for one in query.recentProgress]
    return [one for one in found if one["numInputRows"]]


def phases_of(batches: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median of each part of a batch in milliseconds; the first batch does not count."""
    return {
        name: statistics.median(one["durationMs"].get(name, 0) for one in batches[1:])
        for name in PHASES
    }


class Used(NamedTuple):
    """What a query has used behind its first batch.

    Attributes:
        rows: That were not in the progress when the count began.
        spark: Of Spark's processes.
        broker: Of the broker's.
    """

    rows: int
    spark: SparkUsage
    broker: Usage


def wait_for_end(query: StreamingQuery, broker: RunningBroker) -> Used:
    """Wait until a query has ended.

    Args:
        query: The query, just started.
        broker: The broker.

    Raises:
        StreamingQueryException: It failed.
        ScanError: It had one batch alone.
    """
    processes = SparkProcesses()
    begun = None
    while not query.awaitTermination(_LOOK_S):  # type: ignore[arg-type]  # it takes floats
        spark = processes.look()
        if begun is None and (batches := progress_of(query)):
            begun = sum(one["numInputRows"] for one in batches), spark, broker.usage()
    if begun is None:
        raise ScanError("a single batch is no measurement: the first one does not count")
    rows = sum(one["numInputRows"] for one in progress_of(query)) - begun[0]
    return Used(rows, processes.look().since(begun[1]), broker.usage().since(begun[2]))


def run_of(batches: list[dict[str, Any]], clock_s: float, used: Used, durability: str) -> StreamRun:
    """Return what a run came to.

    Args:
        batches: Spark's progress.
        clock_s: From the start of the query to its end.
        used: What was used meanwhile.
        durability: The broker's class.

    Raises:
        ScanError: There were no rows behind the first batch.
    """
    if len(batches) < 2 or not used.rows:
        raise ScanError(f"{len(batches)} batches are no measurement: the first one does not count")
    each_us = 1e6 / used.rows
    return StreamRun(
        durability=durability,
        rows=[one["numInputRows"] for one in batches],
        batch_s=[one["durationMs"]["triggerExecution"] / 1000 for one in batches],
        clock_s=clock_s,
        phase_ms=phases_of(batches),
        broker_us=(used.broker.user_s + used.broker.system_s) * each_us,
        jvm_us=used.spark.jvm_s * each_us,
        python_us=used.spark.python_s * each_us,
        worker_peak_bytes=used.spark.worker_peak_bytes,
    )


def check_seen(batches: list[dict[str, Any]], expected: dict[str, int]) -> None:
    """Refuse a run that did not see every message once.

    Args:
        batches: Spark's progress.
        expected: What the query has to have counted and summed.

    Raises:
        ScanError: It did not.
    """
    seen = {
        name: sum(one["observedMetrics"]["seen"][name] or 0 for one in batches) for name in expected
    }
    if seen != expected:
        raise ScanError(f"the query saw {seen}, and {expected} was there")


def read(
    spark: SparkSession, broker: RunningBroker, queues: dict[str, int], plan: Plan, home: Path
) -> StreamRun:
    """Read all that is in the queues.

    Args:
        spark: The session.
        broker: The broker.
        queues: How many messages each has.
        plan: What is measured.
        home: A folder that is made and removed: the checkpoint.

    Raises:
        ScanError: Not every message was seen once, or some were left in a queue.
    """
    begun = time.perf_counter()
    try:
        query = (
            _observed(_source(spark, broker, list(queues), plan).load())
            .writeStream.format("noop")
            .option("checkpointLocation", str(home))
            .trigger(availableNow=True)
            .start()
        )
        used = wait_for_end(query, broker)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    clock_s = time.perf_counter() - begun
    batches = progress_of(query)
    check_seen(batches, _expected(queues, plan.body_bytes))
    left = {name: api(broker, f"/queues/{name}")["messages"] for name in queues}
    if any(left.values()):
        raise ScanError(f"messages were left in the queues: {left}")
    return run_of(batches, clock_s, used, broker.ready.durability)


def measure(spark: SparkSession, folder: Path, binary: Path, plan: Plan) -> StreamRun:
    """Fill a new broker, read all of it through Spark, and stop it.

    Args:
        spark: The session.
        folder: Where the broker's data goes; emptied at the end.
        binary: What `generator.build` returned.
        plan: What is measured.

    Raises:
        ScanError: Not every message was seen once, or some were left in a queue.
        BrokerError: The broker did not run.
        GeneratorError: The fill did not.
    """
    data = folder / "broker"
    try:
        with running_broker(data, settings=plan.settings) as broker:
            queues = fill(broker, binary, plan)
            return read(spark, broker, queues, plan, folder / "checkpoint")
    finally:
        shutil.rmtree(data, ignore_errors=True)
