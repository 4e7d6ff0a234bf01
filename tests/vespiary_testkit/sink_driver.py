"""A driver that writes lines of files to a broker, in a process of its own, to be killed.

Owns the program: `python -m vespiary_testkit.sink_driver URL STOMP_URL HOME`. Two executors are
processes of their own. A query for each mode of delivery reads a file a batch, until it is killed
or all are read.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from vespiary_pipeline import register

MODES = ("fenced", "dedup", "plain")
"""Modes of delivery; the queues that they write to are called the same."""


def write(spark: SparkSession, places: dict[str, str], home: Path) -> None:
    """Write all lines that are not written yet, in each mode, a file a batch."""
    register(spark)
    queries = [_start(spark, places, mode, home) for mode in MODES]
    for query in queries:
        query.awaitTermination()


def _start(spark: SparkSession, places: dict[str, str], mode: str, home: Path) -> StreamingQuery:
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(home / "lines"))
    columns = ["value AS body"] + (["value AS duplicate_id"] if mode == "dedup" else [])
    return (
        lines.repartition(2)
        .selectExpr(*columns)
        .writeStream.format("vespiary")
        .options(**places, address=mode, delivery=mode, transactionBytes="8k")
        .option("checkpointLocation", str(home / "checkpoints" / mode))
        .trigger(availableNow=True)
        .start()
    )


def main(url: str, stomp_url: str, home: Path) -> None:
    """Run on two executors."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local-cluster[2,1,512]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(home / "local"),
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    }.items():
        session = session.config(key, value)
    write(session.getOrCreate(), {"url": url, "stompUrl": stomp_url}, home)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
