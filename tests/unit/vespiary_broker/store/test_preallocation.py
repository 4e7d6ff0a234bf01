"""Every way to give files their size makes the same files, and no power cut tells them apart."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

import pytest

from vespiary_broker.store.attic import ATTIC
from vespiary_broker.store.disk import Disk
from vespiary_broker.store.files import BATCH_FILES, MESSAGE_FORM, FilePool, PoolRules
from vespiary_broker.store.preallocation import CHUNK_BYTES, Preallocator
from vespiary_broker.store.survey import survey_folder
from vespiary_codec.journal.file_header import FileState, decode_file_header
from vespiary_spec.errors import DiskFull, NativeError
from vespiary_spec.settings import PreallocationScope, PreallocationStrategy
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import MemoryDisk, crash_images
from vespiary_testkit.journal_workload import (
    Client,
    judge,
    open_memory,
    recover_live,
    run,
    until,
)
from vespiary_testkit.seeds import seed_for

SIZE = 1024 * 1024
FOLDER = Path("/journal")
STRATEGIES = list(PreallocationStrategy)
WRITTEN = [s for s in STRATEGIES if s is not PreallocationStrategy.SPARSE_FILE]


def make_pool(disk, folder: Path = FOLDER, **rules) -> FilePool:
    return FilePool(
        folder,
        MESSAGE_FORM,
        PoolRules(**({"file_size_bytes": SIZE, "reserve_files": 0} | rules)),
        disk,
        journal_id=b"j" * 16,
        clock_ms=lambda: 7,
        new_salt=lambda: 9,
    )


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_file_by_every_strategy(tmp_path: Path, strategy, is_direct: bool):
    pool = make_pool(Disk(), tmp_path, strategy=strategy, is_direct=is_direct)
    file = pool.activate()
    pool.close()
    data = file.path.read_bytes()
    header = decode_file_header(data)
    assert header is not None
    assert (header.size_bytes, header.is_growing, len(data)) == (SIZE, False, SIZE)
    assert not any(data[512:])
    is_allocated = file.path.stat().st_blocks * 512 >= SIZE
    assert is_allocated is (strategy in WRITTEN)
    assert pool.preallocation_fallbacks == 0


def test_without_preallocation_a_file_starts_with_its_header_alone(tmp_path: Path):
    pool = make_pool(Disk(), tmp_path, is_growing=True)
    file = pool.activate()
    pool.close()
    data = file.path.read_bytes()
    header = decode_file_header(data)
    assert header is not None
    assert (header.size_bytes, header.is_growing, len(data)) == (SIZE, True, 4096)


def test_zeros_is_one_write_and_chunked_zeros_are_many():
    counts = {}
    for strategy in (PreallocationStrategy.ZEROS, PreallocationStrategy.CHUNKED_ZEROS):
        disk = MemoryDisk()
        make_pool(disk, strategy=strategy).activate()
        counts[strategy] = len([op for op in disk.log if len(op.data) > 4096])
    assert list(counts.values()) == [1, SIZE // CHUNK_BYTES]


def test_a_template_is_made_once_and_again_when_it_is_too_short(tmp_path: Path):
    disk, template = Disk(), tmp_path / "activemq-data.template"
    pool = make_pool(disk, tmp_path, strategy=PreallocationStrategy.OS_KERNEL_COPY)
    pool.activate()
    first = template.stat().st_mtime_ns
    pool.activate()
    assert template.stat().st_mtime_ns == first
    with template.open("rb+") as file:
        file.truncate(4096)
    assert pool.activate().path.stat().st_size == SIZE
    assert template.stat().st_size == SIZE
    pool.close()
    assert MESSAGE_FORM.number(template.name) is None, "it is no journal file"


@pytest.mark.parametrize(
    ("strategy", "step"),
    [
        (PreallocationStrategy.SPARSE_FILE, "set_size"),
        (PreallocationStrategy.OS_KERNEL_COPY, "copy"),
    ],
)
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV])
def test_a_refused_strategy_is_replaced_and_said(
    strategy, step: str, number: int, caplog: pytest.LogCaptureFixture
):
    disk = MemoryDisk()
    disk.fail = lambda kind, _path: number if kind == step else 0
    pool = make_pool(disk, strategy=strategy)
    pool.activate()
    pool.activate()
    assert pool.preallocation_fallbacks == 2
    assert len([r for r in caplog.records if str(strategy) in r.getMessage()]) == 1
    assert len(disk.files[FOLDER / "activemq-data-1.hq"].data) == SIZE
    assert len(disk.open_files) == 2, "the two active files and nothing else"


@pytest.mark.parametrize(
    ("strategy", "step"),
    [
        (PreallocationStrategy.ZEROS, "write"),
        (PreallocationStrategy.SPARSE_FILE, "set_size"),
        (PreallocationStrategy.OS_KERNEL_COPY, "copy"),
    ],
)
def test_a_broken_disk_is_no_reason_for_another_strategy(strategy, step: str):
    disk = MemoryDisk()
    disk.fail = lambda kind, _path: errno.EIO if kind == step else 0
    pool = make_pool(disk, strategy=strategy)
    with pytest.raises(NativeError) as caught:
        pool.activate()
    assert caught.value.errno == errno.EIO
    assert pool.preallocation_fallbacks == 0
    assert not disk.open_files


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_full_disk_is_a_state_by_every_strategy(strategy):
    disk = MemoryDisk(capacity_bytes=3 * SIZE + 8192)
    pool = make_pool(disk, strategy=strategy)
    fitting = 2 if strategy is PreallocationStrategy.OS_KERNEL_COPY else 3  # and the template
    for _ in range(fitting):
        pool.activate()
    with pytest.raises(DiskFull, match="no room for a new journal file"):
        pool.activate()
    assert not [path for path in disk.files if path.name.endswith(".tmp")]


@pytest.mark.parametrize(
    "rules", [{"strategy": PreallocationStrategy.SPARSE_FILE}, {"is_growing": True}]
)
def test_space_that_sparse_files_will_take_is_counted(tmp_path: Path, rules):
    class SmallDisk(Disk):
        """Says that there is room for three files, whatever was made."""

        def usage(self, folder: Path):
            return super().usage(folder)._replace(total=10 * SIZE, free=3 * SIZE)

    pool = make_pool(SmallDisk(), tmp_path, **rules)
    for _ in range(3):
        pool.activate()
    with pytest.raises(DiskFull, match="no room for a new journal file"):
        pool.activate()
    pool.close()


def test_a_batch_flushes_every_file_and_its_folder_once():
    disk = MemoryDisk()
    pool = make_pool(disk)
    pool.make_ahead(10)
    assert pool.counts.free == BATCH_FILES
    kinds = [op.kind for op in disk.log]
    assert (kinds.count("flush"), kinds.count("rename"), kinds.count("folder")) == (4, 4, 1)
    assert kinds.index("rename") > [i for i, k in enumerate(kinds) if k == "flush"][-1]
    pool.make_ahead(2)
    assert pool.counts.free == BATCH_FILES, "there are enough"


def test_a_disk_that_fills_up_within_a_batch_leaves_whole_files():
    disk = MemoryDisk(capacity_bytes=2 * SIZE + 8192)
    pool = make_pool(disk)
    pool.make_ahead(4)
    assert pool.counts.free == 2
    pool.make_ahead(4)  # there is a spare file, so a full disk is nobody's trouble yet
    pool.activate()
    pool.activate()
    with pytest.raises(DiskFull):
        pool.make_ahead(1)


@pytest.mark.ci
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_cut_at_any_step_of_a_batch_leaves_whole_files(strategy):
    disk = MemoryDisk()
    pool = make_pool(disk, strategy=strategy, file_size_bytes=64 * 1024)
    pool.make_ahead(3)
    pool.activate()
    pool.release(1)
    pool.activate()
    count = 0
    for image in crash_images(disk.log, seed=seed_for("preallocation"), torn_max=8, subsets_max=16):
        count += 1
        survey = survey_folder(FOLDER, MESSAGE_FORM, image.disk, is_direct=True)
        assert all(f.size_bytes == 64 * 1024 for f in (*survey.active, *survey.free))
        again = make_pool(image.disk, file_size_bytes=64 * 1024)
        for path in survey.unfinished:
            again.clear_unfinished(path)
            assert path not in image.disk.files, "what was being made holds nothing"
    assert count > 60


# --- whole journals ------------------------------------------------------------------------------

MODES = [
    *({"preallocation_strategy": strategy} for strategy in STRATEGIES),
    {"preallocation_scope": PreallocationScope.NONE},
]


async def live_a_little(folder: Path, disk: MemoryDisk, **options) -> None:
    for life in range(2):
        journal = await open_memory(folder, disk, **options)
        client = Client(journal, disk, seed_for(f"preallocation life {life}"))
        client.transaction = 100 * life
        for turn in range(6):
            await client.send(4)
            await client.receive()
            await client.acknowledge(len(client.held) // 2)
            if turn % 2:
                await client.send_transaction(2)
            await asyncio.sleep(0.002)
        await journal.close()


@pytest.mark.ci
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: str(*mode.values()))
def test_no_power_cut_loses_what_was_confirmed(tmp_path: Path, mode):
    disk = MemoryDisk()
    logging.disable(logging.WARNING)
    product_loop.run(live_a_little(tmp_path, disk, **mode))
    logging.disable(logging.NOTSET)
    count = 0
    for image in crash_images(disk.log, seed=seed_for("preallocation"), torn_max=2, subsets_max=6):
        count += 1
        if count % 4:
            continue
        wrong = judge(image.marks, recover_live(image.disk, tmp_path))
        assert not wrong, f"{wrong} (cut {image.cut}, {image.label})"
    assert count > 400


@pytest.mark.parametrize("scope", list(PreallocationScope))
@run
async def test_the_scope_decides_when_files_get_their_size(tmp_path: Path, scope):
    disk = MemoryDisk()
    journal = await open_memory(
        tmp_path, disk, preallocation_scope=scope, min_files=6, reclaim_period_s=1000.0
    )
    at_start = sorted(len(inode.data) for inode in disk.files.values())
    await until(lambda: len(disk.files) >= 6)
    await journal.close()
    expected = {
        PreallocationScope.ENTIRE_JOURNAL: [65536] * 6,
        PreallocationScope.ENTIRE_JOURNAL_ASYNC: [65536],
        PreallocationScope.NONE: [4096],
    }
    assert at_start == expected[scope]


@run
async def test_a_file_that_grew_is_read_back_and_filled_up_when_it_is_used_again(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(
        tmp_path, disk, preallocation_scope=PreallocationScope.NONE, reclaim_period_s=1000.0
    )
    client = Client(journal, disk, 1)
    for _ in range(60):
        await until(lambda: journal.core.files_ahead() > 0)
        await client.send(4)
    current = journal.core.current_file()
    assert current >= 10
    sizes = {path.name: len(inode.data) for path, inode in disk.files.items()}
    assert sizes[f"activemq-data-{current}.hq"] < 65536
    assert sizes[f"activemq-data-{current + 1}.hq"] == 4096
    last = journal._pool.active_ids[-1]  # files that were made ready stay as they are
    await journal.close()
    again = await open_memory(tmp_path, disk, memory_bytes=1)
    other = Client(again, disk, 2)
    await other.receive()
    assert len(other.held) == 240
    assert again.statistics().slab_loads >= 1
    await other.acknowledge(240)
    await until(lambda: again.statistics().files_reclaimed >= 3)
    while again.core.current_file() < last + 2:
        await until(lambda: again.core.files_ahead() > 0)
        await other.send(4)
        await asyncio.sleep(0)
    await again.close()
    headers = [decode_file_header(bytes(inode.data[:512])) for inode in disk.files.values()]
    new = [h for h in headers if h and h.state is FileState.ACTIVE and h.file_id > last]
    assert new
    assert not any(header.is_growing for header in new)


# --- unfinished files ----------------------------------------------------------------------------


def test_unfinished_files_that_hold_something_go_to_the_attic_until_it_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    pool = make_pool(Disk(), tmp_path, max_attic_files=2)
    path = tmp_path / "activemq-data-9.hq.tmp"
    for turn in range(3):
        path.write_text(f"data {turn}")
        pool.clear_unfinished(path)
        assert path.exists() is (turn == 2)
    attic = sorted(kept.read_text() for kept in (tmp_path / ATTIC).iterdir())
    assert attic == ["data 0", "data 1"]
    assert path.read_text() == "data 2"
    assert "stays where it is" in caplog.text
    assert "journal-max-attic-files" in caplog.text


@pytest.mark.parametrize("place", [0, 4095, 4096, 300_000, 524_287])
def test_one_byte_is_enough_to_be_kept(tmp_path: Path, place: int):
    pool = make_pool(Disk(), tmp_path)
    path = tmp_path / "activemq-data-9.hq.tmp"
    data = bytearray(524_288)
    path.write_bytes(data)
    pool.clear_unfinished(path)
    assert not path.exists(), "zeros are nobody's data"
    data[place] = 1
    path.write_bytes(data)
    pool.clear_unfinished(path)
    assert (tmp_path / ATTIC / path.name).read_bytes() == data


def test_an_unfinished_file_with_an_active_header_is_kept(tmp_path: Path):
    pool = make_pool(Disk(), tmp_path)
    file = pool.activate()
    pool.close()
    path = file.path.rename(tmp_path / "activemq-data-5.hq.tmp")
    pool.clear_unfinished(path)
    assert (tmp_path / ATTIC / path.name).exists()


def test_the_strategy_in_use_is_known(tmp_path: Path):
    maker = Preallocator(tmp_path / "t", Disk(), PreallocationStrategy.SPARSE_FILE, is_direct=False)
    handle = maker.make(tmp_path / "a", 8192)
    handle.close()
    assert (tmp_path / "a").read_bytes() == bytes(8192)
    assert maker.strategy is PreallocationStrategy.SPARSE_FILE
