"""Power cuts at every moment of a small journal's life: nothing is lost, nothing rises again."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import pytest

from vespiary_testkit.faulty_disk import MemoryDisk, Op, crash_images, recorded
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_workload import (
    Client,
    core_counts,
    judge,
    open_memory,
    recover_and_seal,
    recover_live,
)
from vespiary_testkit.power_cuts import durable_log, resume
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.virtual_time import run_virtual

SHARDS = 4
# Fixed: the workload must go through what matters, and so must the harness's own tests.
SEED = 20240607
IMAGES_SEED = seed_for("recovery")


async def _live_a_little(folder: Path, disk: MemoryDisk, make_ring=MemoryRing) -> None:
    """Send, send in transactions, acknowledge, roll over files, reclaim, restart."""
    for life in range(2):
        journal = await open_memory(folder, disk, make_ring)
        client = Client(journal, disk, SEED + life)
        client.transaction = 100 * life
        for turn in range(9):
            await client.send(1 + turn % 5)
            await client.receive()
            if life == 1 and turn == 1:
                # One message stays: its file stays, and so must the acknowledgements of its
                # neighbours.
                client.held.pop(1)
            await client.acknowledge(len(client.held) * (turn % 3) // 2)
            if turn % 3 == 0:
                await client.send_transaction(3)
            await asyncio.sleep(0.002)  # the keeper's turn
        await client.receive()
        await client.acknowledge(len(client.held))
        await client.send(2)
        await asyncio.sleep(0.005)
        await journal.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal")


@pytest.fixture(scope="module")
def log(folder: Path) -> list[Op]:
    return list(recorded(_live_a_little, folder))


def test_the_workload_goes_through_what_matters(log: list[Op]):
    kinds = {op.kind for op in log}
    assert {"make", "rename", "folder", "write", "done", "flush", "mark"} <= kinds
    headers = [op for op in log if op.kind == "write" and op.data[:8] == b"VSPYJRNL"]
    freed = [op for op in headers if op.data[10] == 1 and int.from_bytes(op.data[32:40], "little")]
    assert len(freed) >= 3, "files are reclaimed"


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_power_cut_keeps_what_was_confirmed(folder: Path, log: list[Op], shard: int):
    count = 0
    for index, image in enumerate(crash_images(log, seed=IMAGES_SEED, torn_max=4, subsets_max=32)):
        if index % SHARDS != shard:
            continue
        count += 1
        live = recover_live(image.disk, folder)
        wrong = judge(image.marks, live)
        assert not wrong, f"{wrong} (cut {image.cut}, {image.label}, seed {IMAGES_SEED})"
    assert count >= 500, f"{count} images: the four shards together must be 2000 or more"


def test_recovery_after_recovery_finds_the_same(folder: Path, log: list[Op]):
    images = list(crash_images(log, seed=IMAGES_SEED, torn_max=2, subsets_max=4))
    assert len(images[::9]) >= 50
    for image in images[::9]:
        live = recover_live(image.disk, folder)
        assert recover_and_seal(image.disk, folder) == live
        assert recover_live(image.disk, folder) == live, f"cut {image.cut}, {image.label}"


def test_a_second_cut_inside_recovery_changes_nothing(folder: Path, log: list[Op]):
    images = list(crash_images(log, seed=IMAGES_SEED, torn_max=2, subsets_max=4))
    seconds = 0
    for image in images[::60]:
        live = recover_live(image.disk, folder)
        before = image.disk.copy()
        before.log = durable_log(before)
        start = len(before.log)
        recover_and_seal(before, folder)
        for second in crash_images(before.log, seed=IMAGES_SEED, start=start):
            assert recover_live(second.disk, folder) == live, second.label
            seconds += 1
    assert seconds >= 50


def test_the_core_restores_as_many_messages_as_the_rules_say(folder: Path, log: list[Op]):
    images = list(crash_images(log, seed=IMAGES_SEED, torn_max=2, subsets_max=4))
    assert len(images[::25]) >= 20
    for image in images[::25]:
        live = recover_live(image.disk, folder)
        counts = core_counts(image.disk, folder)
        assert counts == {q: len([key for key in live if key[0] == q]) for q in counts}


def test_without_the_flush_the_cuts_do_find_a_loss(folder: Path):
    """The mutation: were the flush to go missing, this harness would see it."""
    disk = MemoryDisk()
    run_virtual(_live_a_little(folder, disk, functools.partial(MemoryRing, is_forgetful=True)))
    confirmed = False
    for image in crash_images(disk.log, seed=SEED, subsets_max=16, torn_max=0):
        confirmed = confirmed or any(mark.startswith("confirmed") for mark in image.marks)
        if confirmed and judge(image.marks, _recover_or_nothing(image.disk, folder)):
            return
    pytest.fail("no image showed that the flush was missing")


def _recover_or_nothing(disk: MemoryDisk, folder: Path) -> set[tuple[int, int]]:
    try:
        return recover_live(disk, folder)
    except Exception:
        return set()


async def _live_on(folder: Path, disk: MemoryDisk, held: set[tuple[int, int]]) -> None:
    journal = await open_memory(folder, disk)
    client = Client(journal, disk, SEED + 99)
    client.transaction = 1000
    await client.receive()
    assert set(client.held) == held
    for _ in range(3):
        await client.send(4)
        await client.receive()
        await client.acknowledge(len(client.held) // 2)
        await asyncio.sleep(0.002)
    await journal.close()


@pytest.mark.parametrize("part", range(3))
def test_life_after_a_power_cut_can_be_cut_again(folder: Path, log: list[Op], part: int):
    images = list(crash_images(log, seed=IMAGES_SEED, torn_max=2, subsets_max=4))
    seconds = 0
    for image in images[part * 37 :: 211]:
        live = recover_live(image.disk, folder)
        disk, start = resume(image.disk, live, {})
        run_virtual(_live_on(folder, disk, live))
        for second in crash_images(
            disk.log, seed=IMAGES_SEED, start=start, torn_max=1, subsets_max=4
        ):
            wrong = judge(second.marks, recover_live(second.disk, folder))
            assert not wrong, f"{wrong} (cuts {image.cut} and {second.cut}, {second.label})"
            seconds += 1
    assert seconds >= 50
