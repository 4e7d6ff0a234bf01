"""Kept copies of several brokers, exported into one folder: neither is taken for the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from vespiary_pipeline.jobs.broker_files import BrokerFiles, ExportedJournal
from vespiary_pipeline.jobs.exporting import ExportOptions, ExportResult, export
from vespiary_testkit.written_files import JournalWriter, message

pytestmark = [pytest.mark.spark, pytest.mark.verify]


class KeptCopies:
    """The retention folder of a broker whose journal has full files."""

    def __init__(self, folder: Path, journal_id: bytes) -> None:
        self.folder = folder
        self._writer = JournalWriter(folder, journal_id=journal_id)
        self._files = 0

    def keep(self, *sequences: int) -> None:
        """Keep the copy of one more file, with these messages."""
        self._files += 1
        name = f"activemq-data-2026112207180{self._files}-{self._files}.hq"
        records = [message(sequence) for sequence in sequences]
        self._writer.file(self._files, records, name=name, is_sealed=True)

    def export(self, spark: SparkSession, lake: Path) -> ExportResult:
        journal = ExportedJournal(BrokerFiles(spark, str(self.folder)))
        return export(spark, journal, ExportOptions(to=lake))


def test_copies_of_two_brokers_share_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    first = KeptCopies(tmp_path / "first", b"1" * 16)
    second = KeptCopies(tmp_path / "second", b"2" * 16)
    first.keep(1, 2, 3)
    first.keep(4, 5)
    second.keep(11, 12)
    assert first.export(spark, lake).messages == 5
    assert second.export(spark, lake).messages == 2, "it is no continuation of the first"
    first.keep(6)
    second.keep(13, 14)
    assert second.export(spark, lake).messages == 2
    assert first.export(spark, lake).messages == 1
    assert first.export(spark, lake).export is None, "nothing is new"
    rows = spark.read.parquet(str(lake)).select("places").collect()
    found = sorted(place["sequence"] for row in rows for place in row["places"])
    assert found == [1, 2, 3, 4, 5, 6, 11, 12, 13, 14]
