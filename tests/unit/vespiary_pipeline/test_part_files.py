"""Tasks that write what they read: which messages, in which files, flushed before they are told."""

from __future__ import annotations

import datetime
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vespiary_pipeline.jobs import direct_export, exporting, part_files
from vespiary_pipeline.jobs.export_folder import ExportFolder, staged
from vespiary_pipeline.jobs.message_columns import MESSAGE, VISIBLE, WRITTEN
from vespiary_pipeline.jobs.part_files import Folder, FolderFiles, PartFiles, folders_of
from vespiary_pipeline.schema import RECORDS
from vespiary_spec.errors import CorruptRecord, DiskFull, NativeError

ARRIVAL = datetime.datetime(2026, 11, 22, 23, 59, tzinfo=datetime.UTC)
ALL = 1 << 40


def row(position: int, **values: Any) -> dict[str, Any]:
    """A message, or another record."""
    usual = {
        "journal": "message", "kind": "ADD", "position": position, "flags": 0, "address": "orders",
        "arrival": ARRIVAL, "body": b"x" * 10, "properties": [("a", "b")],
        "places": [{"queue_id": 1, "sequence": position, "number": 1}],
    }  # fmt: skip
    return {**dict.fromkeys((*MESSAGE, "body")), **usual, **values}


class Rows:
    """A journal of one part, a batch for each list of rows."""

    def __init__(self, *batches: list[dict[str, Any]], damage: Exception | None = None) -> None:
        self._batches = batches
        self._damage = damage

    def partitions(self) -> list[int]:
        return [0]

    def read(self, _: Any) -> Iterator[pa.RecordBatch]:
        for rows in self._batches:
            yield pa.RecordBatch.from_pylist(rows, schema=RECORDS.arrow((*MESSAGE, "body")))
        if self._damage:
            raise self._damage


def task(folder: Path, reader: Rows, **options: Any) -> PartFiles:
    usual = {"after": -1, "until": ALL, "has_bodies": True, "transactions": None, "doubled": None}
    return PartFiles(reader=reader, folder=folder, **{**usual, **options})


def arrow(path: Path, **columns: list[int]) -> Path:
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return path


def visible(folder: Path, one: PartFiles) -> dict[int, int]:
    """Positions of what was written, and where each became visible."""
    found = {}
    for file in one.write((0, 0)):
        rows = pq.read_table(folder / file.name).to_pylist()
        assert len(rows) == file.rows
        found |= {each["position"]: each[VISIBLE] for each in rows}
    return found


def test_messages_alone_behind_what_was_taken(tmp_path: Path) -> None:
    rows = [row(1), row(2, kind="ACK"), row(3, kind=None), row(4, journal="page"), row(5), row(6)]
    assert visible(tmp_path, task(tmp_path, Rows(rows))) == {1: 1, 5: 5, 6: 6}
    assert visible(tmp_path, task(tmp_path, Rows(rows), after=1, until=5)) == {5: 5}
    assert task(tmp_path, Rows(rows, []), after=6).write((0, 0)) == []


def test_members_become_visible_where_their_transaction_ends(tmp_path: Path) -> None:
    committed = arrow(
        tmp_path / "given.arrow",
        transaction=[7, 8, 8, 8],
        first_position=[1, 3, 20, 40],
        end_position=[9, 12, 29, 49],
    )
    rows = [
        row(1, transaction=7), row(3, transaction=8), row(4, transaction=7), row(5),
        row(6, transaction=99), row(12, transaction=9), row(15, transaction=8),
        row(20, transaction=8), row(22, transaction=8), row(41, transaction=8),
        row(50, transaction=8), row(51, transaction=7),
    ]  # fmt: skip
    expected = {1: 9, 3: 12, 4: 9, 5: 5, 20: 29, 22: 29, 41: 49}
    assert visible(tmp_path, task(tmp_path, Rows(rows), transactions=committed)) == expected
    later = {3: 12, 20: 29, 22: 29, 41: 49}
    found = visible(tmp_path, task(tmp_path, Rows(rows), transactions=committed, after=9))
    assert found == later, "a member in front of the position whose COMMIT came late is new"
    assert visible(tmp_path, task(tmp_path, Rows(rows))) == {5: 5}


def test_copies_that_are_named_are_passed_over(tmp_path: Path) -> None:
    doubled = arrow(tmp_path / "given.arrow", position=[2, 4, 900])
    rows = [row(position) for position in range(1, 6)]
    assert sorted(visible(tmp_path, task(tmp_path, Rows(rows), doubled=doubled))) == [1, 3, 5]


def test_columns_of_the_files(tmp_path: Path) -> None:
    (file,) = task(tmp_path, Rows([row(1), row(2, body=None)])).write((3, 0))
    assert (file.rows, file.bodies_missing, file.name[:10]) == (2, 1, "part-00003")
    assert file.size_bytes == (tmp_path / file.name).stat().st_size
    footer = pq.read_metadata(tmp_path / file.name)
    assert footer.schema.to_arrow_schema().names == [VISIBLE, *WRITTEN, "body"]
    group = footer.row_group(0)
    columns = [group.column(at) for at in range(footer.num_columns)]
    ranged = {one.path_in_schema for one in columns if one.is_stats_set}
    assert {"arrival", "position", VISIBLE} < ranged
    assert not [one for one in ranged if one == "body" or "." in one], "no text of a message"
    (bare,) = task(tmp_path, Rows([row(1, body=None)]), has_bodies=False).write((0, 0))
    assert bare.bodies_missing == 0
    assert pq.read_schema(tmp_path / bare.name).names == [VISIBLE, *WRITTEN]


def test_a_folder_for_each_address_and_day(tmp_path: Path) -> None:
    next_day = ARRIVAL + datetime.timedelta(minutes=1)
    before = datetime.datetime(1969, 12, 31, 23, tzinfo=datetime.UTC)
    rows = [
        row(1, address="a/b c"), row(2, address="a/b c", arrival=next_day),
        row(3, address=None), row(4, address=""), row(5, address="ä=%", arrival=before),
        row(6, address="a/b c"),
    ]  # fmt: skip
    files = task(tmp_path, Rows(rows, [row(7, address=None)])).write((0, 0))
    found = {
        file.folder: pq.read_table(tmp_path / file.name)["position"].to_pylist() for file in files
    }
    assert found == {
        "address=a%2Fb c/day=2026-11-22": [1, 6],
        "address=a%2Fb c/day=2026-11-23": [2],
        "address=__HIVE_DEFAULT_PARTITION__/day=2026-11-22": [3, 4, 7],
        "address=ä%3D%25/day=1969-12-31": [5],
    }


def test_folders_of_one_kind_are_all_rows() -> None:
    batch = pa.RecordBatch.from_pylist([row(1), row(2)], schema=RECORDS.arrow((*MESSAGE, "body")))
    assert folders_of(batch) == [Folder("address=orders/day=2026-11-22", None)]


def test_what_is_held_is_bounded(tmp_path: Path) -> None:
    """The fullest file gets a row group, whatever the number of folders."""
    held = 0
    with FolderFiles(tmp_path, "part", held_bytes=100_000) as files:
        for number in range(100):
            rows = pa.record_batch({"body": pa.array([b"x" * 9000])})
            files.add(rows, [Folder(f"address=a{number % 7}/day=2026-11-22", None)])
            held = max(held, sum(file.held_bytes for file in files._files.values()))
        written = files.close()
    assert held <= 100_000
    assert sum(file.rows for file in written) == 100
    footers = [pq.read_metadata(tmp_path / file.name) for file in written]
    assert sum(footer.num_rows for footer in footers) == 100
    assert max(footer.num_row_groups for footer in footers) > 1


def test_files_are_flushed_before_they_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: dict[int, int] = {}
    flush = os.fsync

    def noted(descriptor: int) -> None:
        flush(descriptor)
        flushed[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    monkeypatch.setattr(part_files.os, "fsync", noted)
    files = task(tmp_path, Rows([row(1), row(2, address="other")])).write((0, 0))
    assert len(files) == 2
    for file in files:
        there = (tmp_path / file.name).stat()
        assert flushed[there.st_ino] == there.st_size == file.size_bytes


@pytest.mark.parametrize(
    ("number", "error", "said"),
    [(errno.ENOSPC, DiskFull, "no room"), (errno.EIO, NativeError, "can't be written")],
)
def test_a_flush_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception], said: str
) -> None:
    def failing(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(part_files.os, "fsync", failing)
    with pytest.raises(error, match=said):
        task(tmp_path, Rows([row(1)])).write((0, 0))


def test_a_task_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    damage = CorruptRecord("confirmed data is damaged", where="told:7", cure="keep a copy")
    big = [row(number, body=b"x" * 1_000_000) for number in range(1, 80)]
    with pytest.raises(CorruptRecord, match="told:7"):
        task(tmp_path, Rows(big, damage=damage)).write((0, 0))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_two_tries_of_a_task_do_not_meet(tmp_path: Path) -> None:
    one = task(tmp_path, Rows([row(1)]))
    names = {file.name for _ in range(2) for file in one.write((0, 0))}
    assert len(names) == 2


def test_files_of_tries_that_do_not_count_stay_out(tmp_path: Path) -> None:
    with ExportFolder(tmp_path / "lake").writing() as run:
        run.tasks.mkdir(parents=True)
        one = task(run.tasks, Rows([row(1), row(2, address="a/b")]))
        one.write((0, 0))  # a try whose executor was lost before it could tell
        told = one.write((0, 0))
        files = direct_export.moved(run, told)
        assert {file.path for file in files} == {f"{file.folder}/{file.name}" for file in told}
        assert files == staged(run.staging)
        assert len(list(run.tasks.iterdir())) == 2
        tasks = run.tasks
    assert not tasks.exists()


@pytest.mark.parametrize(
    ("folders", "is_direct"),
    [((), True), ((1, 1, 1), True), ((1, 1, 10), True), ((5, 4), False), ((4, 5, 3), True),
     ((*[1] * 999, 201), False)],
)  # fmt: skip
def test_when_messages_are_brought_together_first(
    folders: tuple[int, ...], is_direct: bool
) -> None:
    assert exporting.is_direct(folders) is is_direct
