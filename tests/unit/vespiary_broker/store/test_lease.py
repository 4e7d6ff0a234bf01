"""The lease: what is confirmed while the block was read long ago, cannot be read, or is lost."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.bindings import BindingsJournal, BindingsParts
from vespiary_broker.store.lease import Lease
from vespiary_broker.store.ownership import OWNER_NAME, Claim, OwnerOptions, begin_claim
from vespiary_broker.store.writer import MessageJournal
from vespiary_codec.journal.owner_block import OwnerState, decode_owner_block
from vespiary_spec.errors import OwnershipLost, WriterFailed
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_workload import open_memory, run, until

LEASE_S = 3.0


class Rig:
    """A journal under a lease whose clock and looks are the test's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("journal", "bindings"):  # locks lie in real folders
            (folder / name).mkdir()
        self.disk = MemoryDisk()
        self.now_s = 100.0
        self.lost: list[OwnershipLost] = []
        self.failures: list[WriterFailed] = []
        self.lease = Lease(self.claim(b"this boot......."), asyncio.get_running_loop())
        self.lease.on_lost = self._on_lost
        self.journal: MessageJournal
        self.ring: MemoryRing

    def claim(self, boot: bytes) -> Claim:
        for lock in self.folder.glob("*.lock"):
            lock.unlink()
        claim = begin_claim(
            OwnerOptions(
                directory=self.folder,
                lease_s=LEASE_S,
                disk=self.disk,
                boot_id=boot,
                clock_s=lambda: self.now_s,
            )
        )
        claim.finish()
        return claim

    def _on_lost(self, error: OwnershipLost) -> None:
        self.lost.append(error)
        self.journal.fail(error)

    async def open(self) -> MessageJournal:
        def make_ring(disk: MemoryDisk) -> Any:
            self.ring = MemoryRing(disk)
            return self.lease.leased(self.ring)

        self.journal = await open_memory(
            self.folder / "journal",
            self.disk,
            make_ring,
            quiet_delay_s=1000.0,
            reclaim_period_s=1000.0,
        )
        self.journal.on_failed = self.failures.append
        self.core = self.journal.core
        self.route = self.core.open_route([1])
        await asyncio.sleep(0)
        self.publish()
        await self.journal.wait_durable()
        await until(lambda: self.confirmed == 1 and not self.ring.outstanding)
        await self.journal.wait_durable()
        return self.journal

    def publish(self) -> None:
        self.core.publish(self.route, b"", b"body", persistent=True)
        self.core.receipt(self.core.open_connection(), b"R")

    @property
    def confirmed(self) -> int:
        return self.core.queue_statistics(1).available - 1

    @property
    def ring_writes(self) -> int:
        """Blocks that went to the disk."""
        return sum(op.kind == "write" and op.token >= 0 for op in self.disk.log)

    async def settle(self) -> None:
        """Let everything happen that can."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def look(self) -> bool:
        """Have the block read."""
        found = self.lease.look()
        await self.settle()
        return found

    async def close(self) -> None:
        await self.journal.close()
        self.lease.close()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def begin_write(rig: Rig) -> None:
    """Have a message on its way to the disk."""
    rig.ring.hold()
    rig.publish()
    rig.journal.kick()


def under_lease(test: Callable[[Rig], Awaitable[None]]) -> Callable[[Path], None]:
    """Run a test with a rig that is open, and close it."""

    async def scenario(tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        await rig.open()
        await test(rig)
        await rig.close()

    found: Callable[[Path], None] = run(scenario)
    found.__name__, found.__doc__ = test.__name__, test.__doc__
    return found


@under_lease
async def test_under_the_lease_nothing_waits(rig: Rig):
    rig.now_s += LEASE_S * 0.6
    rig.publish()
    await rig.journal.wait_durable()
    assert rig.confirmed == 2


@under_lease
async def test_no_confirm_leaves_once_the_lease_has_run_out(rig: Rig):
    begin_write(rig)
    rig.now_s += LEASE_S  # the process was stopped
    rig.ring.release()
    await rig.settle()
    assert rig.confirmed == 1
    assert await rig.look()
    assert rig.confirmed == 2


@under_lease
async def test_a_look_that_began_before_the_flush_confirms_nothing(rig: Rig):
    """However it ends: the claim of another broker may have come between."""
    begin_write(rig)
    rig.now_s += 2 * LEASE_S
    begun_s = rig.now_s - 1.5 * LEASE_S
    rig.ring.release()
    await rig.settle()
    rig.lease._note(begun_s)  # one that took all this time
    rig.lease._wake()
    await rig.settle()
    assert rig.confirmed == 1
    await rig.look()
    assert rig.confirmed == 2


@under_lease
async def test_looks_that_take_longer_than_the_lease_still_confirm(rig: Rig):
    read = rig.lease._claim.file.read

    def slow_read() -> bytes:
        found = read()
        rig.now_s += 2 * LEASE_S
        return found

    rig.lease._claim.file.read = slow_read  # type: ignore[method-assign]
    begin_write(rig)
    rig.now_s += LEASE_S
    rig.ring.release()
    await rig.settle()
    assert rig.confirmed == 1
    await rig.look()
    assert rig.confirmed == 2, "the look began behind the flush"
    written = rig.ring_writes
    rig.publish()
    rig.journal.kick()
    await rig.look()
    assert rig.ring_writes == written, "by the time it was read, somebody else may have claimed it"
    rig.lease._claim.file.read = read  # type: ignore[method-assign]
    await rig.look()


@under_lease
async def test_a_look_counts_from_its_beginning(rig: Rig):
    """What it read may have been another's before it ended."""
    read = rig.lease._claim.file.read

    def slow_read() -> bytes:
        rig.now_s += LEASE_S
        return read()

    rig.lease._claim.file.read = slow_read  # type: ignore[method-assign]
    await rig.look()
    assert not rig.lease.may_confirm()
    rig.lease._claim.file.read = read  # type: ignore[method-assign]
    await rig.look()
    assert rig.lease.may_confirm()


@under_lease
async def test_no_write_begins_late_in_the_lease(rig: Rig):
    rig.now_s += LEASE_S * 0.7
    written = rig.ring_writes
    rig.publish()
    rig.journal.kick()
    await rig.settle()
    assert rig.ring_writes == written
    await rig.look()
    await rig.journal.wait_durable()
    assert rig.confirmed == 2


@under_lease
async def test_a_stop_behind_a_look_begins_no_write(rig: Rig):
    """What the look allowed when it ended is over when the process goes on."""
    rig.now_s += LEASE_S
    written = rig.ring_writes
    rig.publish()
    rig.journal.kick()
    await rig.settle()
    assert rig.lease.look()
    rig.now_s += 100 * LEASE_S  # stopped before the loop took it up
    await rig.settle()
    assert rig.ring_writes == written
    await rig.look()
    await rig.journal.wait_durable()
    assert rig.confirmed == 2


@run
async def test_whoever_is_ousted_confirms_nothing_and_writes_nothing(tmp_path: Path):
    rig = Rig(tmp_path)
    await rig.open()
    begin_write(rig)
    rig.now_s += LEASE_S * 2
    rig.claim(b"another kernel..")
    written = rig.ring_writes
    rig.ring.release()
    await rig.settle()
    assert not await rig.look()
    assert rig.confirmed == 1
    assert rig.failures == rig.lost
    assert len(rig.lost) == 1
    assert "belongs to another broker now" in str(rig.failures[0])
    assert rig.failures[0].exit_code == 3
    with pytest.raises(OwnershipLost):
        rig.lease.require()
    await rig.close()
    assert rig.ring_writes == written


@under_lease
async def test_who_is_ousted_within_the_lease_is_told_by_the_next_look(rig: Rig):
    rig.claim(b"another kernel..")
    rig.publish()
    await rig.journal.wait_durable()  # it is on the disk before the other one reads
    assert rig.confirmed == 2
    assert not await rig.look()
    rig.publish()
    rig.journal.kick()
    await rig.settle()
    assert rig.confirmed == 2


@run
async def test_bindings_are_confirmed_by_the_same_rule(tmp_path: Path):
    rig = Rig(tmp_path)
    ring = MemoryRing(rig.disk)
    bindings = await BindingsJournal.open(
        tmp_path / "bindings",
        file_size_bytes=64 * 1024,
        parts=BindingsParts(disk=rig.disk, open_ring=lambda: rig.lease.leased(ring)),
    )
    rig.journal = bindings  # type: ignore[assignment]
    rig.lease.on_lost = rig.lost.append
    await bindings.put("queue/1", {"name": "a"})
    rig.now_s += LEASE_S
    second = asyncio.ensure_future(bindings.put("queue/2", {"name": "b"}))
    await rig.settle()
    assert not second.done()
    await rig.look()
    await second
    rig.now_s += LEASE_S
    third = asyncio.ensure_future(bindings.put("queue/3", {"name": "c"}))
    await rig.settle()
    rig.claim(b"another kernel..")
    await rig.look()
    with pytest.raises(WriterFailed):
        await third
    await bindings.close()
    rig.lease.close()


@run
async def test_a_look_that_fails_says_why_confirms_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rig = Rig(tmp_path)
    await rig.open()
    assert rig.lease.state().waiting_reason is None
    rig.disk.fail = lambda kind, path: errno.EIO if path.name == OWNER_NAME else 0
    rig.now_s += LEASE_S + 1
    assert await rig.look()
    state = rig.lease.state()
    assert (state.epoch, state.lease_s, state.age_s) == (1, LEASE_S, LEASE_S + 1)
    assert "was last read 4.0 s ago, allowed are 3 s (journal-ownership-lease)" in str(
        state.waiting_reason
    )
    assert "Input/output error" in str(state.waiting_reason)
    rig.publish()
    rig.journal.kick()
    rig.journal.kick()
    await rig.settle()
    told = [one for one in caplog.records if "confirms wait for a look" in one.getMessage()]
    assert [one.levelno for one in told] == [logging.WARNING]
    rig.disk.fail = lambda *_: 0
    await rig.look()
    await rig.journal.wait_durable()
    assert rig.lease.state().waiting_reason is None
    await rig.close()


@run
async def test_the_block_is_released_last(tmp_path: Path):
    rig = Rig(tmp_path)
    await rig.open()
    await rig.close()
    written = [op for op in rig.disk.log if op.kind == "write"]
    assert decode_owner_block(written[-1].data).state is OwnerState.RELEASED
    rig.claim(b"another kernel..").close()


@run
async def test_a_disk_that_takes_no_release_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rig = Rig(tmp_path)
    await rig.open()
    await rig.journal.close()
    rig.disk.fail = lambda kind, _: errno.EIO if kind == "write" else 0
    rig.lease.close()
    assert "the next owner waits" in caplog.text


@run
async def test_the_thread_looks_by_itself_and_lets_threads_change_files(tmp_path: Path):
    rig = Rig(tmp_path)
    await rig.open()
    rig.now_s += LEASE_S
    rig.lease.start()
    waiter = threading.Thread(target=rig.lease.require)
    waiter.start()
    await until(lambda: not waiter.is_alive())
    assert rig.lease.state().age_s == 0
    rig.lease.disk.make_folder(tmp_path / "made")
    await rig.close()


@run
async def test_a_disk_under_a_lost_lease_changes_nothing(tmp_path: Path):
    rig = Rig(tmp_path)
    rig.journal = None  # type: ignore[assignment]
    rig.lease.on_lost = rig.lost.append
    disk = rig.lease.disk
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(bytes(4096))
    file = disk.open(tmp_path / "file", is_direct=False, is_readonly=False)
    before = names_in(tmp_path)
    rig.claim(b"another kernel..")
    rig.lease.look()
    for change in (
        lambda: file.write(memoryview(b"x" * 4096), 0),
        lambda: file.set_size(8192),
        lambda: disk.create(tmp_path / "new", is_direct=False),
        lambda: disk.make_folder(tmp_path / "more"),
        lambda: disk.rename(tmp_path / "file", tmp_path / "other"),
        lambda: disk.remove(tmp_path / "file"),
        lambda: disk.remove_folder(tmp_path / "folder"),
        lambda: disk.copy_file(tmp_path / "file", tmp_path / "copy", 1),
    ):
        with pytest.raises(OwnershipLost):
            change()
    file.close()
    after = names_in(tmp_path)
    assert set(after) - set(before) <= {"server.lock"}
    assert (tmp_path / "file").read_bytes() == bytes(4096)
