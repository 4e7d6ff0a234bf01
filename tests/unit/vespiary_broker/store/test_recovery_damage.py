"""Damage: at or below the watermark it is found at its place, above it the journal ends there."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path
from typing import NamedTuple

import pytest

from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.survey import survey_folder
from vespiary_codec.journal.record import AddRecord
from vespiary_native.abc import BlockFacts
from vespiary_spec.errors import CorruptRecord, ForeignJournal
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import Client, LiveSet, open_memory, recover, until
from vespiary_testkit.seeds import seed_for

SEED = seed_for("recovery damage")


class Placed(NamedTuple):
    """A block of the journal and where it stands."""

    path: Path
    facts: BlockFacts
    payload_bytes: int


class BlockList(LiveSet):
    """Keeps the live messages and where each block stands."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[int] = []
        self.places: list[tuple[int, int, bytes]] = []

    def restore_block(self, file_id, offset, block):
        self.sequences.append(struct.unpack_from("<Q", block, 8)[0])
        self.places.append((file_id, offset, bytes(block)))
        return super().restore_block(file_id, offset, block)


async def _write(folder: Path, disk: MemoryDisk) -> None:
    journal = await open_memory(folder, disk, quiet_delay_s=1000.0)
    client = Client(journal, disk, SEED)
    for _ in range(8):
        await client.send(4)
        await client.receive()
        client.held = client.held[1:]  # one of each turn stays
        await client.acknowledge(len(client.held) // 2)
        await asyncio.sleep(0.002)
    sent_in_file = 0
    while sent_in_file < 2:  # a file that is begun or made has a header that covers what was sent
        await until(lambda: journal.core.files_ahead() >= 2)
        ahead = journal.core.files_ahead()
        await client.send(2)
        sent_in_file = sent_in_file + 1 if journal.core.files_ahead() == ahead else 0
    journal.fail(CorruptRecord("the test pulls the plug"))  # so that nothing covers them
    await journal.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal")


@pytest.fixture(scope="module")
def disk(folder: Path) -> MemoryDisk:
    made = MemoryDisk()
    product_loop.run(_write(folder, made))
    return made


@pytest.fixture(scope="module")
def blocks(disk: MemoryDisk, folder: Path) -> BlockList:
    sink = BlockList()
    found = recover(disk, folder, sink)
    assert found.sequence - found.watermark == 1, "one block is above the watermark"
    return sink


def _path_of(disk: MemoryDisk, folder: Path, file_id: int) -> Path:
    survey = survey_folder(folder, MESSAGE_FORM, disk, is_direct=True)
    return next(file.path for file in survey.active if file.file_id == file_id)


def _check(
    disk: MemoryDisk, folder: Path, blocks: BlockList, index: int, offset: int, bit: int
) -> None:
    """Flip one bit of a block and look at what recovery says."""
    file_id, start, _ = blocks.places[index]
    path = _path_of(disk, folder, file_id)
    disk.flip(path, start + offset, bit)
    try:
        sink = BlockList()
        if index < len(blocks.places) - 1:  # the last one is not covered by any watermark
            with pytest.raises(CorruptRecord) as caught:
                recover(disk, folder, sink)
            assert caught.value.where == f"{path}:{start}", f"byte {offset}, bit {bit}"
        else:
            found = recover(disk, folder, sink)
            assert sink.sequences == blocks.sequences[:index], f"byte {offset}, bit {bit}"
            assert found.tail is not None
            assert (found.tail.file.path, found.tail.offset) == (path, start)
    finally:
        disk.flip(path, start + offset, bit)


@pytest.mark.ci
def test_each_bit_of_every_block_header_is_watched(disk, folder, blocks):
    for index in range(0, len(blocks.places), 3):
        for bit in range(0, 64 * 8, 7):
            _check(disk, folder, blocks, index, bit // 8, bit % 8)


@pytest.mark.ci
def test_each_bit_of_the_first_and_the_last_header_is_watched(disk, folder, blocks):
    for index in (0, len(blocks.places) - 1):
        for bit in range(64 * 8):
            _check(disk, folder, blocks, index, bit // 8, bit % 8)


def test_bits_of_every_payload_are_watched(disk, folder, blocks):
    chance = random.Random(seed_for("payload bits"))
    for index, (_, _, block) in enumerate(blocks.places):
        for _ in range(3):
            if len(block) > 64:
                offset = chance.randrange(64, len(block))
                _check(disk, folder, blocks, index, offset, chance.randrange(8))


def test_each_bit_of_a_file_header_is_watched(disk, folder, blocks):
    path = _path_of(disk, folder, blocks.places[0][0])
    for bit in range(0, 512 * 8, 3):
        disk.flip(path, bit // 8, bit % 8)
        with pytest.raises((CorruptRecord, ForeignJournal)) as caught:
            recover(disk, folder, LiveSet())
        assert caught.value.where.startswith(f"{path}:"), f"bit {bit}"
        disk.flip(path, bit // 8, bit % 8)


@pytest.mark.parametrize("size", [512, 4096])
def test_zeroed_doubled_and_swapped_pieces_are_found(disk, folder, blocks, size):
    chance = random.Random(seed_for("damaged pieces"))
    covered = [place for place in blocks.places[:-1] if len(place[2]) >= size]
    for file_id, start, _ in chance.sample(covered, min(12, len(covered))):
        path = _path_of(disk, folder, file_id)
        data = disk.files[path].data
        whole = bytes(data)
        other = whole[start + 4096 : start + 4096 + size]
        for replacement in (bytes(size), b"\xff" * size, other):
            if whole[start : start + size] == replacement:
                continue
            data[start : start + size] = replacement
            with pytest.raises(CorruptRecord) as caught:
                recover(disk, folder, LiveSet())
            assert caught.value.where == f"{path}:{start}"
            data[:] = whole


def test_a_file_cut_off_is_damage_and_not_a_tail(disk, folder, blocks):
    path = _path_of(disk, folder, blocks.places[-1][0])
    whole = bytes(disk.files[path].data)
    try:
        for size in (len(whole) - 4096, len(whole) - 1, 4096, 600, 100, 0):
            del disk.files[path].data[size:]
            with pytest.raises(CorruptRecord, match=r"file header is damaged|size"):
                recover(disk, folder, LiveSet())
            disk.files[path].data[:] = whole
    finally:
        disk.files[path].data[:] = whole


def test_two_files_that_changed_places_are_found(disk, folder, blocks):
    survey = survey_folder(folder, MESSAGE_FORM, disk, is_direct=True)
    used = [file for file in survey.active if file.file_id in {p[0] for p in blocks.places}]
    one, two = used[0].path, used[1].path
    first, second = bytes(disk.files[one].data), bytes(disk.files[two].data)
    try:
        # The headers stay, the blocks change places: a misdirected write.
        disk.files[one].data[4096:], disk.files[two].data[4096:] = second[4096:], first[4096:]
        with pytest.raises(CorruptRecord):
            recover(disk, folder, LiveSet())
    finally:
        disk.files[one].data[:], disk.files[two].data[:] = first, second


def test_files_with_swapped_names_are_read_by_their_headers(disk, folder, blocks):
    survey = survey_folder(folder, MESSAGE_FORM, disk, is_direct=True)
    other = MemoryDisk()
    paths = [file.path for file in survey.active]
    for path, file in zip(reversed(paths), survey.active, strict=True):
        other.files[path] = disk.files[file.path]
    sink = BlockList()
    recover(other, folder, sink)
    assert sink.live == blocks.live


@pytest.mark.parametrize("which", ["first", "middle", "newest"])
def test_a_missing_file_is_named(disk, folder, blocks, which):
    used = sorted({place[0] for place in blocks.places})
    file_id = {"first": used[0], "middle": used[1], "newest": used[-1]}[which]
    other = disk.copy()
    del other.files[_path_of(disk, folder, file_id)]
    with pytest.raises(CorruptRecord, match=f"file {file_id} of the journal is missing"):
        recover(other, folder, LiveSet())


def test_a_copy_beside_its_original_is_named(disk, folder, blocks):
    other = disk.copy()
    path = _path_of(disk, folder, blocks.places[0][0])
    other.files[path.with_name("activemq-data-999.hq")] = other.files[path]
    with pytest.raises(CorruptRecord, match="both say that they are file"):
        recover(other, folder, LiveSet())


def test_a_broker_does_not_open_a_damaged_journal_and_changes_nothing(disk, folder, blocks):
    other = disk.copy()
    file_id, start, _ = next(place for place in blocks.places[2:] if len(place[2]) > 100)
    other.flip(_path_of(disk, folder, file_id), start + 100, 0)
    before = {path: bytes(inode.data) for path, inode in other.files.items()}
    with pytest.raises(CorruptRecord):
        product_loop.run(open_memory(folder, other))
    assert {path: bytes(inode.data) for path, inode in other.files.items()} == before
    assert not other.log


def test_without_the_checksum_flipped_bits_go_unnoticed(disk, folder, blocks):
    """The mutation: a walk that does not look at checksums lets these tests fail."""

    def gullible(data, offset, salt, file_id, limit):
        found = []
        at = 0
        while at + 64 <= len(data) and len(found) < limit:
            magic, _, flags, sequence, owner, mark, payload, records, before, crc, time_ms, _ = (
                struct.unpack_from("<IHHQQQIIIIQQ", data, at)
            )
            length = -(-(64 + payload) // 4096) * 4096
            if magic != 0x4B4C4256 or owner != file_id or at + length > len(data):
                break
            found.append(
                BlockFacts(
                    offset + at,
                    length,
                    sequence,
                    mark,
                    before,
                    crc,
                    records,
                    bool(flags & 1),
                    time_ms,
                )
            )
            if flags & 1:
                break
            at += length
        return found

    other = disk.copy()
    rules = LiveSet()
    file_id, start, block = next(
        place
        for place in blocks.places
        if isinstance(rules.decode(place[1], memoryview(place[2]))[-1][1], AddRecord)
    )
    other.flip(_path_of(disk, folder, file_id), start + len(block) - 9, 0)  # in a body
    with pytest.raises(CorruptRecord):
        recover(other, folder, LiveSet())
    recover(other, folder, LiveSet(), verify=gullible)
