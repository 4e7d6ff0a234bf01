"""The pool: files are made whole, activated and freed in steps that a power cut can't break."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from vespiary_broker.store.disk import Disk
from vespiary_broker.store.files import (
    BINDINGS_FORM,
    MESSAGE_FORM,
    FilePool,
    PoolRules,
    SpaceLimits,
    StoredFile,
)
from vespiary_broker.store.survey import survey_folder
from vespiary_codec.journal.file_header import FileState, decode_file_header
from vespiary_spec.errors import DiskFull, NativeError
from vespiary_testkit.faulty_disk import MemoryDisk, crash_images
from vespiary_testkit.seeds import seed_for

SIZE = 64 * 1024
FOLDER = Path("/journal")


def make_pool(disk, folder: Path = FOLDER, **rules) -> FilePool:
    salts = itertools.count(1000)
    return FilePool(
        folder,
        MESSAGE_FORM,
        PoolRules(**({"file_size_bytes": SIZE, "reserve_files": 0} | rules)),
        disk,
        journal_id=b"j" * 16,
        clock_ms=lambda: 7,
        new_salt=lambda: next(salts),
    )


def header(disk: MemoryDisk, name: str):
    return decode_file_header(bytes(disk.files[FOLDER / name].data[:512]))


def test_names():
    assert MESSAGE_FORM.name(3) == "activemq-data-3.hq"
    assert BINDINGS_FORM.name(3) == "activemq-bindings-3.bindings"
    assert MESSAGE_FORM.number("activemq-data-12.hq") == 12
    assert MESSAGE_FORM.number("activemq-data-12.hq.tmp") == 12
    for name in ("activemq-data-.hq", "activemq-data-1.hqx", "xactivemq-data-1.hq", "server.lock"):
        assert MESSAGE_FORM.number(name) is None


def test_the_first_file(tmp_path: Path):
    pool = make_pool(Disk(), tmp_path)
    file = pool.activate()
    assert (file.file_id, file.salt, file.path.name) == (1, 1000, "activemq-data-1.hq")
    data = file.path.read_bytes()
    found = decode_file_header(data)
    assert found is not None
    assert (found.state, found.file_id, found.salt) == (FileState.ACTIVE, 1, 1000)
    assert (found.size_bytes, found.activated_ms, len(data)) == (SIZE, 7, SIZE)
    assert not any(data[512:])
    assert (tmp_path.stat().st_mode & 0o077, file.path.stat().st_mode & 0o777) >= (0, 0o600)
    # Written, not only reserved: st_blocks counts what has a place on the disk.
    assert file.path.stat().st_blocks * 512 >= SIZE
    pool.close()
    assert [path.name for path in tmp_path.iterdir()] == ["activemq-data-1.hq"]


def test_ids_are_given_without_gaps_and_files_are_used_again():
    disk = MemoryDisk()
    pool = make_pool(disk)
    for file_id in (1, 2, 3):
        assert pool.activate().file_id == file_id
    pool.release(2)
    assert header(disk, "activemq-data-2.hq").state is FileState.FREE
    again = pool.activate()
    assert (again.file_id, again.salt, again.path.name) == (4, 1003, "activemq-data-4.hq")
    assert sorted(path.name for path in disk.files) == [f"activemq-data-{n}.hq" for n in (1, 3, 4)]
    assert pool.active_ids == [1, 3, 4]
    assert (pool.made, pool.reclaimed) == (3, 1)


def test_the_floor_and_the_reserve():
    pool = make_pool(MemoryDisk(), min_files=4, reserve_files=1)
    pool.fill_floor()
    assert pool.counts.free == 4
    for _ in range(4):
        pool.activate()
    assert (pool.counts.active, pool.counts.free) == (4, 1)
    assert not pool.has_spare


def test_free_files_beyond_the_pool_are_deleted_but_never_below_the_floor():
    disk = MemoryDisk()
    pool = make_pool(disk, min_files=2, pool_files=1)
    for _ in range(5):
        pool.activate()
    for file_id in (1, 2, 3, 4):
        pool.release(file_id)
    assert (pool.counts.active, pool.counts.free, len(disk.files)) == (1, 1, 2)


def test_a_full_disk_is_a_state_and_leaves_nothing_behind():
    disk = MemoryDisk(capacity_bytes=3 * SIZE + 100)
    pool = make_pool(disk)
    for _ in range(3):
        pool.activate()
    with pytest.raises(DiskFull, match="no room for a new journal file"):
        pool.activate()
    assert len(disk.files) == 3
    pool.release(1)
    assert pool.activate().file_id == 4


def test_the_first_file_after_a_start_may_take_the_reserve():
    disk = MemoryDisk(capacity_bytes=2 * SIZE)
    pool = make_pool(disk, reserve_files=1)
    pool.fill_floor()
    assert pool.activate().file_id == 1
    with pytest.raises(DiskFull):
        pool.activate()
    assert pool.activate(is_first=True).file_id == 2


@pytest.mark.parametrize(
    ("limits", "files"),
    [
        (SpaceLimits(50, -1), 5),
        (SpaceLimits(100, -1), 10),
        (SpaceLimits(100, 3 * SIZE), 7),
        (SpaceLimits(10, 3 * SIZE), 7),  # min-disk-free wins
    ],
)
def test_the_limits_of_the_disk(limits: SpaceLimits, files: int):
    disk = MemoryDisk(capacity_bytes=10 * SIZE)
    pool = make_pool(disk, limits=limits)
    for _ in range(files):
        pool.activate()
    with pytest.raises(DiskFull) as caught:
        pool.activate()
    assert caught.value.cure == "consume messages or enlarge the volume"


@pytest.mark.parametrize("kind", ["create", "write", "flush", "rename", "flush_folder", "open"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_every_failed_call_comes_out(kind: str, number: int):
    disk = MemoryDisk()
    pool = make_pool(disk)
    disk.fail = lambda step, _path: number if step == kind else 0
    with pytest.raises(NativeError) as caught:
        pool.activate()
    assert caught.value.errno == number
    assert pool.active_ids == []
    assert not disk.open_files, "nothing stays open"


@pytest.mark.parametrize("is_made_before", [True, False])
def test_names_that_no_descriptor_was_left_to_flush_are_flushed_before_use(is_made_before: bool):
    disk = MemoryDisk()
    pool = make_pool(disk)
    if is_made_before:
        pool.activate()
        pool.activate()
        pool.release(1)  # the next one takes this file, under another name
    disk.fail = lambda step, _path: errno.EMFILE if step == "flush_folder" else 0
    for _ in range(3):
        with pytest.raises(NativeError, match="Too many open files"):
            pool.activate()
    disk.fail = lambda _step, _path: 0
    begin = len(disk.log)
    file = pool.activate()
    assert file.file_id == (3 if is_made_before else 1)
    assert pool.counts.active + pool.counts.free == (2 if is_made_before else 1)
    kinds = [step.kind for step in disk.log[begin:]]
    assert kinds.index("folder") < kinds.index("write"), "the name is durable before the header"


def test_a_file_whose_header_can_not_be_freed_stays_in_use():
    disk = MemoryDisk()
    pool = make_pool(disk)
    pool.activate()
    disk.fail = lambda step, _path: errno.EIO if step == "flush" else 0
    with pytest.raises(NativeError):
        pool.release(1)
    assert pool.active_ids == [1]


def test_a_cut_at_any_step_leaves_files_before_or_after_it():
    disk = MemoryDisk()
    pool = make_pool(disk)
    pool.activate()
    pool.activate()
    pool.release(1)
    pool.activate()
    count = 0
    for image in crash_images(disk.log, seed=seed_for("files"), torn_max=20, subsets_max=64):
        count += 1
        survey = survey_folder(FOLDER, MESSAGE_FORM, image.disk, is_direct=True)
        ids = [file.file_id for file in survey.active]
        assert len(ids) == len(set(ids))
        assert set(ids) <= {1, 2, 3}
        assert all(file.size_bytes == SIZE for file in (*survey.active, *survey.free))
    assert count > 300


def test_an_unfinished_file_that_stayed_is_not_written_over(tmp_path: Path):
    odd = tmp_path / "activemq-data-1.hq.tmp"
    odd.write_bytes(b"x" * 999_999)
    pool = make_pool(Disk(), tmp_path)
    assert pool.activate().path.stat().st_size == SIZE
    pool.close()
    assert odd.read_bytes() == b"x" * 999_999


def test_files_of_another_size_are_kept():
    disk = MemoryDisk()
    pool = make_pool(disk)
    pool.activate()
    pool.release(1)
    other = make_pool(disk, file_size_bytes=2 * SIZE)
    path = FOLDER / "activemq-data-1.hq"
    other.adopt([], [StoredFile(path, 1, 1, 1000, SIZE)], 2)
    assert other.activate().size_bytes == SIZE
    assert other.activate().size_bytes == 2 * SIZE
