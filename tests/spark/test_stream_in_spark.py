"""Live queues as a stream in real Spark: each message once, also when drivers are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from vespiary_pipeline import register
from vespiary_testkit.broker_calls import address, call
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

pytestmark = pytest.mark.spark
QUEUE = "orders"


def fill(broker: BrokerProcess, first: int, last: int) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        for number in range(first, last + 1):
            sent = {"destination": f"/queue/{QUEUE}", "persistent": "true"}
            if number == last:
                sent["receipt"] = "all"
            peer.send("SEND", sent, b"m%d" % number)
        peer.receive_receipt("all")


def left(broker: BrokerProcess) -> int:
    messages: int = call(broker, "GET", f"/queues/{QUEUE}")["messages"]
    return messages


def run(spark: SparkSession, broker: BrokerProcess, home: Path) -> None:
    register(spark)
    options = {"url": address(broker), "queues": QUEUE, "maxMessagesPerTrigger": "40"}
    query = (
        spark.readStream.format("vespiary")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(home / "lake"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def numbers(spark: SparkSession, home: Path) -> Counter[str]:
    rows = spark.read.parquet(str(home / "lake")).selectExpr("CAST(body AS string) AS body")
    return Counter(row["body"] for row in rows.collect())


def once(last: int) -> Counter[str]:
    return Counter(f"m{number}" for number in range(1, last + 1))


def test_a_query_drains_a_queue_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, 1, 100)
        run(spark, broker, tmp_path)
        assert numbers(spark, tmp_path) == once(100)
        assert left(broker) == 0
        fill(broker, 101, 130)
        run(spark, broker, tmp_path)
        assert numbers(spark, tmp_path) == once(130)
        call(broker, "POST", f"/queues/{QUEUE}/purge")
        fill(broker, 131, 133)
        call(broker, "POST", f"/queues/{QUEUE}/purge")
        with pytest.raises(StreamingQueryException, match="3 messages of the queue"):
            run(spark, broker, tmp_path)


def kill_in_the_middle(broker: BrokerProcess, home: Path, left_below: int) -> None:
    """Run a driver in a process of its own; kill it when so many messages are acknowledged."""
    tests = Path(__file__).resolve().parents[1]
    program = [sys.executable, "-m", "vespiary_testkit.stream_driver", address(broker), QUEUE, home]
    environment = {**os.environ, "PYTHONPATH": str(tests), "TMPDIR": str(home)}
    with (home / "output").open("wb") as output:
        child = subprocess.Popen(
            program, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            wait_for(lambda: left(broker) < left_below or child.poll() is not None)
            assert child.poll() is None, (home / "output").read_text()[-2000:]
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@pytest.mark.verify
def test_drivers_that_are_killed_lose_nothing_and_double_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        for life in (1, 2):
            fill(broker, 200 * life - 199, 200 * life)
            kill_in_the_middle(broker, tmp_path, 160)
        run(spark, broker, tmp_path)
        assert numbers(spark, tmp_path) == once(400)
        assert left(broker) == 0
