"""Rows to live queues in real Spark: what each mode promises when what writes is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from vespiary_pipeline import register
from vespiary_testkit.broker_calls import address, call
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.sink_driver import MODES, write
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

pytestmark = pytest.mark.spark
FILES, LINES = 20, 200
QUEUE = "copies"


def places(broker: BrokerProcess) -> dict[str, str]:
    return {"url": address(broker), "stompUrl": f"stomp://127.0.0.1:{broker.port()}"}


def received(broker: BrokerProcess, name: str = QUEUE) -> Counter[str]:
    """Take everything out of the queue."""
    found: Counter[str] = Counter()
    waiting = call(broker, "GET", f"/queues/{name}")["messages"]
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": f"/queue/{name}", "ack": "auto"})
        for _ in range(waiting):
            found[peer.receive().body.decode()] += 1
    return found


def ready(broker: BrokerProcess, name: str) -> int:
    """Return how many messages have arrived in a queue and can be seen."""
    for queue in call(broker, "GET", "/queues")["items"]:
        if queue["name"] == name:
            return int(queue["ready"])
    return 0


def test_a_dataframe_goes_to_a_queue(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with BrokerProcess(tmp_path / "data") as broker:
        rows = spark.range(0, 1000, numPartitions=3).selectExpr(
            "concat('m', id) AS body", "map('n', cast(id AS string)) AS properties"
        )
        for _ in range(2):
            rows.write.format("vespiary").mode("append").options(
                **places(broker), address=QUEUE, writeId="once"
            ).save()
        assert received(broker) == Counter(f"m{number}" for number in range(1000))
        with pytest.raises(Exception, match="a sink has no such column"):
            rows.withColumnRenamed("properties", "headers").write.format("vespiary").mode(
                "append"
            ).options(**places(broker), address=QUEUE).save()


@contextmanager
def driver(broker: BrokerProcess, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a driver with two executors; kill -9 all of it at the end."""
    tests = Path(__file__).resolve().parents[1]
    program = [sys.executable, "-m", "vespiary_testkit.sink_driver", *places(broker).values()]
    environment = {
        **os.environ, "PYTHONPATH": str(tests), "TMPDIR": str(home),
        "SPARK_WORKER_DIR": str(home / "work"), "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    with (home / "output").open("ab") as output:
        child = subprocess.Popen(
            [*program, str(home)], env=environment, stdout=output, stderr=output,
            start_new_session=True, cwd=home,
        )  # fmt: skip
        try:
            yield child
        finally:
            for number in [child.pid, *descendants(child.pid)]:
                kill(number)
            child.wait()


def descendants(root: int) -> list[int]:
    """Return the processes that a process has started, and those that these have."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found, todo = [], [root]
    while todo:
        todo += (children := parents.get(todo.pop(), []))
        found += children
    return found


def executors(root: int) -> list[int]:
    """Return the executors of a driver."""
    found = []
    for number in descendants(root):
        try:
            line = Path(f"/proc/{number}/cmdline").read_bytes()
        except OSError:
            continue
        if b"CoarseGrainedExecutorBackend" in line:
            found.append(number)
    return found


def kill(number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)


@pytest.mark.verify
def test_drivers_and_executors_that_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.mkdir()
    for number in range(FILES):
        text = "".join(f"m{number * LINES + line}\n" for line in range(LINES))
        (lines / f"{number:03}.txt").write_text(text)
    everything = Counter(f"m{number}" for number in range(FILES * LINES))
    with BrokerProcess(tmp_path / "data") as broker:
        with driver(broker, tmp_path) as child:

            def until(look: Callable[[], bool]) -> None:
                wait_for(lambda: look() or child.poll() is not None)
                assert child.poll() is None, (tmp_path / "output").read_text()[-3000:]

            until(lambda: len(executors(child.pid)) == 2)
            until((tmp_path / "checkpoints" / "plain" / "offsets" / "0").exists)
            until(lambda: all(ready(broker, mode) > 0 for mode in MODES))
            kill(executors(child.pid)[0])
            seen = {mode: ready(broker, mode) for mode in MODES}
            until(lambda: all(ready(broker, mode) > seen[mode] for mode in MODES))
        assert ready(broker, "fenced") < FILES * LINES, "the driver was killed in the middle"
        write(spark, places(broker), tmp_path)
        assert received(broker, "fenced") == everything
        assert received(broker, "dedup") == everything
        assert set(received(broker, "plain")) == set(everything)
        assert call(broker, "GET", "/transactions")["items"] == []
