"""Files ahead, full disks, reclaim: the journal goes on by itself when there is room again."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.writer import MessageJournal
from vespiary_native.abc import AckMode, NoRoom
from vespiary_spec.errors import JournalError, JournalFileOverdue, JournalFull
from vespiary_testkit.faulty_disk import InlineExecutor, Inode, MemoryDisk
from vespiary_testkit.journal_workload import (
    FILE_BYTES,
    QUEUES,
    memory_parts,
    open_memory,
    recover_live,
    run,
    run_in_virtual_time,
    small_options,
    until,
)
from vespiary_testkit.waiting import WAIT_S


class Sender:
    """Sends until there is no room, and again when there is."""

    def __init__(self, journal: MessageJournal) -> None:
        self.journal = journal
        self.core = journal.core
        self.route = self.core.open_route([1])
        connection = self.core.open_connection()
        self.consumer = self.core.open_consumer(
            connection, 1, AckMode.INDIVIDUAL, 1_000_000, b"s", 12
        )
        self.sent = 0

    def send(self) -> bool:
        """Stage one message; False if there is no room."""
        try:
            self.core.publish(self.route, b"", bytes(3000), persistent=True)
        except NoRoom:
            self.journal.request_space()
            return False
        self.sent += 1
        return True

    async def fill(self) -> None:
        """Send until no file can be had."""
        async with asyncio.timeout(WAIT_S):
            while self.journal.blocked is None or self.core.files_ahead():
                if not self.send():
                    await asyncio.sleep(0.001)
                await self.journal.wait_durable()
                await asyncio.sleep(0)
        while self.send():
            await self.journal.wait_durable()

    async def drain(self, count: int) -> None:
        """Receive and acknowledge messages."""
        done = 0
        while done < count:
            status, number, _ = self.core.deliver(self.consumer, 1000, 1 << 30)
            if not number:
                await self.journal.load_slab(*self.core.absent_slab(self.consumer))
                continue
            first = self.core.queue_statistics(1).next - number
            for sequence in range(first, first + number):
                self.core.acknowledge(self.consumer, sequence)
            done += number
            await self.journal.wait_durable()
        assert status is not None


@run
async def test_two_files_are_always_ahead(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk)
    sender = Sender(journal)
    await until(lambda: journal.core.files_ahead() == 2)
    for _ in range(100):
        assert sender.send()
        await journal.wait_durable()
        await asyncio.sleep(0)
    await until(lambda: journal.core.files_ahead() >= 2)
    assert journal.core.current_file() >= 5
    await journal.close()


@run
async def test_a_full_disk_blocks_senders_and_lets_go_by_itself(tmp_path: Path):
    disk = MemoryDisk(capacity_bytes=8 * FILE_BYTES + 100)
    journal = await open_memory(tmp_path, disk, disk_scan_period_s=0.002)
    sender = Sender(journal)
    spaces: list[int] = []
    journal.on_space = lambda: spaces.append(journal.core.files_ahead())
    await sender.fill()
    assert isinstance(journal.blocked, JournalFull)
    assert "no room for a new journal file" in str(journal.blocked)
    assert journal.statistics().blocked_reason == str(journal.blocked)
    assert journal.failure is None
    assert not sender.send()
    assert sender.core.queue_statistics(1).available - 1 == sender.sent, (
        "all that was taken is kept"
    )
    # Before the drain: while it goes on, the keeper may already free files and tell of them.
    spaces.clear()
    await sender.drain(sender.sent)
    await until(sender.send)
    await until(lambda: bool(spaces))
    assert spaces[0] > 0, "the file is there before those who wait for it are told"
    await journal.wait_durable()
    await until(lambda: journal.blocked is None)
    await journal.close()
    assert recover_live(disk, tmp_path) == {(1, sender.sent)}


@run
async def test_space_that_others_give_back_is_found(tmp_path: Path):
    disk = MemoryDisk(capacity_bytes=8 * FILE_BYTES)
    disk.files[tmp_path / "somebody-else"] = Inode(99, bytearray(3 * FILE_BYTES))
    journal = await open_memory(tmp_path, disk, disk_scan_period_s=0.002)
    sender = Sender(journal)
    await sender.fill()
    assert journal.blocked is not None
    del disk.files[tmp_path / "somebody-else"]
    await until(lambda: journal.blocked is None)
    assert sender.send()
    await journal.close()


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"max_disk_usage_percent": 50}, "max-disk-usage"),
        ({"min_disk_free_bytes": 6 * FILE_BYTES}, "min-disk-free"),
    ],
)
@run
async def test_the_limits_of_the_disk_block_before_it_is_full(
    tmp_path: Path, limits: dict[str, int], sentence: str
):
    disk = MemoryDisk(capacity_bytes=12 * FILE_BYTES)
    journal = await open_memory(tmp_path, disk, disk_scan_period_s=0.002, **limits)
    sender = Sender(journal)
    await sender.fill()
    assert sentence in str(journal.blocked)
    assert len(disk.files) == 6
    await journal.close()


@run
async def test_with_a_full_disk_a_restart_can_still_acknowledge(tmp_path: Path):
    disk = MemoryDisk(capacity_bytes=8 * FILE_BYTES)
    journal = await open_memory(tmp_path, disk, disk_scan_period_s=0.002)
    sender = Sender(journal)
    await sender.fill()
    await journal.close()
    again = await open_memory(tmp_path, disk, disk_scan_period_s=0.002)
    other = Sender(again)
    await other.drain(sender.sent)
    await until(lambda: again.core.files_ahead() > 0)
    assert other.send()
    await again.close()
    assert len(recover_live(disk, tmp_path)) == 1


@run
async def test_an_idle_journal_frees_its_files(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk)
    sender = Sender(journal)
    for _ in range(100):
        sender.send()
        await journal.wait_durable()
        await asyncio.sleep(0)
    assert journal.statistics().files_reclaimed == 0
    await sender.drain(100)
    await until(lambda: journal.statistics().files_reclaimed >= 5)
    await until(lambda: journal.statistics().files.active - journal.statistics().files.ahead <= 2)
    await journal.close()
    again = await open_memory(tmp_path, disk)
    assert again.core.queue_statistics(1).tail == 101, "sequences are never used twice"
    await again.close()


@run
async def test_after_a_restart_old_files_go_without_new_messages(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, reclaim_period_s=1000.0)
    sender = Sender(journal)
    for _ in range(60):
        await until(sender.send)
        await journal.wait_durable()
        await asyncio.sleep(0)
    await sender.drain(60)
    await journal.close()
    again = await open_memory(tmp_path, disk)
    await until(lambda: again.statistics().files_reclaimed >= 3)
    await again.close()


@run
async def test_rolls_that_come_fast_ask_for_more_files(tmp_path: Path):
    journal = await open_memory(tmp_path, MemoryDisk())
    keeper = journal._keeper
    assert keeper.files_ahead_wanted == 2
    keeper._roll_seconds = 0.05
    assert keeper.files_ahead_wanted == 7
    keeper._roll_seconds = 0.0
    assert keeper.files_ahead_wanted == 16
    await journal.close()


@run
async def test_no_descriptor_left_blocks_and_does_not_fence(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk)
    sender = Sender(journal)
    await until(lambda: journal.core.files_ahead() == 2)
    disk.fail = lambda step, _path: errno.EMFILE if step in ("open", "create") else 0
    await sender.fill()
    assert "Too many open files" in str(journal.blocked)
    assert journal.failure is None
    disk.fail = lambda _step, _path: 0
    await until(lambda: journal.blocked is None)
    assert sender.send()
    await journal.close()


@run_in_virtual_time
async def test_a_fenced_journal_touches_no_file(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, reclaim_period_s=1000.0)
    sender = Sender(journal)
    for _ in range(60):
        await until(sender.send)
        await journal.wait_durable()
    await sender.drain(60)
    await asyncio.sleep(1)
    assert journal.statistics().files.pinned > 0, "there is something to free"
    journal.fail(JournalError("the test says so"))
    steps = len(disk.log)
    journal.request_space()
    await asyncio.sleep(1)
    assert len(disk.log) == steps
    await journal.close()
    assert len(disk.log) == steps


class HungExecutor(InlineExecutor):
    """Runs nothing while it hangs; afterwards what has gathered, and the rest at once."""

    def __init__(self) -> None:
        self.is_hung = False
        self._held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not self.is_hung:
            return super().submit(function, *args, **kwargs)
        future: Future[Any] = Future()
        self._held.append((future, partial(function, *args, **kwargs)))
        return future

    def go_on(self) -> None:
        self.is_hung = False
        for future, function in self._held:
            future.set_result(function())


@run_in_virtual_time
async def test_a_file_that_does_not_come_is_an_error_that_goes_when_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    executor = HungExecutor()
    journal = await MessageJournal.open(
        small_options(tmp_path, file_open_timeout_s=1),
        queue_ids=QUEUES,
        parts=memory_parts(MemoryDisk()),
        executor=executor,
    )
    await until(lambda: journal.core.files_ahead() == 2)
    executor.is_hung = True
    sender = Sender(journal)
    while sender.send():
        await journal.wait_durable()
    assert journal.core.files_ahead() == 0
    assert journal.blocked is None, "not before the time is over"
    await until(lambda: journal.blocked is not None)
    assert isinstance(journal.blocked, JournalFileOverdue)
    assert "1 s (journal-file-open-timeout)" in str(journal.blocked)
    assert journal.failure is None
    assert not sender.send()
    executor.go_on()
    await until(sender.send)
    await until(lambda: journal.blocked is None)
    await journal.wait_durable()
    await journal.close()
    said = [record for record in caplog.records if "journal-file-open-timeout" in record.message]
    assert len(said) == 1, "it is said once"


@run
async def test_without_descriptors_a_full_file_still_gives_its_own_back(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk)
    sender = Sender(journal)
    assert sender.send()
    await journal.wait_durable()
    await until(lambda: journal.core.files_ahead() == 2)
    first = journal.core.current_file()
    disk.fail = lambda step, _path: errno.EMFILE if step in ("open", "create") else 0
    while journal.core.current_file() == first:
        assert sender.send()
        await journal.wait_durable()
    await until(lambda: first not in journal._pool.open_ids)
    await until(lambda: "Too many open files" in str(journal.blocked))
    disk.fail = lambda _step, _path: 0
    await until(lambda: journal.blocked is None)
    await journal.close()
