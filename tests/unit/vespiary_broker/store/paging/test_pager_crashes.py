"""Power cuts at every moment of paging: nothing is lost, nothing rises again, no page is missed."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.paging.page_files import PageFiles
from vespiary_spec.errors import VespiaryError
from vespiary_testkit.faulty_disk import MemoryDisk, Op, crash_images
from vespiary_testkit.journal_workload import judge, until
from vespiary_testkit.paging_rig import PagingClient, PagingRig, recover_paged
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.virtual_time import run_virtual

# Fixed: the workload must go through what matters, and so must the harness's own tests.
SEED = 11
IMAGES_SEED = seed_for("pager")
SHARDS = 3


async def _life(folder: Path, disk: MemoryDisk) -> int:
    """Send, page, receive and acknowledge in turns, restart in the middle; return pages removed."""
    removed = 0
    for life in range(2):
        rig = await PagingRig.open(folder, disk)
        client = PagingClient(rig, SEED + life)
        client.transaction = 100 * life
        for turn in range(3):
            await client.send(25)
            await client.send_transaction(4)
            await rig.move_all()
            await client.send(5)
            await client.receive(12)
            await client.acknowledge(len(client.held) - turn)
        await client.receive()
        await client.acknowledge(len(client.held) - 2)
        await until(lambda rig=rig: rig.pager.statistics().removed > 0)
        removed += rig.pager.statistics().removed
        await rig.close()
    return removed


@functools.cache
def _recorded(folder: Path) -> tuple[tuple[Op, ...], int]:
    """Return the log, and how many pages went."""
    disk = MemoryDisk()
    logging.disable(logging.INFO)
    removed = run_virtual(_life(folder, disk))
    logging.disable(logging.NOTSET)
    return tuple(disk.log), removed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal")


def _is_cut(op: Op) -> bool:
    return op.kind in ("done", "flush", "folder", "rename", "remove")


def test_the_workload_writes_pages_and_removes_them(folder: Path) -> None:
    log, removed = _recorded(folder)
    assert removed >= 6
    assert sum(op.kind == "rename" and ".page" in op.name for op in log) >= removed


@pytest.mark.ci
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_power_cut_keeps_what_was_confirmed(folder: Path, shard: int) -> None:
    log, _ = _recorded(folder)
    count = 0
    images = crash_images(
        list(log), seed=IMAGES_SEED, torn_max=1, subsets_max=3, is_boundary=_is_cut
    )
    for index, image in enumerate(images):
        if index % SHARDS != shard:
            continue
        count += 1
        wrong = judge(image.marks, recover_paged(image.disk, folder))
        assert not wrong, f"{wrong} (cut {image.cut}, {image.label}, seed {IMAGES_SEED})"
    assert count >= 100, f"{count} images"


def _is_found(disk: MemoryDisk, folder: Path) -> bool:
    """Whether any power cut shows that something is wrong."""
    images = crash_images(disk.log, seed=SEED, subsets_max=16, torn_max=0, is_boundary=_is_cut)
    for image in images:
        try:
            live = recover_paged(image.disk, folder)
        except (VespiaryError, ValueError, AssertionError):
            return True
        if judge(image.marks, live):
            return True
    return False


@pytest.mark.parametrize("rule", ["flush", "folder"])
def test_each_rule_that_is_broken_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """The mutations: a page that is not flushed, or its name."""
    disk = MemoryDisk()
    _leave_out(disk, monkeypatch, rule)
    logging.disable(logging.INFO)
    run_virtual(_life(folder, disk))
    logging.disable(logging.NOTSET)
    assert _is_found(disk, folder)


def _leave_out(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Have page files leave out a flush."""
    write = PageFiles.write

    def careless(self: PageFiles, *arguments: Any) -> Any:
        before = len(disk.log)
        page = write(self, *arguments)
        disk.log[before:] = [op for op in disk.log[before:] if op.kind != kind]
        return page

    monkeypatch.setattr(PageFiles, "write", careless)
