"""Evicted slabs are read back, checked, and never handed on when they do not verify."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from vespiary_codec.journal.block import FIRST_OFFSET, HEADER_BYTES
from vespiary_native.abc import AckMode, DeliverStatus
from vespiary_spec.errors import CorruptRecord, NativeError
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import open_memory, run, small_options, until

MESSAGES = 60


async def reopened(folder: Path, disk: MemoryDisk):
    """Write messages, close, and open again: then nothing of them is in memory."""
    journal = await open_memory(folder, disk)
    route = journal.core.open_route([1])
    for number in range(MESSAGES):
        body = number.to_bytes(2, "little") * 1500
        journal.core.publish(route, b"", body, persistent=True)
        await journal.wait_durable()
        await asyncio.sleep(0)
    await journal.close()
    again = await open_memory(folder, disk)
    connection = again.core.open_connection()
    consumer = again.core.open_consumer(connection, 1, AckMode.CLIENT, 1_000_000, b"s", 12)
    return again, consumer


@run
async def test_all_messages_come_back_from_the_disk(tmp_path: Path):
    journal, consumer = await reopened(tmp_path, MemoryDisk())
    frames = b""
    while frames.count(b"\n\n") < MESSAGES:
        status, _, some = journal.core.deliver(consumer, 1000, 1 << 30)
        frames += some
        if status is DeliverStatus.ABSENT:
            file_id, slab = journal.core.absent_slab(consumer)
            assert await journal.load_slab(file_id, slab)
    for number in range(MESSAGES):
        assert number.to_bytes(2, "little") * 1500 in frames
    assert journal.statistics().slab_loads >= 3
    await journal.close()


@run
async def test_one_read_serves_all_who_ask(tmp_path: Path):
    journal, consumer = await reopened(tmp_path, MemoryDisk())
    journal.core.deliver(consumer, 1, 1 << 20)
    place = journal.core.absent_slab(consumer)
    assert await asyncio.gather(*(journal.load_slab(*place) for _ in range(5))) == [True] * 5
    assert journal.statistics().slab_loads == 1
    assert await journal.load_slab(*place) is False, "it is there already"
    await journal.close()


@run
async def test_a_caller_that_goes_away_does_not_take_the_read_along(tmp_path: Path):
    journal, consumer = await reopened(tmp_path, MemoryDisk())
    journal.core.deliver(consumer, 1, 1 << 20)
    place = journal.core.absent_slab(consumer)
    caller = asyncio.create_task(journal.load_slab(*place))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    await journal.close()  # waits for the read: the memory is the kernel's until then
    assert journal.statistics().slab_loads == 1


@run
async def test_bytes_that_rotted_are_not_delivered(tmp_path: Path):
    disk = MemoryDisk()
    journal, consumer = await reopened(tmp_path, disk)
    status, count, _ = journal.core.deliver(consumer, 1, 1 << 20)
    assert (status, count) == (DeliverStatus.ABSENT, 0)
    file_id, slab = journal.core.absent_slab(consumer)
    first_block = max(slab * small_options(tmp_path).slab_bytes, FIRST_OFFSET)
    name = f"activemq-data-{file_id}.hq"
    disk.flip(tmp_path / name, first_block + HEADER_BYTES + 4, 3)
    for _ in range(2):
        with pytest.raises(CorruptRecord, match=f"{name}:{first_block}: a journal file that was"):
            await journal.load_slab(file_id, slab)
    status, count, _ = journal.core.deliver(consumer, 1, 1 << 20)
    assert (status, count) == (DeliverStatus.ABSENT, 0)
    assert journal.failure is None, "the journal still writes"
    await journal.close()


@run
async def test_a_read_that_fails_gives_the_memory_back(tmp_path: Path):
    disk = MemoryDisk()
    journal, consumer = await reopened(tmp_path, disk)
    journal.core.deliver(consumer, 1, 1 << 20)
    place = journal.core.absent_slab(consumer)
    real = journal._loader._ring

    class BadReads:
        def submit_read(self, fd, address, length, offset, token):
            real._finish(token, -errno.EIO, 0, False)

    journal._loader._ring = BadReads()
    with pytest.raises(NativeError) as caught:
        await journal.load_slab(*place)
    assert caught.value.errno == errno.EIO
    journal._loader._ring = real
    assert await journal.load_slab(*place), "an error of the moment is not remembered"
    await journal.close()


@run
async def test_descriptors_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vespiary_broker.store.slabs.HANDLES_MAX", 2)
    disk = MemoryDisk()
    journal, consumer = await reopened(tmp_path, disk)
    seen = set()
    while True:
        status, _, _ = journal.core.deliver(consumer, 1000, 1 << 30)
        if status is not DeliverStatus.ABSENT:
            break
        file_id, slab = journal.core.absent_slab(consumer)
        seen.add(file_id)
        await journal.load_slab(file_id, slab)
        assert len(journal._loader._handles) <= 2
    assert len(seen) >= 3
    await journal.close()
    assert not disk.open_files


class HeldReads:
    """A ring that keeps reads until they are let go, as one does whose threads are busy."""

    def __init__(self, ring: Any) -> None:
        self.ring = ring
        self.reads: list[tuple[int, int, int, int, int]] = []

    def submit_read(self, *read: int) -> None:
        self.reads.append(read)

    def let_go(self) -> None:
        for read in self.reads:
            self.ring.submit_read(*read)


@run
async def test_a_file_that_is_opened_twice_at_once_stays_open_for_the_first_read(tmp_path: Path):
    disk = MemoryDisk()
    journal, consumer = await reopened(tmp_path, disk)
    journal.core.deliver(consumer, 1, 1 << 20)
    file_id, slab = journal.core.absent_slab(consumer)
    loader = journal._loader
    loader._ring = held = HeldReads(loader._ring)
    real_open, begun, may_end = loader._open_file, 0, asyncio.Event()

    async def open_file(file_id: int):
        nonlocal begun
        begun += 1
        is_first = begun == 1
        handle = await real_open(file_id)
        if not is_first:
            await may_end.wait()
        return handle

    loader._open_file = open_file
    loads = [asyncio.create_task(loader.load(file_id, slab + n)) for n in range(2)]
    await until(lambda: begun == 2 and bool(held.reads))
    may_end.set()
    await asyncio.wait([loads[1]], timeout=0.05)
    assert held.reads[0][0] in disk.open_files, "the first read needs it still"
    held.let_go()
    assert await loads[0]
    with pytest.raises(ValueError, match=r"load_begin|no number 1"):  # either core
        await loads[1]  # the file is too small for two
    await journal.close()
    assert not disk.open_files, "and no other one is left open"
