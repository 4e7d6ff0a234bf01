"""Claims on a journal: who waits, and for how long. The lock is a real one, the disk in memory."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.ownership import (
    OWNER_NAME,
    Claim,
    OwnerOptions,
    begin_claim,
    boot_id,
    release,
)
from vespiary_codec.journal.owner_block import OwnerState, decode_owner_block
from vespiary_spec.errors import CorruptRecord, JournalLocked, NativeError
from vespiary_testkit.faulty_disk import MemoryDisk

HERE = b"this boot......."
THERE = b"another kernel.."


class Volume:
    """A volume that several kernels see; each has locks of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = MemoryDisk()

    def claim(self, boot: bytes = HERE, lease_s: float = 3.0, **options: Any) -> Claim:
        for lock in self.folder.glob("*.lock"):
            lock.unlink()
        values = {"disk": self.disk, "boot_id": boot, "clock_s": lambda: 5.0} | options
        return begin_claim(OwnerOptions(directory=self.folder, lease_s=lease_s, **values))

    def take(self, boot: bytes = HERE) -> Claim:
        claim = self.claim(boot)
        claim.finish()
        return claim

    @property
    def data(self) -> bytearray:
        return self.disk.files[self.folder / OWNER_NAME].data


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path)


def test_the_first_owner_waits_for_nobody(volume: Volume):
    claim = volume.claim()
    assert (claim.wait_s, claim.reason, claim.checked_s) == (0.0, "", 5.0)
    written = decode_owner_block(bytes(volume.data))
    assert written == claim.block
    assert (written.state, written.epoch, written.boot_id) == (OwnerState.HELD, 1, HERE)


def test_a_crash_while_the_file_is_made_leaves_nothing_half(volume: Volume):
    volume.disk.fail = lambda kind, _: errno.ENOSPC if kind == "write" else 0
    with pytest.raises(NativeError, match="No space left"):
        volume.claim()
    volume.disk.fail = lambda *_: 0
    assert volume.claim().block.epoch == 1


def test_who_was_let_go_of_is_not_waited_for(volume: Volume):
    release(volume.take())
    assert decode_owner_block(bytes(volume.data)).state is OwnerState.RELEASED
    claim = volume.claim(THERE)
    assert claim.wait_s == 0
    assert (claim.block.state, claim.block.epoch) == (OwnerState.HELD, 2)
    assert claim.block.ousted_boot_id == bytes(16)


def test_who_died_under_this_kernel_is_not_waited_for(volume: Volume):
    volume.take()
    assert volume.claim().wait_s == 0
    assert decode_owner_block(bytes(volume.data)).epoch == 2


@pytest.mark.parametrize(("lease_s", "wait_s"), [(1.0, 3.3), (3.0, 3.3), (10.0, 11.0)])
def test_another_kernel_is_waited_for_by_the_longer_lease(
    volume: Volume, lease_s: float, wait_s: float
):
    volume.take()
    claim = volume.claim(THERE, lease_s)
    assert claim.wait_s == pytest.approx(wait_s)
    assert "epoch 1" in claim.reason
    assert "has not let go of it; waiting" in claim.reason
    assert decode_owner_block(bytes(volume.data)).state is OwnerState.CLAIMING
    claim.finish()
    held = decode_owner_block(bytes(volume.data))
    assert (held.state, held.lease_ms) == (OwnerState.HELD, lease_s * 1000)
    assert held.ousted_boot_id == HERE


@pytest.mark.parametrize("boot", [HERE, THERE])
def test_a_claim_that_was_not_waited_out_makes_the_next_one_wait_as_long(
    volume: Volume, boot: bytes
):
    """Also on the kernel of the claim: it is dead, and whom it waited for may live."""
    volume.take()
    assert volume.claim(THERE, 10.0).wait_s == pytest.approx(11.0)
    claim = volume.claim(boot, 1.0)
    assert claim.wait_s == pytest.approx(11.0)
    assert claim.block.ousted_boot_id == HERE


def test_who_claims_last_has_it_and_the_other_is_told(volume: Volume):
    volume.take()
    first = volume.claim(THERE)
    second = volume.claim(b"a third kernel..")
    with pytest.raises(JournalLocked, match="in the same moment"):
        first.finish()
    second.finish()
    assert second.block.state is OwnerState.HELD


def test_a_claim_that_is_not_there_behind_the_write_is_none(volume: Volume):
    volume.take()
    foreign = bytes(volume.data)
    written = volume.disk.store

    def store(inode: Any, offset: int, data: bytes, token: int = -1) -> None:
        written(inode, offset, data, token)
        written(inode, offset, foreign, token)

    volume.disk.store = store  # type: ignore[method-assign]
    with pytest.raises(JournalLocked, match="in the same moment"):
        volume.claim()


def test_a_lost_journal_is_not_released(volume: Volume):
    first = volume.take()
    second = volume.take(THERE)
    with pytest.raises(JournalLocked):
        release(first)
    assert bytes(volume.data) == second.data


def test_a_lock_that_is_held_comes_first(volume: Volume, tmp_path: Path):
    claim = volume.take()
    before = bytes(volume.data)
    with pytest.raises(JournalLocked, match="in use by the broker with process id"):
        begin_claim(OwnerOptions(directory=tmp_path, lease_s=1.0, disk=volume.disk))
    assert bytes(volume.data) == before
    claim.close()


@pytest.mark.parametrize("kind", ["read", "write", "flush", "open"])
def test_a_disk_that_fails_is_refused_in_its_words_and_holds_no_lock(volume: Volume, kind: str):
    volume.take()
    volume.disk.fail = lambda step, path: (
        errno.EIO if step == kind and path.name == OWNER_NAME else 0
    )
    with pytest.raises(NativeError, match="Input/output error") as caught:
        volume.claim()
    assert OWNER_NAME in caught.value.where
    volume.disk.fail = lambda *_: 0
    begin_claim(
        OwnerOptions(directory=volume.folder, lease_s=1.0, disk=volume.disk, boot_id=HERE)
    ).close()


def test_a_block_that_says_nothing_stops_the_start(volume: Volume):
    volume.take()
    volume.data[100] ^= 1
    before = bytes(volume.data)
    with pytest.raises(CorruptRecord, match="damaged") as caught:
        volume.claim()
    assert "delete the file" in caught.value.cure
    assert bytes(volume.data) == before


def test_a_kernel_has_one_boot_id():
    assert boot_id() == boot_id()
    assert len(boot_id()) == 16
