"""What Spark exports is in Delta and Iceberg tables, and Spark reads the files that they name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from vespiary_pipeline.jobs.exporting import ExportOptions, export
from vespiary_pipeline.lake.registering import register
from vespiary_testkit.journal_blocks import Story
from vespiary_testkit.lake_exports import FORMS, exported, iceberg_table, registered, table_of
from vespiary_testkit.told_journal import ToldJournal, add

pytestmark = pytest.mark.spark


def test_tables_have_what_spark_exported(spark: SparkSession, tmp_path: Path) -> None:
    lake, story = tmp_path / "lake", Story()
    story.file(1)
    story.block(add(1, to="a/b c"), add(2, to="007", day=1), add(3, to="é#?%x=1", day=2))
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    export(spark, ToldJournal(story), ExportOptions(to=lake))
    assert [register(lake, table_of(lake, form)).messages for form in FORMS] == [3, 3]
    story.block(add(4, to="007", day=1))
    export(spark, ToldJournal(story), ExportOptions(to=lake))
    assert [register(lake, table_of(lake, form)).messages for form in FORMS] == [1, 1]
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == before

    rows = exported(lake)
    assert {row["address"] for row in rows} == {"a/b c", "007", "é#?%x=1"}
    assert [registered(lake, form) for form in FORMS] == [rows, rows]
    iceberg = [task.file.file_path for task in iceberg_table(lake).scan().plan_files()]
    delta = DeltaTable(str(lake)).file_uris()
    assert {f"file://{path}" for path in delta} == set(iceberg)
    for paths in (delta, iceberg):
        found = spark.read.option("basePath", str(lake)).parquet(*paths)
        assert sorted(row["visible_position"] for row in found.collect()) == [
            row["visible_position"] for row in rows
        ]
    for path in delta:
        assert pq.read_schema(path).field("arrival").type == pa.timestamp("us", tz="UTC")
