"""Which journal the files at a path are of: exports tell those that share a folder apart by it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vespiary_pipeline.jobs.broker_files import BrokerFiles, ExportedJournal
from vespiary_testkit.written_files import JournalWriter, message

OTHER = b"o" * 16
SPARK: Any = SimpleNamespace(dataSource=SimpleNamespace(register=lambda source: None))


def journal_id(path: Path, **options: str) -> str:
    return ExportedJournal(BrokerFiles(SPARK, str(path), options)).journal_id


def test_a_journal_is_known_by_its_header(tmp_path: Path) -> None:
    JournalWriter(tmp_path / "journal", journal_id=OTHER).file(1, [message(1)])
    assert journal_id(tmp_path) == OTHER.hex()
    assert journal_id(tmp_path / "journal") == OTHER.hex()


def test_kept_copies_are_of_the_journal_that_they_are_copies_of(tmp_path: Path) -> None:
    name = "activemq-data-20261122071801-1.hq"
    JournalWriter(tmp_path, journal_id=OTHER).file(1, [message(1)], name=name)
    assert journal_id(tmp_path) == OTHER.hex()


def test_a_snapshot_is_of_the_journal_that_it_was_taken_of(tmp_path: Path) -> None:
    files = tmp_path / "journal" / ".vespiary-snapshot-before" / "files"
    JournalWriter(files, journal_id=OTHER).file(1, [message(1)])
    assert journal_id(tmp_path, snapshot="before") == OTHER.hex()


def test_a_journal_without_a_file_is_none(tmp_path: Path) -> None:
    assert journal_id(tmp_path) == ""
