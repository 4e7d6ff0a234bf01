"""The two ways of an export, over real files: same messages, same folders, same columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from vespiary_codec.journal.record import (
    AddRecord,
    CommitRecord,
    Place,
    RollbackRecord,
    digest_members,
    encode_record,
)
from vespiary_pipeline.jobs import exporting
from vespiary_pipeline.jobs.broker_files import BrokerFiles, ExportedJournal
from vespiary_pipeline.jobs.exporting import ExportOptions, export
from vespiary_testkit.written_files import JournalWriter

pytestmark = [pytest.mark.spark, pytest.mark.verify]

DAY_MS = 86_400_000
PRINTABLE = [f"a{chr(code)}b" for code in range(0x20, 0x7F) if chr(code) != "\\"]
"""Addresses with each printable character, but for the one that escapes in headers of STOMP."""
ADDRESSES = ["orders", "orders", "007", "ä ß", ".hidden", "_under", *PRINTABLE]


def add(sequence: int, transaction: int = 0, *, is_moved: bool = False) -> AddRecord:
    address = ADDRESSES[sequence % len(ADDRESSES)]
    properties = f"destination:/queue/{address}\nexpires:{sequence * 1000}\nn:{sequence}\n".encode()
    return AddRecord(
        (Place(1, sequence), Place(2, sequence)), properties, b"body" * sequence,
        sequence % 3 * DAY_MS + sequence, transaction=transaction, is_moved=is_moved,
        priority=sequence % 10,
    )  # fmt: skip


def write_told_journal(folder: Path) -> int:
    """Write a journal of several files; return how many messages became visible."""
    writer = JournalWriter(folder)
    members = [add(1000, 5), add(1001, 5)]
    commit = CommitRecord(5, 2, digest_members([encode_record(one) for one in members]))
    writer.file(1, [add(sequence) for sequence in range(1, 150)], [members[0]], is_sealed=True)
    writer.file(2, [members[1], add(1002, 6), add(1003, 7), commit], is_sealed=True)
    copies = [add(3, is_moved=True), add(1004, is_moved=True)]
    writer.file(3, [RollbackRecord(6, 0, 0), *copies], is_sealed=True)
    # An id that comes again: rolled back once, then committed with members that are gone.
    writer.file(4, [add(1005, 9), RollbackRecord(9, 1, 0), CommitRecord(9, 1, 0)])
    return 149 + 2 + 1


def rows(lake: Path) -> list[dict[str, Any]]:
    found = []
    for path in lake.rglob("*.parquet"):
        folders = {"address": path.parent.parent.name, "day": path.parent.name}
        found += [each | folders for each in pq.ParquetFile(path).read().to_pylist()]
    return sorted(found, key=lambda each: each["position"])


@pytest.mark.parametrize("has_bodies", [True, False])
def test_both_ways_write_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_bodies: bool
) -> None:
    expected = write_told_journal(tmp_path / "journal")
    found, schemas, results = [], [], []
    for is_direct in (True, False):
        monkeypatch.setattr(exporting, "is_direct", lambda _, answer=is_direct: answer)
        lake = tmp_path / f"lake-{is_direct}"
        journal = ExportedJournal(BrokerFiles(spark, str(tmp_path / "journal")))
        result = export(spark, journal, ExportOptions(to=lake, has_bodies=has_bodies))
        assert result.messages == expected
        found.append(rows(lake))
        schemas.append(spark.read.parquet(str(lake)).dtypes)
        results.append((result.reached, result.bodies_missing))
    assert found[0] == found[1]
    assert schemas[0] == schemas[1]
    assert results[0] == results[1]
