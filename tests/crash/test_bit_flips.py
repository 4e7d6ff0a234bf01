"""Every byte of a small journal: what is flipped there is found, or cannot matter.

All 8 bits of every byte of file headers and block headers, one bit of every byte of every payload,
and all the padding: at or below the watermark recovery names file and place, above it the journal
ends there, and where nothing stands nothing changes. A message is never dropped in silence.
`VESPIARY_FLIPS=all` flips all 8 bits of payloads as well.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.survey import survey_folder
from vespiary_spec.errors import CorruptRecord, ForeignJournal
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import Client, Key, LiveSet, open_memory, recover
from vespiary_testkit.seeds import seed_for

SEED = seed_for("flipped journal")
HEADER_BYTES = 64
EVERY_BIT = os.environ.get("VESPIARY_FLIPS") == "all"
PARTS = 4

pytestmark = pytest.mark.verify


class Block(NamedTuple):
    """Where a block stands, and what lived when it was applied."""

    path: Path
    offset: int
    used_bytes: int
    sequence: int


class Listing(LiveSet):
    """Keeps where each block stands."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[tuple[int, int, int, int]] = []

    def restore_block(self, file_id: int, offset: int, block: memoryview) -> list[Any]:
        sequence = int.from_bytes(block[8:16], "little")
        self.places.append((file_id, offset, len(block), sequence))
        return super().restore_block(file_id, offset, block)


class Journal(NamedTuple):
    """The journal under test."""

    folder: Path
    disk: MemoryDisk
    blocks: list[Block]
    live: set[Key]
    watermark: int


async def _write(folder: Path, disk: MemoryDisk) -> None:
    journal = await open_memory(folder, disk, quiet_delay_s=1000.0)
    client = Client(journal, disk, SEED)
    client.body_sizes = range(60)
    for turn in range(5):
        await client.send(2)
        await client.send_transaction(2)
        await client.receive()
        client.held = client.held[1:]  # one of each turn stays
        await client.acknowledge(len(client.held) // 2)
        if turn % 2:
            await asyncio.sleep(0.002)
    await client.send(1)
    await client.send(1)
    journal.fail(CorruptRecord("the test pulls the plug"))
    await journal.close()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    folder = tmp_path_factory.mktemp("journal")
    disk = MemoryDisk()
    product_loop.run(_write(folder, disk))
    sink = Listing()
    found = recover(disk, folder, sink)
    survey = survey_folder(folder, MESSAGE_FORM, disk, is_direct=True)
    paths = {file.file_id: file.path for file in survey.active}
    blocks = [Block(paths[number], *rest) for number, *rest in sink.places]
    assert len({block.path for block in blocks}) >= 2, "the journal has rolled"
    assert len(sink.live) >= 5
    return Journal(folder, disk, blocks, sink.live, found.watermark)


def _look(journal: Journal, block: Block, index: int, what: str) -> None:
    """Recover with a broken block and look at the verdict."""
    sink = Listing()
    if block.sequence <= journal.watermark:
        with pytest.raises(CorruptRecord) as caught:
            recover(journal.disk, journal.folder, sink)
        assert caught.value.where == f"{block.path}:{block.offset}", what
    else:
        found = recover(journal.disk, journal.folder, sink)
        assert found.tail is not None, what
        assert (found.tail.file.path, found.tail.offset) == (block.path, block.offset), what
        assert len(sink.places) == index, what


@pytest.mark.parametrize("part", range(PARTS))
def test_every_bit_of_every_block_header(journal: Journal, part: int) -> None:
    flips = 0
    for index, block in list(enumerate(journal.blocks))[part::PARTS]:
        for bit in range(HEADER_BYTES * 8):
            journal.disk.flip(block.path, block.offset + bit // 8, bit % 8)
            _look(journal, block, index, f"block {block.sequence}, header bit {bit}")
            journal.disk.flip(block.path, block.offset + bit // 8, bit % 8)
            flips += 1
    assert flips >= 512
    print(f"{flips} bits of headers")


@pytest.mark.parametrize("part", range(PARTS))
def test_every_byte_of_every_payload(journal: Journal, part: int) -> None:
    chance = random.Random(seed_for("bit flips"))
    flips = 0
    for index, block in list(enumerate(journal.blocks))[part::PARTS]:
        for at in range(HEADER_BYTES, block.used_bytes):
            for bit in range(8) if EVERY_BIT else (chance.randrange(8),):
                journal.disk.flip(block.path, block.offset + at, bit)
                _look(journal, block, index, f"block {block.sequence}, byte {at}, bit {bit}")
                journal.disk.flip(block.path, block.offset + at, bit)
                flips += 1
    assert flips >= 100
    print(f"{flips} bytes of payloads")


def test_every_bit_of_every_file_header(journal: Journal) -> None:
    paths = sorted({block.path for block in journal.blocks})
    for path in paths:
        for bit in range(512 * 8):
            journal.disk.flip(path, bit // 8, bit % 8)
            with pytest.raises((CorruptRecord, ForeignJournal)) as caught:
                survey_folder(journal.folder, MESSAGE_FORM, journal.disk, is_direct=True)
            assert caught.value.where.startswith(f"{path}:"), f"bit {bit}"
            journal.disk.flip(path, bit // 8, bit % 8)


def test_bytes_that_hold_nothing_change_nothing(journal: Journal) -> None:
    """Padding, the rest of a header's page, the rest of each file: flipped all at once."""
    other = journal.disk.copy()
    used: dict[Path, set[int]] = {}
    for block in journal.blocks:
        used.setdefault(block.path, set(range(512))).update(
            range(block.offset, block.offset + block.used_bytes)
        )
    for path, kept in used.items():
        data = other.files[path].data
        for at in range(len(data)):
            if at not in kept:
                data[at] ^= 0xFF
    sink = Listing()
    found = recover(other, journal.folder, sink)
    assert sink.live == journal.live
    assert found.lost_blocks == 0


@pytest.mark.parametrize("what", ["zeros", "ones", "an older block"])
def test_whole_blocks_at_or_below_the_watermark(journal: Journal, what: str) -> None:
    for index, block in enumerate(journal.blocks):
        data = journal.disk.files[block.path].data
        kept = bytes(data[block.offset : block.offset + 4096])
        older = journal.blocks[index - 1]
        other = bytes(journal.disk.files[older.path].data[older.offset : older.offset + 4096])
        new = {"zeros": bytes(4096), "ones": b"\xff" * 4096, "an older block": other}[what]
        data[block.offset : block.offset + 4096] = new
        _look(journal, block, index, f"block {block.sequence} is {what}")
        data[block.offset : block.offset + 4096] = kept
