"""Rows of the source against what a broker's recovery reads: whole lives, cut anywhere, damaged."""

from __future__ import annotations

import dataclasses
import fcntl
import random
from pathlib import Path
from typing import Any

import pytest

from vespiary_codec.journal.file_forms import MESSAGE_FORM
from vespiary_codec.journal.file_header import decode_file_header, encode_file_header
from vespiary_codec.journal.record import AddRecord, Place, SealRecord
from vespiary_pipeline.files import is_locked
from vespiary_spec.errors import CorruptRecord, ForeignJournal, JournalError, SourceChanged
from vespiary_testkit.block_builder import FOLDER, Builder
from vespiary_testkit.faulty_disk import MemoryDisk, crash_images, disk_steps
from vespiary_testkit.journal_lives import record_lives
from vespiary_testkit.journal_records import write_freed_files, write_journal
from vespiary_testkit.journal_rows import RowSink
from vespiary_testkit.journal_workload import recover
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.source_rows import batches_of, reader_of, rows_of, write_out

LIVES = 6


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without what the two sides name differently."""
    left_out = ("path", "queues", "data", "body", "error")
    return [
        {name: value for name, value in row.items() if name not in left_out}
        | {"places": row["places"] or None}
        for row in rows
    ]


def recovered(disk: MemoryDisk, folder: Path) -> list[dict[str, Any]]:
    sink = RowSink()
    recover(disk, folder, sink)
    return comparable(sink.rows)


@pytest.fixture
def journal(tmp_path: Path) -> tuple[Path, MemoryDisk, Path]:
    """A journal with freed files: its folder, the disk that it was made on, the folder there."""
    disk, folder = MemoryDisk(), tmp_path / "made"
    folder.mkdir()
    write_journal(folder, disk, turns=40)
    write_out(disk, folder, tmp_path / "journal")
    return tmp_path / "journal", disk, folder


@pytest.mark.parametrize("case", range(LIVES))
def test_lives_that_are_cut_anywhere(tmp_path: Path, case: int) -> None:
    seed = seed_for(f"source lives {case}")
    log = record_lives(tmp_path, seed)
    cuts = random.Random(seed).sample(disk_steps(log), 6)
    compared = 0
    for cut in [*sorted(cuts), len(log)]:
        images = crash_images(log[:cut], seed=cut, start=cut - 1, subsets_max=1, torn_max=1)
        for number, image in enumerate(images):
            target = tmp_path / f"{cut}-{number}"
            write_out(image.disk, tmp_path, target)
            if not any(MESSAGE_FORM.number(path.name) is not None for path in target.iterdir()):
                continue
            try:
                expected = recovered(image.disk, tmp_path)
            except JournalError:
                with pytest.raises(JournalError):
                    rows_of(target)
                continue
            assert comparable(rows_of(target)) == expected, (seed, cut, number)
            compared += 1
    assert compared


def test_a_journal_of_which_files_were_freed(journal: tuple[Path, MemoryDisk, Path]) -> None:
    path, disk, folder = journal
    expected = recovered(disk, folder)
    assert expected[0]["block"] > 1
    assert any(row["after_gap"] for row in expected)
    assert comparable(rows_of(path)) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"batchRows": "1"},
        {"batchBytes": "64k"},
        {"maxPartitionBytes": "64k"},
        {"maxPartitionBytes": "64k", "batchBytes": "64k", "batchRows": "7"},
        {"maxPartitionBytes": "1g"},
    ],
)
def test_batches_and_partitions_change_no_row(
    journal: tuple[Path, MemoryDisk, Path], options: dict[str, str]
) -> None:
    assert rows_of(journal[0], **options) == rows_of(journal[0])


def test_batches_stay_as_they_are_while_the_next_are_read(
    journal: tuple[Path, MemoryDisk, Path],
) -> None:
    """Windows are read into the same memory one after the other: no batch may look into it."""
    reader = reader_of(journal[0], body="true", data="true", batchBytes="64k")
    (part,) = reader.partitions()
    one_by_one = [batch.to_pylist() for batch in reader.read(part)]
    assert len(one_by_one) > 3
    assert [batch.to_pylist() for batch in list(reader.read(part))] == one_by_one


def test_a_partition_is_a_file_or_a_part_of_a_large_one(
    journal: tuple[Path, MemoryDisk, Path],
) -> None:
    files = {row["file_id"] for row in rows_of(journal[0])}
    assert len(reader_of(journal[0], maxPartitionBytes="64k").partitions()) >= len(files) > 1
    assert len(reader_of(journal[0], maxPartitionBytes="1g").partitions()) == 1


def test_only_columns_that_are_asked_for_are_made(journal: tuple[Path, MemoryDisk, Path]) -> None:
    for batch in batches_of(reader_of(journal[0], columns="position,kind")):
        assert batch.schema.names == ["position", "kind"]
    whole = rows_of(journal[0])
    for name in whole[0]:
        found = rows_of(journal[0], columns=name)
        assert [row[name] for row in found] == [row[name] for row in whole], name


def test_records_of_transactions_are_chosen_whatever_their_kind(
    journal: tuple[Path, MemoryDisk, Path],
) -> None:
    rows = rows_of(journal[0])
    ends = ("COMMIT", "PREPARE", "ROLLBACK")
    wanted = [row for row in rows if row["transaction"] is not None or row["kind"] in ends]
    assert {"ADD", "COMMIT"} <= {row["kind"] for row in wanted}
    assert rows_of(journal[0], kinds="COMMIT", members="true") == wanted


def test_kinds_are_chosen(journal: tuple[Path, MemoryDisk, Path]) -> None:
    whole = rows_of(journal[0])
    chosen = rows_of(journal[0], kinds="ack,commit")
    assert chosen == [row for row in whole if row["kind"] in ("ACK", "COMMIT")]
    assert chosen


def test_bodies_and_data(journal: tuple[Path, MemoryDisk, Path]) -> None:
    rows = rows_of(journal[0], body="true", data="true")
    assert {row["kind"]: bool(row["body"]) for row in rows}["ADD"]
    for row in rows:
        assert row["data"][4:6] == bytes([_type(row), row["flags"]])
        assert len(row["data"]) == row["length"]
        if row["kind"] == "ADD":
            assert row["data"].endswith(row["body"])
            assert len(row["body"]) == row["body_bytes"]
        else:
            assert row["body"] is None


def _type(row: dict[str, Any]) -> int:
    numbers = {"ADD": 1, "ACK": 2, "COUNT": 3, "COMMIT": 4, "FILES": 5, "QUEUES": 6, "SEAL": 7}
    return numbers.get(row["kind"]) or int(row["kind"].removeprefix("TYPE_"))


def test_records_in_front_of_a_position_are_not_read(
    journal: tuple[Path, MemoryDisk, Path],
) -> None:
    whole = rows_of(journal[0])
    for row in whole[:: len(whole) // 7]:
        first = row["position"]
        found = rows_of(journal[0], minPosition=str(first))
        assert found == [row for row in whole if row["position"] >= first]
    partitions = reader_of(journal[0], minPosition=str(first), maxPartitionBytes="64k")
    assert len(partitions.partitions()) < len({row["file_id"] for row in whole})


# --- damage ---------------------------------------------------------------------------------------


def damaged_at(rows: list[dict[str, Any]], chosen: int) -> tuple[Path, int]:
    """Change a byte of a record; return its file and the offset of its block."""
    row = rows[chosen]
    file = Path(row["path"])
    data = bytearray(file.read_bytes())
    data[row["offset"] + 9] ^= 0xFF
    file.write_bytes(data)
    return file, block_at(rows, chosen)


def block_at(rows: list[dict[str, Any]], chosen: int) -> int:
    """Return the offset of the block that holds a row."""
    return min(row["offset"] for row in rows if row["block"] == rows[chosen]["block"]) - 64


def test_damage_in_an_older_file_fails_and_names_file_and_offset(
    journal: tuple[Path, MemoryDisk, Path],
) -> None:
    rows = rows_of(journal[0])
    file, offset = damaged_at(rows, 3)
    with pytest.raises(CorruptRecord, match="confirmed data is damaged") as caught:
        rows_of(journal[0])
    assert caught.value.where == f"{file}:{offset}"


def test_damage_is_reported_as_a_row_and_what_follows_is_read(
    journal: tuple[Path, MemoryDisk, Path],
) -> None:
    rows = rows_of(journal[0])
    file, offset = damaged_at(rows, 3)
    found = rows_of(journal[0], onCorrupt="report")
    told = [row for row in found if row["error"]]
    assert [(row["path"], row["offset"], row["kind"]) for row in told] == [
        (str(file), offset, None)
    ]
    assert "confirmed data is damaged" in told[0]["error"]
    lost = [row for row in rows if row["block"] == rows[3]["block"]]
    assert [row["position"] for row in found if not row["error"]] == [
        row["position"] for row in rows if row not in lost
    ]


def test_a_file_may_end_at_its_damage(journal: tuple[Path, MemoryDisk, Path]) -> None:
    rows = rows_of(journal[0])
    damaged_at(rows, 3)
    found = rows_of(journal[0], onCorrupt="stop-file")
    assert [row["position"] for row in found if row["file_id"] == rows[3]["file_id"]][:-1] == [
        row["position"] for row in rows[:3] if row["block"] < rows[3]["block"]
    ]
    assert {row["file_id"] for row in found} == {row["file_id"] for row in rows}


def test_a_missing_file_is_told(journal: tuple[Path, MemoryDisk, Path]) -> None:
    rows = rows_of(journal[0])
    ids = sorted({row["file_id"] for row in rows})
    middle = next(Path(row["path"]) for row in rows if row["file_id"] == ids[len(ids) // 2])
    middle.unlink()
    with pytest.raises(CorruptRecord, match="is missing"):
        rows_of(journal[0])
    found = rows_of(journal[0], onCorrupt="report")
    assert ["is missing" in row["error"] for row in found if row["error"]] == [True]
    assert len(found) > 1


def test_a_damaged_header_is_told(journal: tuple[Path, MemoryDisk, Path]) -> None:
    rows = rows_of(journal[0])
    file = Path(rows[-1]["path"])
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptRecord, match="the file header is damaged"):
        rows_of(journal[0])
    found = rows_of(journal[0], onCorrupt="report")
    assert any(
        row["path"] == str(file) and "header" in row["error"] for row in found if row["error"]
    )


def test_files_of_two_brokers_are_refused(journal: tuple[Path, MemoryDisk, Path]) -> None:
    file = Path(rows_of(journal[0])[0]["path"])
    other = MemoryDisk()
    folder = journal[0].parent / "other"
    folder.mkdir()
    write_freed_files(folder, other)
    stranger = next(path for path in other.files if MESSAGE_FORM.number(path.name))
    file.with_name(MESSAGE_FORM.name(999)).write_bytes(bytes(other.files[stranger].data))
    with pytest.raises(ForeignJournal, match="belongs to another journal"):
        rows_of(journal[0])


# --- a broker that runs ---------------------------------------------------------------------------


def test_a_journal_that_is_open_ends_at_the_durable_watermark(tmp_path: Path) -> None:
    builder = Builder()
    add = AddRecord((Place(1, 1),), b"destination:a\n", b"body", 1)
    builder.file(1)
    builder.block(add)
    builder.block(add, add, watermark=1)
    builder.block(add, watermark=2)
    write_out(builder.disk, FOLDER, tmp_path)
    assert [row["block"] for row in rows_of(tmp_path)] == [1, 2, 2, 3]
    with (tmp_path / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_locked(tmp_path, "message")
        assert [row["block"] for row in rows_of(tmp_path)] == [1, 2, 2]
    assert not is_locked(tmp_path, "message")


def test_a_file_in_which_nothing_is_durable_yet_is_left_to_its_broker(tmp_path: Path) -> None:
    builder = Builder()
    add = AddRecord((Place(1, 1),), b"destination:a\n", b"body", 1)
    builder.file(1)
    builder.block(add)
    builder.block(SealRecord(), watermark=1, is_seal=True)
    builder.file(2, watermark=1)
    builder.block(add, watermark=1)
    write_out(builder.disk, FOLDER, tmp_path)
    assert [row["block"] for row in rows_of(tmp_path)] == [1, 2, 3]
    with (tmp_path / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [row["block"] for row in rows_of(tmp_path)] == [1]


def test_nothing_is_made_or_changed_in_the_folder(journal: tuple[Path, MemoryDisk, Path]) -> None:
    def seen() -> list[tuple[str, int, int]]:
        return sorted(
            (p.name, p.stat().st_mtime_ns, p.stat().st_size) for p in journal[0].iterdir()
        )

    before = seen()
    rows_of(journal[0])
    rows_of(journal[0], table="files")
    assert seen() == before


def test_a_file_that_was_used_again_is_not_taken_for_the_one_that_was_planned(
    journal: tuple[Path, MemoryDisk, Path],
) -> None:
    for consistency in ("snapshot", "best-effort"):
        reader = reader_of(journal[0], consistency=consistency, maxPartitionBytes="64k")
        partitions = reader.partitions()
        file = Path(partitions[0].parts[0].path)  # type: ignore[attr-defined]
        data = file.read_bytes()
        header = decode_file_header(data)
        assert header is not None
        file.write_bytes(
            encode_file_header(dataclasses.replace(header, salt=header.salt ^ 1)) + data[4096:]
        )
        if consistency == "snapshot":
            with pytest.raises(SourceChanged, match="used this file again"):
                list(reader.read(partitions[0]))
        else:
            rows = [row for batch in reader.read(partitions[0]) for row in batch.to_pylist()]
            assert ["used this file again" in row["error"] for row in rows if row["error"]] == [
                True
            ]
        file.write_bytes(data)


# --- the table of files ---------------------------------------------------------------------------


def test_files_are_counted(journal: tuple[Path, MemoryDisk, Path]) -> None:
    rows = rows_of(journal[0])
    files = rows_of(journal[0], table="files")
    used = [file for file in files if file["state"] == "used"]
    assert sum(file["records"] for file in used) == len(rows)
    for file in used:
        own = [row for row in rows if row["file_id"] == file["file_id"]]
        assert file["adds"] == sum(row["kind"] == "ADD" for row in own)
        assert file["acks"] == sum(row["kind"] == "ACK" for row in own)
        assert file["transactional"] == sum(row["crc"] is not None for row in own)
        assert file["last_block"] >= own[-1]["block"]
        assert file["first_block"] <= own[0]["block"]
    assert [file["sealed"] for file in used] == [True] * (len(used) - 1) + [False]
    assert {file["state"] for file in files} <= {"used", "ahead", "free", "leftover", "unfinished"}
