"""The format `vespiary` in real Spark: by its name, with a schema, in SQL, with filters."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from vespiary_pipeline import register
from vespiary_pipeline.schema import RECORDS
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_records import write_journal
from vespiary_testkit.source_rows import rows_of, write_out

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("journals")
    disk = MemoryDisk()
    (home / "made").mkdir()
    write_journal(home / "made", disk, turns=40)
    write_out(disk, home / "made", home / "journal")
    return home / "journal"


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    register(spark)
    return spark.read.format("vespiary").options(**options).load(str(path))


def test_spark_gives_the_rows_of_the_reader(spark: SparkSession, journal: Path) -> None:
    frame = load(spark, journal)
    assert frame.columns == [name for name in RECORDS.names if name not in ("body", "data")]
    found = [row.asDict(recursive=True) for row in frame.orderBy("position").collect()]
    expected = rows_of(journal)
    for row in expected:  # Spark gives local times without a zone; the session's is UTC
        for name in ("block_time", "arrival", "expires"):
            row[name] = row[name] and row[name].replace(tzinfo=None)
    assert found == expected


@pytest.mark.verify
def test_columns_may_be_named_as_a_schema(spark: SparkSession, journal: Path) -> None:
    register(spark)
    read = spark.read.format("vespiary")
    frame = read.schema("kind string, position bigint").load(str(journal))
    assert frame.columns == ["kind", "position"]
    assert frame.count() == len(rows_of(journal))
    with pytest.raises(PySparkException, match="this column has another type"):
        read.schema("kind bigint").load(str(journal)).collect()


@pytest.mark.verify
def test_sql_reads_it(spark: SparkSession, journal: Path) -> None:
    register(spark)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW records USING vespiary OPTIONS (path '{journal}')")
    (row,) = spark.sql("SELECT count(*) AS n FROM records WHERE kind = 'ADD'").collect()
    assert row["n"] == sum(row["kind"] == "ADD" for row in rows_of(journal))


def test_scans_with_other_filters_are_not_taken_for_one_another(
    spark: SparkSession, journal: Path
) -> None:
    records = load(spark, journal)
    counts = {
        kind: records.where(f.col("kind") == kind).groupBy("file_id").count()
        for kind in ("ADD", "ACK")
    }
    both = counts["ADD"].join(counts["ACK"].withColumnRenamed("count", "acks"), "file_id", "full")
    row = both.agg(f.sum("count").alias("adds"), f.sum("acks").alias("acks")).first()
    kinds = [one["kind"] for one in rows_of(journal)]
    assert row is not None
    assert (row["adds"], row["acks"]) == (kinds.count("ADD"), kinds.count("ACK"))


def test_damage_is_one_sentence_with_its_place(
    spark: SparkSession, journal: Path, tmp_path: Path
) -> None:
    for path in journal.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    rows = rows_of(tmp_path)
    row = rows[3]
    block = min(one["offset"] for one in rows if one["block"] == row["block"]) - 64
    data = bytearray(Path(row["path"]).read_bytes())
    data[row["offset"] + 9] ^= 1
    Path(row["path"]).write_bytes(data)
    with pytest.raises(PySparkException, match="confirmed data is damaged") as caught:
        load(spark, tmp_path).collect()
    assert f"{row['path']}:{block}" in str(caught.value)
    told = load(spark, tmp_path, onCorrupt="report").where(f.col("error").isNotNull()).collect()
    assert [one["path"] for one in told] == [row["path"]]


@pytest.mark.verify
def test_what_is_no_journal_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="nothing of a broker lies here"):
        load(spark, tmp_path).collect()
    with pytest.raises(PySparkException, match="Did you mean onCorrupt"):
        load(spark, tmp_path, onCorupt="fail").collect()
