"""A driver that writes lines of files to a broker, in a process of its own, to be killed.

Owns the program: `python -m vespiary_testkit.sink_driver URL STOMP_URL MODE HOME`. Two executors
are processes of their own. It reads a file a batch, until it is killed or all are read.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from vespiary_pipeline import register

QUEUE = "copies"


def write(spark: SparkSession, places: dict[str, str], mode: str, home: Path) -> None:
    """Write all lines that are not written yet, a file a batch."""
    register(spark)
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(home / "lines"))
    columns = ["value AS body"] + (["value AS duplicate_id"] if mode == "dedup" else [])
    (
        lines.repartition(2)
        .selectExpr(*columns)
        .writeStream.format("vespiary")
        .options(**places, address=QUEUE, delivery=mode, transactionBytes="8k")
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def main(url: str, stomp_url: str, mode: str, home: Path) -> None:
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
    write(session.getOrCreate(), {"url": url, "stompUrl": stomp_url}, mode, home)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
