"""An export has each message once: in transactions, copied, kept twice, in a journal that grows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from vespiary_codec.journal.record import AckRecord, SequenceRange
from vespiary_pipeline.jobs import exporting
from vespiary_pipeline.jobs.exporting import ExportOptions, ExportResult, export
from vespiary_spec.errors import JobFailed
from vespiary_testkit.journal_blocks import Story
from vespiary_testkit.told_journal import ToldJournal, add, commit

pytestmark = pytest.mark.spark


@pytest.fixture(params=["direct", pytest.param("shuffled", marks=pytest.mark.verify)], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Tasks write what they read, or messages are brought together first."""
    if request.param == "shuffled":
        monkeypatch.setattr(exporting, "is_direct", lambda _: False)
    return str(request.param)


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


@pytest.mark.verify
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


@pytest.mark.verify
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


def test_an_error_of_a_worker_is_told_in_its_own_sentence(
    spark: SparkSession, journal: ToldJournal, lake: Path
) -> None:
    journal.story.block(add(1))
    journal.is_damaged = True
    with pytest.raises(JobFailed) as caught:
        run(spark, journal, lake)
    assert str(caught.value) == "told:7: confirmed data is damaged. Keep a copy. [VSP-J104]"
    assert not list(lake.glob("export=*"))
    journal.is_damaged = False
    assert run(spark, journal, lake).messages == 1


@pytest.mark.verify
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


@pytest.mark.verify
def test_what_is_there_as_a_kept_copy_too_is_taken_once(
    spark: SparkSession, journal: ToldJournal, lake: Path
) -> None:
    journal.has_copies = True
    member = add(4, transaction=5)
    journal.story.block(add(1), add(2), add(3), member, commit(member))
    assert run(spark, journal, lake).messages == 4
    assert sequences(spark, lake) == [1, 2, 3, 4]
