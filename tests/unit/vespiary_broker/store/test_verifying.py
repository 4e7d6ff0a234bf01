"""`vespiary journal verify`: no byte of the used part changes unseen."""

from __future__ import annotations

import os
import struct
from collections import Counter
from pathlib import Path

import pytest

from vespiary_broker.store.builder import JournalBuilder
from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.reader import Finding
from vespiary_broker.store.verifying import ProblemKind, Verification, verify_journal
from vespiary_codec.journal.block import FIRST_OFFSET
from vespiary_codec.journal.record import AddRecord, Place, encode_record
from vespiary_native.choice import block_verifier
from vespiary_spec.errors import CorruptRecord
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_records import locked_elsewhere, write_journal
from vespiary_testkit.journal_workload import FILE_BYTES, open_memory, until

FOLDER = Path("/journal")


def verified(disk: MemoryDisk) -> Verification:
    return verify_journal(FOLDER, MESSAGE_FORM, disk, block_verifier())


async def _live(folder: Path, disk: MemoryDisk) -> None:
    """Three blocks, of which no watermark covers the last."""
    journal = await open_memory(folder, disk, quiet_delay_s=1000.0)
    # The header of a file that is made later would have a watermark that covers the last block.
    await until(lambda: journal.statistics().files.free)
    route = journal.core.open_route([1])
    for number in range(3):
        journal.core.publish(route, b"a:b\n", b"body %d" % number, persistent=True)
        await journal.wait_durable()
    journal.fail(CorruptRecord("the test pulls the plug"))
    await journal.close()


@pytest.fixture(scope="module")
def small() -> MemoryDisk:
    """Two files: a sealed one with a few blocks, and one that was being written."""
    disk = MemoryDisk()
    builder = JournalBuilder(FOLDER, MESSAGE_FORM, FILE_BYTES, disk, journal_id=bytes(range(16)))
    for sequence in (1, 2):
        builder.add(encode_record(AddRecord((Place(1, sequence),), b"a:b\n", b"older", 1)))
    builder.finish()
    builder.close()
    with locked_elsewhere(FOLDER, disk) as place:
        product_loop.run(_live(place, disk))
    return disk


def used_bytes(disk: MemoryDisk) -> dict[str, int]:
    report = verified(disk).report
    return {
        file.name: FIRST_OFFSET + file.used_bytes
        for file in report.files
        if file.state in ("used", "ahead")
    }


def test_a_good_journal_has_no_problems(small: MemoryDisk):
    found = verified(small)
    assert (found.finding, found.problems) == (Finding.GOOD, ())
    assert found.blocks == sum(file.blocks for file in found.report.files)


def _check_flip(disk: MemoryDisk, name: str, offset: int, bit: int, last_block: int) -> str:
    """Flip a bit, verify, flip it back; return the kind of problem that was named there."""
    path = FOLDER / name
    disk.flip(path, offset, bit)
    found = verified(disk)
    disk.flip(path, offset, bit)
    place = f"{name}:{offset} bit {bit}"
    assert found.problems, place
    problem = found.problems[0]
    assert problem.file == name, place
    assert problem.offset <= offset or offset < 512, f"{place}: a header is one sector"
    if problem.kind is ProblemKind.TORN:
        assert found.finding is Finding.TORN, place
        assert offset >= last_block, f"{place}: only the last block is above the watermark"
        assert problem.offset == last_block, place
    else:
        assert found.finding is Finding.BAD, place
    return str(problem.kind)


def _last_block(disk: MemoryDisk) -> tuple[str, int]:
    file = [file for file in verified(disk).report.files if file.state == "used"][-1]
    assert file.blocks, "the last file has the block that nothing covers"
    found = verified(disk)
    assert found.report.sequence == found.report.watermark + 1
    return file.name, _offset_of_last(disk, file.name)


def _offset_of_last(disk: MemoryDisk, name: str) -> int:
    data = disk.files[FOLDER / name].data
    offset, last = FIRST_OFFSET, FIRST_OFFSET
    while data[offset : offset + 4] == b"VBLK":
        (payload,) = struct.unpack_from("<I", data, offset + 32)
        last, offset = offset, offset + (64 + payload + 4095 & ~4095)
    return last


def _is_zeros(disk: MemoryDisk, name: str, offset: int) -> bool:
    """Whether a byte lies in a run of zeros, as paddings do."""
    data = disk.files[FOLDER / name].data
    return not any(data[offset & ~31 : (offset & ~31) + 32])


def _flips(disk: MemoryDisk, padding_step: int) -> Counter[str]:
    """Flip a bit of every byte, in turn; of paddings only of every `padding_step`-th."""
    kinds: Counter[str] = Counter()
    last_name, last_offset = _last_block(disk)
    for name, size in used_bytes(disk).items():
        last = last_offset if name == last_name else FILE_BYTES
        for offset in range(size):
            if offset % padding_step == 0 or not _is_zeros(disk, name, offset):
                kinds[_check_flip(disk, name, offset, offset % 8, last)] += 1
    return kinds


EVERY_BYTE = os.environ.get("VESPIARY_EVERY_BYTE") == "1"


@pytest.mark.verify
def test_every_byte_of_the_used_part_is_watched(small: MemoryDisk):
    """All of headers and records, and a part of the padding; all of it with VESPIARY_EVERY_BYTE."""
    disk = small.copy()
    kinds = _flips(disk, 1 if EVERY_BYTE else 61)
    assert set(kinds) == {"corrupt", "foreign", "stray", "torn"}
    assert sum(kinds.values()) == sum(used_bytes(small).values()) or not EVERY_BYTE
    assert {p: bytes(i.data) for p, i in disk.files.items()} == {
        p: bytes(i.data) for p, i in small.files.items()
    }


def test_every_bit_of_headers_is_watched(small: MemoryDisk):
    disk = small.copy()
    last_name, last_offset = _last_block(disk)
    for bit in range(0, 64 * 8, 3):
        offset = last_offset + bit // 8
        assert _check_flip(disk, last_name, offset, bit % 8, last_offset) == "torn"
    for bit in range(0, 512 * 8, 31):
        is_named = bit // 8 < 10  # magic and version: it may be a file of somebody else
        kind = _check_flip(disk, last_name, bit // 8, bit % 8, last_offset)
        assert kind == ("foreign" if is_named else "corrupt"), bit


def test_the_only_block_of_the_newest_file(small: MemoryDisk):
    """Its loss makes the file look as if it had never been begun; verify says so all the same."""
    disk = small.copy()
    name, last = _last_block(disk)
    if last != FIRST_OFFSET:
        data = disk.files[FOLDER / name].data
        data[FIRST_OFFSET + 4096 : last + 8192] = bytes(last + 4096 - FIRST_OFFSET)
    for bit in range(0, 64 * 8, 5):
        disk.flip(FOLDER / name, FIRST_OFFSET + bit // 8, bit % 8)
        found = verified(disk)
        assert found.finding is not Finding.GOOD, bit
        assert (found.problems[0].file, found.problems[0].offset) == (name, FIRST_OFFSET)
        disk.flip(FOLDER / name, FIRST_OFFSET + bit // 8, bit % 8)


def test_all_damage_is_listed_not_only_the_first():
    disk = MemoryDisk()
    write_journal(FOLDER, disk)
    names = [file.name for file in verified(disk).report.files if file.state == "used"]
    for name in names[:3]:
        disk.flip(FOLDER / name, FIRST_OFFSET + 100, 3)
    found = verified(disk)
    assert [(p.kind, p.file, p.offset) for p in found.problems] == sorted(
        (ProblemKind.CORRUPT, name, FIRST_OFFSET) for name in names[:3]
    )
    assert all(p.sequence > 0 or p.file == names[0] for p in found.problems)
    assert all("refuses to start" in p.meaning and "recover" in p.cure for p in found.problems)


def test_a_missing_file_and_a_damaged_header(small: MemoryDisk):
    disk = small.copy()
    first = min(name for name in used_bytes(disk))
    removed = disk.files.pop(FOLDER / first)
    found = verified(disk)
    assert found.finding is Finding.BAD
    assert "missing" in found.problems[-1].what
    disk.files[FOLDER / first] = removed
    disk.flip(FOLDER / first, 40, 0)
    found = verified(disk)
    assert (found.problems[0].file, found.problems[0].kind) == (first, ProblemKind.CORRUPT)
    assert found.blocks > 0, "the other files are read all the same"


def test_a_foreign_file_is_no_damage_of_confirmed_data(small: MemoryDisk):
    disk = small.copy()
    file = disk.create(FOLDER / "activemq-data-99.hq", is_direct=False)
    file.write(memoryview(b"hello\n"), 0)
    file.close()
    found = verified(disk)
    assert found.finding is Finding.BAD
    assert [(p.file, p.kind) for p in found.problems] == [
        ("activemq-data-99.hq", ProblemKind.FOREIGN)
    ]
    assert "confirmed data" not in found.problems[0].meaning
    assert "move it out" in found.problems[0].cure
