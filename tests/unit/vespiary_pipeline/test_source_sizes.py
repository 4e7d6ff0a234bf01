"""Blocks, bodies and files of every size: the same rows, and never more in memory than is said."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.file_header import decode_file_header, encode_file_header
from vespiary_codec.journal.record import AckRecord, SequenceRange, encode_record
from vespiary_pipeline import files
from vespiary_spec.errors import CorruptRecord
from vespiary_testkit.source_rows import batches_of, reader_of, rows_of
from vespiary_testkit.written_files import JournalWriter, large_message, message

MIB = 1024 * 1024
HUGE = b"0123456789abcdef" * (12 * MIB // 16)


@pytest.fixture
def largest_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all reads of journal files, as they come."""
    sizes: list[int] = []
    read_at = files.read_at

    def counted(descriptor: int, size_bytes: int, offset: int, path: Path) -> bytes:
        sizes.append(size_bytes)
        return read_at(descriptor, size_bytes, offset, path)

    monkeypatch.setattr(files, "read_at", counted)
    return sizes


def test_a_block_of_many_records_may_be_larger_than_a_batch(tmp_path: Path) -> None:
    many = [message(number, b"x" * 2000) for number in range(1, 100)]
    wide = AckRecord(1, tuple(SequenceRange(3 * number + 1, 1) for number in range(20000)))
    JournalWriter(tmp_path).file(1, many, [wide], [message(100)])
    found = rows_of(tmp_path, batchBytes="64k")
    assert found == rows_of(tmp_path)
    assert [row["kind"] for row in found] == ["ADD"] * 99 + ["ACK", "ADD"]
    assert len(found[99]["places"]) == 20000


def test_a_record_larger_than_a_batch_that_is_no_message_is_read(tmp_path: Path) -> None:
    wide = AckRecord(1, tuple(SequenceRange(3 * number + 1, 1) for number in range(400_000)))
    assert len(encode_record(wide)) > files.WINDOW_BYTES
    JournalWriter(tmp_path).file(1, [message(1)], [wide], [message(2)])
    found = rows_of(tmp_path, columns="kind,length", batchBytes="64k")
    assert found == rows_of(tmp_path, columns="kind,length", batchBytes="64m")
    assert [row["kind"] for row in found] == ["ADD", "ACK", "ADD"]
    (file,) = rows_of(tmp_path, table="files")
    assert (file["records"], file["adds"], file["acks"], file["error"]) == (3, 2, 1, None)


@pytest.mark.parametrize("transaction", [0, 7, 256])
def test_a_message_that_is_not_read_whole_has_the_same_row(
    tmp_path: Path, largest_read: list[int], transaction: int
) -> None:
    huge = message(2, HUGE, transaction=transaction, priority=9)
    JournalWriter(tmp_path).file(1, [message(1)], [huge], [message(3)])
    found = rows_of(tmp_path)
    assert max(largest_read) <= 8 * MIB
    assert found == rows_of(tmp_path, batchBytes="64m")
    assert [row["body_bytes"] for row in found] == [4, len(HUGE), 4]
    assert found[1]["crc"] == (crc32c(encode_record(huge)) if transaction else None)


def test_a_body_above_the_limit_is_left_out_and_told(
    tmp_path: Path, largest_read: list[int]
) -> None:
    JournalWriter(tmp_path).file(1, [message(1)], [message(2, HUGE)], [message(3)])
    found = rows_of(tmp_path, body="true", maxBodyBytes="1m")
    assert max(largest_read) <= 8 * MIB
    assert [row["body"] for row in found] == [b"body", None, b"body"]
    assert [row["error"] and "maxBodyBytes is 1048576" in row["error"] for row in found] == [
        None,
        True,
        None,
    ]
    assert rows_of(tmp_path, body="true", maxBodyBytes="64m")[1]["body"] == HUGE


def test_damage_in_a_body_that_is_not_wanted_is_damage(tmp_path: Path) -> None:
    path = JournalWriter(tmp_path).file(1, [message(1)], [message(2, HUGE)], [message(3)])
    data = bytearray(path.read_bytes())
    data[10 * MIB] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecord, match="confirmed data is damaged"):
        rows_of(tmp_path)
    found = rows_of(tmp_path, onCorrupt="report")
    wrong = [row for row in found if row["error"]]
    assert [(row["kind"], row["file_id"], row["offset"]) for row in wrong] == [(None, 1, 8192)]
    assert [row["arrival"].microsecond for row in found if row["kind"]] == [1000, 3000]


def test_the_table_of_files_counts_a_message_that_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest_read: list[int]
) -> None:
    monkeypatch.setattr("vespiary_pipeline.sources.counts._WHOLE_BYTES_MAX", MIB)
    huge = message(1, HUGE, transaction=7)
    JournalWriter(tmp_path).file(1, [huge], [message(2)])
    (file,) = rows_of(tmp_path, table="files")
    assert max(largest_read) <= files.WINDOW_BYTES
    assert (file["records"], file["adds"], file["transactional"], file["error"]) == (2, 2, 1, None)
    assert (file["file_id"], file["first_block"], file["last_block"]) == (1, 1, 2)


# --- bodies in files of their own -----------------------------------------------------------------


def test_large_bodies_come_in_batches_that_are_not_too_large(tmp_path: Path) -> None:
    bodies = {number: bytes([number]) * 40_000 for number in range(1, 11)}
    bodies[5] = b"\5" * 300_000
    JournalWriter(tmp_path / "journal").file(
        1,
        [
            message(number, b"here") if number == 7
            else large_message(tmp_path / "large-messages", number, body)
            for number, body in bodies.items()
        ],
    )  # fmt: skip
    bodies[7] = b"here"
    batches = list(batches_of(reader_of(tmp_path, body="true", batchBytes="100000")))
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [row["body"] for row in found] == list(bodies.values())
    assert not any(row["error"] for row in found)
    assert [sum(map(len, batch.column("body").to_pylist())) for batch in batches] == [
        80_000,
        80_000,
        300_000,
        80_004,
        80_000,
    ]
    assert [row["body"] for row in rows_of(tmp_path, body="true", minPosition="65542")] == [
        bodies[number] for number in range(7, 11)
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path: path.unlink(), "can't be read: No such file"),
        (lambda path: path.write_bytes(b"short"), "has 5 bytes, and its record says 40000"),
        (lambda path: path.write_bytes(b"y" * 40_000), "its checksum is not that of its record"),
    ],
)
def test_a_large_body_that_is_not_the_one_is_told(tmp_path: Path, change: Any, why: str) -> None:
    folder = tmp_path / "large-messages"
    add = large_message(folder, 1, b"x" * 40_000)
    JournalWriter(tmp_path / "journal").file(1, [add, message(2)])
    change(next(folder.iterdir()))
    first, second = rows_of(tmp_path, body="true")
    assert (first["body"], first["body_bytes"]) == (None, 40_000)
    assert why in first["error"]
    assert (second["body"], second["error"]) == (b"body", None)


# --- damage and splitting -------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A journal of one file with 300 blocks, of which the 11th and the 200th are damaged."""
    blocks = [[message(number, b"y" * 3000)] for number in range(1, 301)]
    path = JournalWriter(tmp_path).file(1, *blocks)
    data = bytearray(path.read_bytes())
    for number in (11, 200):
        data[4096 * number + 100] ^= 1
    path.write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("part_bytes", ["64k", "1g"])
def test_a_file_that_is_split_ends_at_its_damage_too(damaged: Path, part_bytes: str) -> None:
    found = rows_of(damaged, onCorrupt="stop-file", maxPartitionBytes=part_bytes)
    assert [row["block"] for row in found] == [*range(1, 11), None]


@pytest.mark.parametrize("part_bytes", ["64k", "1g"])
def test_each_hole_is_one_row_and_the_end_is_none(damaged: Path, part_bytes: str) -> None:
    found = rows_of(damaged, onCorrupt="report", maxPartitionBytes=part_bytes)
    expected = [None if number in (11, 200) else number for number in range(1, 301)]
    assert [row["block"] for row in found] == expected
    assert [row["offset"] for row in found if row["error"]] == [4096 * 11, 4096 * 200]


def test_a_hole_with_nothing_behind_it_is_told(tmp_path: Path) -> None:
    path = JournalWriter(tmp_path).file(1, *([message(number)] for number in (1, 2, 3)))
    data = path.read_bytes()
    path.write_bytes(data[: 4096 * 2].ljust(len(data), b"\0"))
    JournalWriter(tmp_path).file(2, [message(9)], watermark=3)
    path_2 = tmp_path / "activemq-data-2.hq"
    path_2.write_bytes(path_2.read_bytes()[:4096].ljust(65536, b"\0"))
    header_says(path_2, watermark=3)
    with pytest.raises(CorruptRecord, match="block 2 is not there"):
        rows_of(tmp_path)
    found = rows_of(tmp_path, onCorrupt="report")
    assert [(row["block"], row["offset"]) for row in found] == [(1, 4096 + 64), (None, 8192)]


def header_says(path: Path, *, watermark: int) -> None:
    """Change the watermark in a file's header."""
    data = path.read_bytes()
    header = decode_file_header(data)
    assert header is not None
    changed = encode_file_header(dataclasses.replace(header, watermark=watermark))
    path.write_bytes(changed + data[4096:])


def test_a_header_that_promises_more_than_the_file_has_ends_the_count(tmp_path: Path) -> None:
    path = JournalWriter(tmp_path).file(1, *([message(number)] for number in range(1, 9)))
    data = bytearray(path.read_bytes())
    data[4096 * 3 + 32 : 4096 * 3 + 36] = (40 * MIB).to_bytes(4, "little")
    path.write_bytes(data)
    (file,) = rows_of(tmp_path, table="files", onCorrupt="report")
    assert (file["blocks"], file["used_bytes"]) == (2, 8192)
    assert f"{path}:{4096 * 3}: confirmed data is damaged" in file["error"]
    found = rows_of(tmp_path, onCorrupt="report")
    assert [row["block"] for row in found] == [1, 2, None, 4, 5, 6, 7, 8]


def test_what_plans_a_read_imports_no_pandas(tmp_path: Path) -> None:
    """Spark plans in a new process each time, and pandas takes longer than all the rest."""
    JournalWriter(tmp_path).file(1, [message(1)])
    plan = (
        "import sys; from vespiary_pipeline.options import read_options; "
        "from vespiary_pipeline.source import VespiaryReader; "
        "(one,) = VespiaryReader(read_options({'path': sys.argv[1]}), ()).partitions(); "
        "sys.exit(2 if 'pandas' in sys.modules else len(one.parts))"
    )
    done = subprocess.run([sys.executable, "-c", plan, str(tmp_path)], check=False)
    assert done.returncode == 1
