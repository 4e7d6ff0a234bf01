"""Real Spark calls a stream and a sink as the simulator does; an upgrade may change that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from vespiary_testkit import recording_stream
from vespiary_testkit.micro_batches import MicroBatches, QueryError
from vespiary_testkit.recording_stream import Desk, RecordingSource, play

pytestmark = pytest.mark.spark
SCHEMA = StructType([StructField("seq", LongType())])


@pytest.fixture
def recording(spark: SparkSession) -> Iterator[SparkSession]:
    # Workers know nothing of the tests' folder.
    cloudpickle.register_pickle_by_value(recording_stream)
    spark.dataSource.register(RecordingSource)
    yield spark
    cloudpickle.unregister_pickle_by_value(recording_stream)


def run_spark(spark: SparkSession, desk: Desk, partitions: int) -> None:
    stream = (
        spark.readStream.format("recording")
        .option("desk", str(desk.folder))
        .option("partitions", str(partitions))
        .load()
    )
    query = (
        stream.writeStream.format("recording")
        .option("desk", str(desk.folder))
        .option("checkpointLocation", str(desk.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with contextlib.suppress(StreamingQueryException):
        query.awaitTermination()


def run_simulator(desk: Desk, partitions: int) -> None:
    def source() -> RecordingSource:
        return RecordingSource({"desk": str(desk.folder), "partitions": str(partitions)})

    query = MicroBatches(source, source, SCHEMA, desk.folder / "checkpoint")
    with contextlib.suppress(QueryError):
        query.run()


# Each run of a query takes Spark seconds: one scenario for each way in which calls can follow.
CHECKED = (
    "rows in several batches",
    "a run without anything new",
    "nothing at all",
    "a read fails",
    "the sink's commit fails",
    "the source's commit fails",
    "latestOffset fails",
    "other partitions in a replay",
)


@pytest.mark.parametrize(
    "scenario", [CHECKED[0], *(pytest.param(n, marks=pytest.mark.verify) for n in CHECKED[1:])]
)
def test_spark_makes_the_calls_of_the_simulator(
    recording: SparkSession, tmp_path: Path, scenario: str
) -> None:
    made = {}
    for name in ("spark", "simulator"):
        folder = tmp_path / name
        folder.mkdir()
        desk = Desk(folder)
        if name == "spark":
            made[name] = play(desk, scenario, lambda n, d=desk: run_spark(recording, d, n))
        else:
            made[name] = play(desk, scenario, lambda n, d=desk: run_simulator(d, n))
    assert made["spark"] == made["simulator"]
    assert len(made["spark"]) > 3
