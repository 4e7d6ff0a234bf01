"""Bodies of up to 1 GiB: never in memory unless they are asked for, and told where left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.large_reference import (
    LargeReference,
    body_name,
    encode_large_reference,
)
from vespiary_codec.journal.record_types import RecordFlag
from vespiary_pipeline.sources import bodies
from vespiary_spec.errors import ConfigError
from vespiary_testkit.page_builder import Message
from vespiary_testkit.source_rows import rows_of
from vespiary_testkit.written_files import JournalWriter, large_message, message, write_page

GIB = 1024**3
MIB = 1024**2


@pytest.fixture
def largest_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all reads of bodies, as they come."""
    sizes: list[int] = []
    read_at = bodies.read_at

    def counted(descriptor: int, size_bytes: int, offset: int, path: Path) -> bytes:
        sizes.append(size_bytes)
        return read_at(descriptor, size_bytes, offset, path)

    monkeypatch.setattr(bodies, "read_at", counted)
    return sizes


def sparse_message(folder: Path, size_bytes: int, crc: int) -> Path:
    """Write a journal with a large message of zeros, which take no room; return its folder."""
    large = folder / "large-messages"
    large.mkdir(parents=True)
    body = large / body_name(2)
    body.touch()
    os.truncate(body, size_bytes)
    reference = encode_large_reference(LargeReference(2, size_bytes, crc))
    JournalWriter(folder / "journal").file(1, [message(1), message(2, reference, is_large=True)])
    return folder


def test_a_body_of_1_gib_is_not_read_unless_it_may_be(
    tmp_path: Path, largest_read: list[int]
) -> None:
    data = sparse_message(tmp_path, GIB, 0)
    (_, plain) = rows_of(data)
    assert (plain["body_bytes"], plain["error"]) == (GIB, None)
    (_, row) = rows_of(data, body="true")
    assert row["body"] is None
    assert row["error"] == (
        f"the body has {GIB} bytes, and maxBodyBytes is {64 * MIB}: raise it to have this body"
    )
    assert largest_read == []


def test_no_body_larger_than_1_gib_is_promised() -> None:
    with pytest.raises(ConfigError, match=r"maxBodyBytes.*from 0 to 1GiB"):
        rows_of("/data", body="true", maxBodyBytes="1025m")


def test_large_bodies_are_compared_piece_by_piece(tmp_path: Path, largest_read: list[int]) -> None:
    size = 9 * MIB + 1
    data = sparse_message(tmp_path, size, crc32c(bytes(size)))
    assert [row["error"] for row in rows_of(data, verifyLarge="true")] == [None, None]
    assert sum(largest_read) == size
    assert max(largest_read) == MIB
    with (tmp_path / "large-messages" / body_name(2)).open("r+b") as file:
        file.seek(5 * MIB)
        file.write(b"x")
    (_, row) = rows_of(data, verifyLarge="true")
    assert row["error"].endswith("the body is damaged: its checksum is not that of its record")
    assert [row["error"] for row in rows_of(data)] == [None, None]


@pytest.mark.parametrize("options", [{"verifyLarge": "true"}, {"body": "true"}])
def test_what_is_wrong_with_a_body_is_told_in_its_row(
    options: dict[str, str], tmp_path: Path
) -> None:
    large = tmp_path / "large-messages"
    records = [large_message(large, number, b"x" * 100) for number in range(1, 6)]
    JournalWriter(tmp_path / "journal").file(1, records)
    (large / body_name(2)).unlink()
    os.truncate(large / body_name(3), 99)
    (large / body_name(4)).write_bytes(b"y" * 100)
    (large / body_name(5)).unlink()
    os.mkfifo(large / body_name(5))
    told = [row["error"] for row in rows_of(tmp_path, **options)]
    assert told[0] is None
    for number, what in (
        (2, "the body can't be read: No such file or directory"),
        (3, "the body has 99 bytes, and its record says 100"),
        (4, "the body is damaged: its checksum is not that of its record"),
        (5, "the body can't be read: this has the name of a broker's file and is none"),
    ):
        assert told[number - 1] == f"{large / body_name(number)}: {what}"


def test_a_body_that_is_cut_off_while_it_is_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = sparse_message(tmp_path, 3 * MIB, crc32c(bytes(3 * MIB)))
    body = tmp_path / "large-messages" / body_name(2)
    read_at = bodies.read_at

    def cutting(descriptor: int, size_bytes: int, offset: int, path: Path) -> bytes:
        os.truncate(body, MIB)
        return read_at(descriptor, size_bytes, offset, path)

    monkeypatch.setattr(bodies, "read_at", cutting)
    (_, row) = rows_of(data, verifyLarge="true")
    assert row["error"] == f"{body}: the body has {MIB} bytes, and its record says {3 * MIB}"


def test_the_body_of_a_message_in_a_page_is_compared(tmp_path: Path) -> None:
    large = tmp_path / "large-messages"
    reference = large_message(large, 2, b"L" * 300).body
    paged = Message(reference, ((1, 2),), flags=RecordFlag.LARGE)
    write_page(tmp_path / "paging", 1, [Message(b"small"), paged])
    options = {"journal": "page", "verifyLarge": "true"}
    assert [row["error"] for row in rows_of(tmp_path, **options)][:2] == [None, None]
    (large / body_name(2)).unlink()
    told = [row["error"] for row in rows_of(tmp_path, **options)]
    assert told[0] is None
    assert bodies.NOT_THERE in told[1]


def test_an_empty_body_is_one(tmp_path: Path) -> None:
    large = tmp_path / "large-messages"
    JournalWriter(tmp_path / "journal").file(1, [large_message(large, 1, b"")])
    ((row),) = rows_of(tmp_path, body="true")
    assert (row["body"], row["error"]) == (b"", None)
