"""An export has each message once: in transactions, copied, kept twice, in a journal that grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    Place,
    Record,
    SequenceRange,
    digest_members,
    encode_record,
)
from vespiary_pipeline.jobs.exporting import ExportOptions, ExportResult, export
from vespiary_testkit.journal_rows import RowSink, table
from vespiary_testkit.live_worlds import Story

pytestmark = pytest.mark.spark
DAY_MS = 86_400_000


@dataclass
class ToldJournal:
    """A journal told block by block, read as rows. Owner: the test."""

    story: Story
    has_copies: bool = False
    journal_id: str = "0a" * 16
    source: str = "told"
    asked: list[int] = field(default_factory=list)
    growth: list[tuple[Record, ...]] = field(default_factory=list)

    def records(self, spark: SparkSession, columns: tuple[str, ...], first: int) -> DataFrame:
        self.asked.append(first)
        rows = RowSink()
        self.story(rows)
        found = [row for row in rows.rows if row["position"] >= first]
        for row in found:
            row["body"] = b"body"
        if self.growth:  # somebody sends while it is read
            self.story.block(*self.growth.pop(0))
        copies = found if self.has_copies else []
        return spark.createDataFrame(table_with_bodies(found + copies)).select(*columns)


def table_with_bodies(rows: list[dict[str, Any]]) -> Any:
    return table(rows)


def add(
    *sequences: int, to: str = "orders", transaction: int = 0, day: int = 0, is_moved: bool = False
) -> AddRecord:
    places = tuple(Place(1, sequence) for sequence in sequences)
    properties = f"destination:/queue/{to}\n".encode()
    arrival_ms = day * DAY_MS + 5
    return AddRecord(
        places, properties, b"x", arrival_ms, transaction=transaction, is_moved=is_moved
    )


def commit(*members: Record) -> CommitRecord:
    encoded = [encode_record(member) for member in members]
    return CommitRecord(5, len(encoded), digest_members(encoded))


@pytest.fixture
def journal() -> ToldJournal:
    story = Story()
    story.file(1)
    return ToldJournal(story)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def run(spark: SparkSession, journal: ToldJournal, lake: Path) -> ExportResult:
    return export(spark, journal, ExportOptions(to=lake))


def sequences(spark: SparkSession, lake: Path) -> list[int]:
    """What a plain reader of Parquet finds."""
    rows = spark.read.parquet(str(lake)).select("places").collect()
    return sorted(place["sequence"] for row in rows for place in row["places"])


def test_each_export_takes_what_is_new(
    spark: SparkSession, journal: ToldJournal, lake: Path
) -> None:
    journal.story.block(add(1), add(2))
    journal.story.block(AckRecord(1, (SequenceRange(1, 1),)))
    first = run(spark, journal, lake)
    assert (first.messages, first.export) == (2, str(lake / "export=00000001"))
    again = run(spark, journal, lake)
    assert (again.messages, again.export, again.reached) == (0, None, first.reached)
    journal.story.block(add(3))
    assert run(spark, journal, lake).messages == 1
    assert sequences(spark, lake) == [1, 2, 3]
    assert journal.asked[-1] > journal.asked[0] == 0  # the old part is not read again


def test_folders_by_address_and_day(spark: SparkSession, journal: ToldJournal, lake: Path) -> None:
    journal.story.block(add(1, to="a/b c"), add(2, to="007", day=1), add(3, to="007", day=2))
    run(spark, journal, lake)
    folders = {str(path.parent.relative_to(lake)) for path in lake.rglob("*.parquet")}
    assert folders == {
        "export=00000001/address=a%2Fb c/day=1970-01-01",
        "export=00000001/address=007/day=1970-01-02",
        "export=00000001/address=007/day=1970-01-03",
    }
    rows = spark.read.parquet(str(lake)).collect()
    assert {(row["address"], str(row["day"]), bytes(row["body"])) for row in rows} == {
        ("a/b c", "1970-01-01", b"body"),
        ("007", "1970-01-02", b"body"),
        ("007", "1970-01-03", b"body"),
    }


def test_a_transaction_counts_from_its_commit_on(
    spark: SparkSession, journal: ToldJournal, lake: Path
) -> None:
    member = add(1, transaction=5)
    journal.story.block(member, add(2))
    run(spark, journal, lake)
    assert sequences(spark, lake) == [2]
    journal.story.block(add(3))
    run(spark, journal, lake)
    journal.story.block(commit(member), add(4, transaction=6))
    run(spark, journal, lake)
    assert sequences(spark, lake) == [1, 2, 3]
    assert run(spark, journal, lake).messages == 0


def test_a_journal_that_grows_while_it_is_read_is_taken_up_to_one_place(
    spark: SparkSession, journal: ToldJournal, lake: Path
) -> None:
    member = add(1, transaction=5)
    journal.story.block(add(2))
    journal.growth = [(member,), (add(3),), (commit(member),), (add(4),)]
    run(spark, journal, lake)
    assert sequences(spark, lake) == [2]
    run(spark, journal, lake)
    run(spark, journal, lake)
    assert sequences(spark, lake) == [1, 2, 3, 4]


def test_what_compaction_copied_is_taken_once(
    spark: SparkSession, journal: ToldJournal, lake: Path
) -> None:
    journal.story.block(add(1, 2))
    run(spark, journal, lake)
    journal.story.block(add(2, is_moved=True))  # of one that was exported
    journal.story.block(add(3), add(3, is_moved=True))  # of one that comes along
    journal.story.block(add(9, is_moved=True))  # its original was gone before the first export
    run(spark, journal, lake)
    assert sequences(spark, lake) == [1, 2, 3, 9]


def test_what_is_there_as_a_kept_copy_too_is_taken_once(
    spark: SparkSession, journal: ToldJournal, lake: Path
) -> None:
    journal.has_copies = True
    member = add(4, transaction=5)
    journal.story.block(add(1), add(2), add(3), member, commit(member))
    assert run(spark, journal, lake).messages == 4
    assert sequences(spark, lake) == [1, 2, 3, 4]
