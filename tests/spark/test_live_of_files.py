"""What Spark finds live in files read by the format is what the journal tools find live in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from vespiary_broker.store.live_set import LiveSet
from vespiary_pipeline import register
from vespiary_pipeline.transform import live
from vespiary_pipeline.transform.live import RECORD_COLUMNS
from vespiary_testkit.faulty_disk import crash_images
from vespiary_testkit.journal_lives import record_lives
from vespiary_testkit.journal_workload import recover
from vespiary_testkit.live_worlds import Held, held_by_tools
from vespiary_testkit.source_rows import write_out

pytestmark = pytest.mark.spark
SEED = 2  # always the same: lives that end with pages and live messages


@pytest.mark.parametrize("dead", [pytest.param("true", marks=pytest.mark.verify), "false"])
def test_live_places_of_a_data_folder_with_pages(
    spark: SparkSession, tmp_path: Path, dead: str
) -> None:
    (tmp_path / "journal").mkdir()
    log = record_lives(tmp_path / "journal", SEED)
    disk = next(crash_images(log, seed=SEED, start=len(log) - 1)).disk
    tools = LiveSet()
    recover(disk, tmp_path / "journal", tools)
    expected = held_by_tools(tools)
    for folder in {path.parent for path in disk.files}:
        write_out(disk, folder, folder)
    register(spark)
    read = spark.read.format("vespiary").option("columns", ",".join(RECORD_COLUMNS))
    read = read.option("dead", dead).option("maxPartitionBytes", "192k")
    found = live(read.option("journal", "message,page").load(str(tmp_path))).collect()
    assert {Held(*(row[name] for name in Held._fields)) for row in found} == expected
    assert len(found) == len(expected)
    assert {place.page_id is None for place in expected} == {True, False}
