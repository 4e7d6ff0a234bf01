"""The live places that Spark finds are those that a broker recovers: whole lives, cut anywhere."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from vespiary_pipeline.transform import live
from vespiary_spec.errors import JournalError
from vespiary_testkit.faulty_disk import MemoryDisk, crash_images, disk_steps
from vespiary_testkit.journal_lives import record_lives
from vespiary_testkit.journal_records import write_journal
from vespiary_testkit.journal_workload import recover
from vespiary_testkit.live_worlds import Many
from vespiary_testkit.seeds import seed_for

pytestmark = [pytest.mark.spark, pytest.mark.verify]
LIVES = 12
CUTS = 8  # of each life


def images_of(folder: Path, seed: int) -> Iterator[tuple[str, MemoryDisk]]:
    """Yield what some power cuts in the lives of a seed leave, and their end."""
    log = record_lives(folder, seed)
    cuts = random.Random(seed).sample(disk_steps(log), CUTS)
    for cut in [*sorted(cuts), len(log)]:
        for image in crash_images(log[:cut], seed=cut, start=cut - 1, subsets_max=1, torn_max=1):
            yield f"seed {seed}, cut {cut}", image.disk


def add(many: Many, name: str, folder: Path, disk: MemoryDisk) -> bool:
    """Take in what a recovery finds on a disk; return whether it finds a journal."""
    feed = functools.partial(recover, disk, folder)
    try:
        many.add(name, feed)
    except JournalError:
        return False  # the cut lay in the making of a file
    return True


def test_lives_that_are_cut_anywhere(spark: SparkSession, tmp_path: Path):
    many = Many()
    for life in range(LIVES):
        for name, disk in images_of(tmp_path, seed_for(f"live journals {life}")):
            add(many, name, tmp_path, disk)
    places: list[Any] = [place for world in many.known for place in world.tools]
    assert {place.state for place in places} == {"live", "prepared", "locked"}
    assert any(place.page_id for place in places)
    assert any(count for world in many.known for count in world.core.values())
    assert len(many.known) > 60
    many.check(live(spark.createDataFrame(many.table())).collect())


def test_a_journal_of_files_that_were_freed(spark: SparkSession, tmp_path: Path):
    many, disk = Many(), MemoryDisk()
    write_journal(tmp_path, disk, turns=40)
    assert add(many, "freed", tmp_path, disk)
    assert many.worlds.rows[0]["block"] > 1
    many.check(live(spark.createDataFrame(many.table())).collect())
