"""The disk reserve: what a start on a full disk gives up, and how it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_broker.store.disk import Disk, Usage
from vespiary_broker.store.files import MESSAGE_FORM, FilePool, PoolRules, SpaceLimits
from vespiary_broker.store.reserve import NAME, START_BYTES, DiskReserve
from vespiary_spec.errors import DiskFull

SIZE = 256 * 1024
FILE = 64 * 1024
TOTAL = 1024 * 1024 * 1024


class MeasuredDisk(Disk):
    """A disk that is as full as the test says."""

    def __init__(self, free: int = TOTAL // 2, total: int = TOTAL) -> None:
        super().__init__()
        self.free, self.total = free, total

    def usage(self, folder: Path) -> Usage:
        return Usage(self.total, self.free)


def made(folder: Path, disk: Disk | None = None, size_bytes: int = SIZE) -> DiskReserve:
    reserve = DiskReserve(folder, size_bytes, disk or MeasuredDisk())
    reserve.find()
    reserve.make()
    return reserve


def pool_of(folder: Path, disk: Disk, reserve: DiskReserve) -> FilePool:
    rules = PoolRules(file_size_bytes=FILE, limits=SpaceLimits(100, -1))
    return FilePool(folder, MESSAGE_FORM, rules, disk, journal_id=b"j" * 16, reserve=reserve)


def test_its_blocks_are_allocated(tmp_path: Path):
    reserve = made(tmp_path)
    assert (reserve.size_bytes, reserve.owed_bytes, reserve.is_missing) == (SIZE, 0, False)
    facts = (tmp_path / NAME).stat()
    assert facts.st_size == SIZE
    assert facts.st_blocks * 512 >= SIZE
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_start_that_finds_space_keeps_it(tmp_path: Path):
    disk = MeasuredDisk(START_BYTES)
    assert not made(tmp_path, disk).release_if_full()
    disk.free -= 1
    assert made(tmp_path, disk).release_if_full()


def test_what_it_gave_up_is_owed_over_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    assert made(tmp_path).release()
    assert "gives up the disk reserve" in caplog.text
    assert (tmp_path / NAME).stat().st_size == 0
    again = DiskReserve(tmp_path, SIZE, MeasuredDisk())
    again.find()
    assert (again.size_bytes, again.owed_bytes, again.is_missing) == (0, SIZE, True)
    assert not again.release(), "there is nothing left to give up"
    again.make()
    assert (again.size_bytes, again.owed_bytes) == (SIZE, 0)
    assert "is there again" in caplog.text


def test_one_that_is_not_wanted_any_more_goes(tmp_path: Path):
    made(tmp_path)
    other = DiskReserve(tmp_path, 0, MeasuredDisk())
    other.find()
    other.make()
    assert list(tmp_path.iterdir()) == []
    assert not other.is_missing
    made(tmp_path)
    assert made(tmp_path, size_bytes=2 * SIZE).size_bytes == 2 * SIZE
    assert (tmp_path / NAME).stat().st_size == 2 * SIZE


def test_without_a_folder_there_is_none_yet(tmp_path: Path):
    reserve = DiskReserve(tmp_path / "no", SIZE, MeasuredDisk())
    reserve.find()
    assert not reserve.release_if_full()


def test_a_small_volume_has_one_only_if_that_was_asked_for(tmp_path: Path):
    disk = MeasuredDisk(7 * SIZE, 7 * SIZE)
    reserve = DiskReserve(tmp_path, SIZE, disk, is_asked_for=False)
    reserve.make()
    assert not reserve.size_bytes
    assert not reserve.is_missing
    assert made(tmp_path, disk).size_bytes == SIZE


def test_producers_get_no_file_out_of_what_is_owed(tmp_path: Path):
    disk = MeasuredDisk()
    reserve = made(tmp_path, disk)
    pool = pool_of(tmp_path, disk, reserve)
    disk.free = 4 * FILE
    pool.check_space(FILE)
    reserve.release()
    disk.free = SIZE + FILE - 1
    with pytest.raises(DiskFull, match="disk reserve is owed"):
        pool.check_space(FILE)
    pool.make_reserve()
    assert pool.reserve_owed_bytes == SIZE, "there is no room for both"
    pool.activate(is_first=True)  # for acknowledgements
    disk.free = SIZE + FILE
    pool.make_reserve()
    assert (pool.reserve_bytes, pool.reserve_owed_bytes, pool.lacks_reserve) == (SIZE, 0, False)
    pool.check_space(FILE)
    pool.close()


def test_one_that_was_never_made_takes_nothing_from_producers(tmp_path: Path):
    disk = MeasuredDisk(SIZE + FILE - 1)
    reserve = DiskReserve(tmp_path, SIZE, disk)
    reserve.find()
    pool = pool_of(tmp_path, disk, reserve)
    pool.make_reserve()
    assert pool.lacks_reserve
    pool.check_space(FILE)


def test_a_disk_that_has_no_room_after_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    reserve = made(tmp_path)
    assert reserve.is_missing
    assert list(tmp_path.iterdir()) == []
