"""kill -9 in the middle of an export: nothing is half visible, and the next one has all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from vespiary_pipeline.jobs.exporting import ExportOptions, export
from vespiary_testkit.told_journal import POINTS, with_messages
from vespiary_testkit.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.verify]
FORMER, ALL = 7, 40


def sequences(spark: SparkSession, lake: Path) -> list[int]:
    rows = spark.read.parquet(str(lake)).select("places").collect()
    return sorted(place["sequence"] for row in rows for place in row["places"])


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_export_is_whole_or_not_there(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    lake, flag = tmp_path / "lake", tmp_path / "flag"
    export(spark, with_messages(FORMER), ExportOptions(to=lake))
    tests = Path(__file__).resolve().parents[1]
    program = [sys.executable, "-m", "vespiary_testkit.told_journal", lake, str(ALL), point, flag]
    environment = {**os.environ, "PYTHONPATH": str(tests), "TMPDIR": str(tmp_path)}
    with (tmp_path / "output").open("wb") as output:
        child = subprocess.Popen(
            program, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            wait_for(lambda: flag.exists() or child.poll() is not None)
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    assert flag.exists(), (tmp_path / "output").read_text()
    there = ALL if point == "renamed" else FORMER
    assert sequences(spark, lake) == list(range(1, there + 1))
    result = export(spark, with_messages(ALL), ExportOptions(to=lake))
    assert result.messages == ALL - there
    assert sequences(spark, lake) == list(range(1, ALL + 1))
