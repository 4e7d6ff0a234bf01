"""A driver of a streaming query in a process of its own, to be killed.

Owns the program: `python -m vespiary_testkit.stream_driver URL QUEUE HOME`. It reads until it is
killed, in short batches, into Parquet files.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from vespiary_pipeline import register


def main(url: str, queue: str, home: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for key in ("spark.driver.host", "spark.driver.bindAddress"):
        session = session.config(key, "127.0.0.1")
    session = session.config("spark.local.dir", str(home / "local"))
    spark = session.config("spark.driver.memory", "1g").getOrCreate()
    register(spark)
    options = {"url": url, "queues": queue, "maxMessagesPerTrigger": "20", "lease": "2"}
    query = (
        spark.readStream.format("vespiary")
        .options(**options)
        .load()
        .selectExpr("sequence", "CAST(body AS string) AS body")
        .writeStream.format("parquet")
        .option("path", str(home / "lake"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
