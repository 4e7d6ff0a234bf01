"""Power cuts with duplicate ids: a message and its id are there both or neither, so a message that
is sent again after a crash is neither lost nor doubled."""

from __future__ import annotations

import asyncio
import functools
import logging
from pathlib import Path

import pytest

from vespiary_testkit.duplicates_workload import Producer, found_on, judge, live, new_ids
from vespiary_testkit.faulty_disk import MemoryDisk, Op, crash_images, recorded
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_workload import open_memory
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.virtual_time import run_virtual

SHARDS = 3
# Fixed: the workload must go through what matters, and so must the harness's own tests.
SEED = 7
IMAGES_SEED = seed_for("duplicates")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal")


@pytest.fixture(scope="module")
def log(folder: Path) -> list[Op]:
    return list(recorded(live, folder))


def test_the_workload_goes_through_what_matters(folder: Path, log: list[Op]):
    written = b"".join(op.data for op in log if op.kind == "write")
    headers = [op for op in log if op.kind == "write" and op.data[:8] == b"VSPYJRNL"]
    freed = [op for op in headers if op.data[10] == 1 and int.from_bytes(op.data[32:40], "little")]
    assert len(freed) >= 3, "files that held ids are reclaimed"
    assert written.count(b"1-1") >= 2, "ids are written again"
    assert "cleared 2" in [op.name for op in log if op.kind == "mark"]


@pytest.mark.ci
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_power_cut_leaves_both_or_neither(folder: Path, log: list[Op], shard: int):
    count = 0
    for index, image in enumerate(crash_images(log, seed=IMAGES_SEED, torn_max=3, subsets_max=8)):
        if index % SHARDS != shard:
            continue
        count += 1
        wrong = judge(image.marks, *found_on(image.disk, folder))
        assert not wrong, f"{wrong} (cut {image.cut}, {image.label})"
    assert count >= 200


def test_without_the_flush_the_cuts_do_find_a_loss(folder: Path):
    """The mutation: were the flush to go missing, this harness would see it."""
    disk = MemoryDisk()
    logging.disable(logging.WARNING)
    run_virtual(live(folder, disk, functools.partial(MemoryRing, is_forgetful=True)))
    logging.disable(logging.NOTSET)
    for image in crash_images(disk.log, seed=SEED, subsets_max=16, torn_max=0):
        try:
            found = found_on(image.disk, folder)
        except Exception:
            continue
        if any("confirmed" in mark for mark in image.marks) and judge(image.marks, *found):
            return
    pytest.fail("no image showed that the flush was missing")


def test_ids_outlive_a_slow_start(folder: Path):
    """The keeper runs as soon as the journal is open; the engine comes later."""

    async def lives() -> None:
        disk, kept = MemoryDisk(), new_ids()
        journal = await open_memory(folder, disk, kept=kept)
        producer = Producer(journal, disk, kept, 1)
        for _ in range(12):
            await producer.send(6)
            await producer.consume()
        held = [number for number in range(1, 50) if kept.live_records(number)]
        await journal.close()
        again = new_ids()
        journal = await open_memory(folder, disk, kept=again, min_files=6)
        await asyncio.sleep(0.02)  # large messages are looked at, say
        assert set(held) <= set(journal._pool.active_ids), "files that hold ids are not freed"
        again.start(journal.core, lambda _: True)
        assert again.count == kept.count
        await journal.close()
        assert found_on(disk, folder)[1].count == kept.count

    run_virtual(lives())
