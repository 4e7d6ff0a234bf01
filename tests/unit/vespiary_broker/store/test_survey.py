"""Headers of a folder: what is this journal's, what is somebody else's, what is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_broker.store.disk import Disk
from vespiary_broker.store.files import BINDINGS_FORM, MESSAGE_FORM
from vespiary_broker.store.survey import BlockReader, survey_folder, verify_blocks_python
from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.block import BlockHeader, encode_block
from vespiary_codec.journal.file_header import (
    FileHeader,
    FileState,
    JournalKind,
    encode_file_header,
)
from vespiary_native.choice import block_verifier
from vespiary_native.memory import AlignedBuffer
from vespiary_spec.errors import CorruptRecord, ForeignJournal
from vespiary_testkit.faulty_disk import Inode, MemoryDisk

SIZE = 64 * 1024
FOLDER = Path("/journal")


def header_bytes(**changes) -> bytearray:
    values = {
        "state": FileState.ACTIVE,
        "kind": JournalKind.MESSAGE,
        "journal_id": b"j" * 16,
        "file_id": 1,
        "salt": 5,
        "size_bytes": SIZE,
        "activated_ms": 1,
    }
    return bytearray(encode_file_header(FileHeader(**(values | changes))))


def with_checksum(sector: bytearray) -> bytearray:
    sector[508:512] = crc32c(bytes(sector[:508])).to_bytes(4, "little")
    return sector


def put(disk: MemoryDisk, number: int, header: bytes, size: int = SIZE, suffix: str = "") -> Path:
    path = FOLDER / f"activemq-data-{number}.hq{suffix}"
    disk.files[path] = Inode(number, bytearray(header).ljust(size, b"\0")[:size])
    return path


def survey(disk: MemoryDisk):
    return survey_folder(FOLDER, MESSAGE_FORM, disk, is_direct=True)


def test_files_are_sorted_by_what_their_headers_say():
    disk = MemoryDisk()
    put(disk, 1, header_bytes(file_id=7))
    put(disk, 2, header_bytes(file_id=3))
    put(disk, 3, header_bytes(state=FileState.FREE, file_id=2))
    put(disk, 4, b"")
    put(disk, 5, b"anything", 100, ".tmp")
    disk.files[FOLDER / "notes.txt"] = Inode(9, bytearray(b"hello"))
    found = survey(disk)
    assert [file.file_id for file in found.active] == [3, 7]
    assert [file.number for file in found.free] == [3, 4]
    assert [path.name for path in found.unfinished] == ["activemq-data-5.hq.tmp"]
    assert (found.journal_id, found.highest_id) == (b"j" * 16, 7)


def test_an_empty_folder():
    found = survey(MemoryDisk())
    assert (found.journal_id, found.active, found.free, found.highest_id) == (None, [], [], 0)


def foreign(header: bytearray) -> str:
    disk = MemoryDisk()
    put(disk, 1, header_bytes(state=FileState.FREE))
    path = put(disk, 2, header)
    with pytest.raises(ForeignJournal) as caught:
        survey(disk)
    assert caught.value.where.startswith(f"{path}:")
    return str(caught.value)


def test_the_reference_system_s_file_is_foreign():
    assert "no journal file" in foreign(bytearray(b"\0\0\0\2" + b"\1" * 508))


def test_a_newer_format_is_foreign_whatever_its_checksum_is():
    sector = header_bytes()
    sector[8] = 2
    assert "format version" in foreign(sector)


def test_a_file_for_newer_readers_is_foreign():
    sector = header_bytes()
    sector[64] = 9
    assert "software format" in foreign(with_checksum(sector))


def test_another_kind_of_journal_is_foreign():
    assert "another kind" in foreign(header_bytes(kind=JournalKind.BINDINGS))


def test_another_journal_is_foreign_and_both_are_named():
    text = foreign(header_bytes(journal_id=b"k" * 16))
    assert "another journal than activemq-data-1.hq" in text
    assert (b"k" * 16).hex() in text


@pytest.mark.parametrize("size", [SIZE - 4096, SIZE + 4096, SIZE - 1])
def test_a_file_of_another_size_than_its_header_says_is_damaged(size: int):
    disk = MemoryDisk()
    path = put(disk, 1, header_bytes(), size)
    with pytest.raises(CorruptRecord, match="size is not the one in its header") as caught:
        survey(disk)
    assert caught.value.where == f"{path}:0"


@pytest.mark.parametrize("size", [0, 4096, SIZE - 1])
def test_a_zero_file_of_an_odd_size_is_damaged(size: int):
    disk = MemoryDisk()
    put(disk, 1, b"", size)
    with pytest.raises(CorruptRecord):
        survey(disk)


def test_an_unreadable_kind_with_a_good_checksum_is_foreign():
    sector = header_bytes()
    sector[11] = 99
    assert "journal kind" in foreign(with_checksum(sector))


def test_the_real_disk_reads_the_same(tmp_path: Path):
    (tmp_path / "activemq-bindings-1.bindings").write_bytes(
        bytes(header_bytes(kind=JournalKind.BINDINGS).ljust(SIZE, b"\0"))
    )
    found = survey_folder(tmp_path, BINDINGS_FORM, Disk(), is_direct=True)
    assert [file.file_id for file in found.active] == [1]


# --- blocks ------------------------------------------------------------------------------------


def block(sequence: int, payload: bytes, offset: int, *, flags: int = 0, salt: int = 5) -> bytes:
    return encode_block(
        BlockHeader(
            sequence=sequence,
            file_id=1,
            watermark=sequence - 1,
            payload_bytes=len(payload),
            records=0,
            previous_crc=0,
            time_ms=1,
            flags=flags,
        ),
        payload,
        salt=salt,
        offset=offset,
    )


def reader(data: bytes, window: int, verify=verify_blocks_python) -> BlockReader:
    disk = MemoryDisk()
    path = put(disk, 1, b"")
    disk.files[path].data[4096 : 4096 + len(data)] = data
    return BlockReader(
        disk.open(path, is_direct=True, is_readonly=True),
        file_id=1,
        salt=5,
        size_bytes=SIZE,
        verify=verify,
        buffer=AlignedBuffer(window),
    )


@pytest.mark.parametrize("window", [4096, 8192, 12288, SIZE])
@pytest.mark.parametrize("verify", [verify_blocks_python, block_verifier()])
def test_a_walk_goes_through_any_window(window: int, verify):
    data = b""
    sizes = (10, 5000, 100, 20_000, 4032)
    for sequence, size in enumerate(sizes, 1):
        data += block(sequence, bytes([sequence]) * size, 4096 + len(data))
    found = [
        (facts.sequence, len(view) - 64, view[-1])
        for facts, view in reader(data, window, verify).walk(4096)
    ]
    assert found == [(n, size, n) for n, size in enumerate(sizes, 1)]


@pytest.mark.parametrize("window", [4096, 8192, SIZE])
def test_blocks_behind_a_hole_are_found_in_any_window(window: int):
    first = block(1, b"a" * 10, 4096)
    hole = b"\xaa" * 4096
    later = block(3, b"c" * 9000, 12288)
    data = first + hole + later
    data += block(4, b"d", 4096 + len(data))
    some = reader(data, window)
    assert [facts.sequence for facts, _ in some.walk(4096)] == [1]
    assert [facts.sequence for facts in some.later_blocks(8192)] == [3, 4]
    assert not some.has_header(8192)
    assert some.has_header(12288)


def test_a_block_within_a_message_is_no_block_of_its_own():
    """A sender may put a whole valid block into a body; it is inside of another one."""
    inner = block(9, b"x", 8192)
    outer = block(1, b"y" * (4096 - 64) + inner, 4096)
    some = reader(outer, SIZE)
    assert [facts.sequence for facts, _ in some.walk(4096)] == [1]
    assert [facts.sequence for facts in some.later_blocks(4096)] == [1]


def test_a_header_that_claims_more_than_the_file_is_no_block():
    data = bytearray(block(1, b"a", 4096))
    data[32:36] = (1 << 31).to_bytes(4, "little")
    some = reader(bytes(data), 8192)
    assert list(some.walk(4096)) == []
    assert list(some.later_blocks(4096)) == []


def test_what_stands_at_a_place_is_told_without_its_content():
    data = block(1, b"secret", 4096) + b"\xaa" * 4096 + block(7, b"secret", 12288, salt=6)
    some = reader(data, SIZE)
    assert some.describe(4096) == "the block with sequence 1"
    assert some.describe(8192) == "bad magic in a block header (0xaaaaaaaa)"
    assert "bad checksum" in some.describe(12288)
    assert some.describe(20480) == "bad magic in a block header (zeros)"
