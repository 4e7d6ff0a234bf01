"""Kept bodies of large messages: copied before they go, whole or not counted, and removed with the
copies of journal files by age and size."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.store.large_messages import LargeMessageOptions, LargeMessages
from vespiary_broker.store.options import RetentionOptions
from vespiary_broker.store.retention import Retention
from vespiary_broker.store.retention_bodies import (
    find_bodies,
    kept_body_name,
    parse_body_name,
)
from vespiary_broker.store.retention_folder import RetentionFolder
from vespiary_native.abc import LargeBody
from vespiary_native.choice import block_verifier
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk, crash_images
from vespiary_testkit.journal_workload import run, until
from vespiary_testkit.seeds import seed_for

KEPT = Path("/kept")
BODIES = KEPT / "large-messages"
LIVE = Path("/live")


class Rig:
    """Large messages and the retention over one disk."""

    def __init__(self, disk: MemoryDisk, **limits: Any) -> None:
        self.disk = disk
        self.now_ms = 1_700_000_000_000
        folder = RetentionFolder(
            RetentionOptions(directory=KEPT, **limits),
            disk,
            block_verifier(),
            is_direct=True,
            clock_ms=lambda: self.now_ms,
        )
        self.retention = Retention(
            folder, b"j" * 16, InlineExecutor(), retry_s=0.003, on_copied=lambda: None
        )

    async def open(self, *live: LargeBody) -> LargeMessages:
        self.retention.start()
        return await LargeMessages.open(
            LargeMessageOptions(directory=LIVE),
            live,
            disk=self.disk,
            executor=InlineExecutor(),
            keeper=self.retention,
        )


async def stored(large: LargeMessages, data: bytes) -> LargeBody:
    writer = large.begin()
    writer.put(data)
    await asyncio.sleep(0)
    body = await writer.finish(is_persistent=True)
    large.adopt(body)
    return body


def kept(disk: MemoryDisk) -> dict[int, bytes]:
    """Return the kept bodies by their ids."""
    return {
        large_id: bytes(disk.files[path].data) for large_id, path in find_bodies(KEPT, disk).items()
    }


def live(disk: MemoryDisk) -> set[str]:
    return {path.name for path in disk.files if path.parent == LIVE}


@given(st.integers(0, 4_000_000_000), st.integers(0, 2**64 - 1))
def test_names_say_time_and_body(seconds: int, large_id: int):
    assert parse_body_name(kept_body_name(seconds * 1000 + 999, large_id)) == (
        seconds * 1000,
        large_id,
    )


@pytest.mark.parametrize(
    "name", ["00000000000000ff.msg", "20261301000000-00000000000000ff.msg", "20260101000000-ff.msg"]
)
def test_other_names_are_none(name: str):
    assert parse_body_name(name) is None


@run
async def test_a_body_is_copied_before_it_goes():
    disk = MemoryDisk()
    rig = Rig(disk)
    large = await rig.open()
    bodies = [await stored(large, bytes([number]) * 5000) for number in range(40)]
    large.remove([body.large_id for body in bodies[1:]])
    await until(lambda: large.statistics().removed == 39)
    assert live(disk) == {large.path(bodies[0].large_id).name}
    assert kept(disk) == {
        body.large_id: bytes([number]) * 5000 for number, body in enumerate(bodies) if number
    }
    counted = rig.retention.statistics()
    assert (counted.bodies, counted.bodies_bytes, counted.bodies_waiting) == (39, 39 * 5000, 0)
    await large.close()
    await rig.retention.close()


@run
async def test_the_name_of_a_copy_is_flushed_before_the_body_goes():
    """The copies may lie on another disk: no order between the two but this one."""
    disk = MemoryDisk()
    rig = Rig(disk)
    large = await rig.open()
    body = await stored(large, b"x" * 5000)
    start = len(disk.log)
    large.remove([body.large_id])
    await until(lambda: live(disk) == set())
    steps = [(op.kind, op.name.split("\0")[-1]) for op in disk.log[start:]]
    copied = str(find_bodies(KEPT, disk)[body.large_id])
    named, flushed, gone = (
        steps.index(("rename", copied)),
        steps.index(("folder", str(BODIES))),
        steps.index(("remove", str(large.path(body.large_id)))),
    )
    assert "flush" in [kind for kind, _ in steps[:named]]
    assert named < flushed < gone
    await large.close()
    await rig.retention.close()


@run
async def test_a_disk_of_copies_that_is_full_keeps_the_bodies_and_says_so():
    disk = MemoryDisk()
    rig = Rig(disk)
    large = await rig.open()
    body = await stored(large, b"x" * 5000)
    disk.fail = lambda step, path: errno.ENOSPC if step == "write" and path.parent == BODIES else 0
    large.remove([body.large_id])
    await until(lambda: rig.retention.statistics().blocked_reason is not None)
    assert rig.retention.statistics().bodies_waiting == 1
    assert live(disk) == {large.path(body.large_id).name}
    assert not [path for path in disk.files if path.parent == BODIES], "half copies take no space"
    disk.fail = lambda *_: 0
    await until(lambda: live(disk) == set())
    await until(lambda: rig.retention.statistics().blocked_reason is None)
    assert kept(disk) == {body.large_id: b"x" * 5000}
    await large.close()
    await rig.retention.close()


@run
async def test_one_that_waited_when_the_broker_ended_is_copied_by_the_next():
    disk = MemoryDisk()
    rig = Rig(disk)
    large = await rig.open()
    body = await stored(large, b"x" * 5000)
    disk.fail = lambda step, path: errno.EIO if step == "create" and path.parent == BODIES else 0
    large.remove([body.large_id])
    await until(lambda: rig.retention.statistics().blocked_reason is not None)
    await large.close()
    await rig.retention.close()
    disk.fail = lambda *_: 0
    again = Rig(disk)
    large = await again.open()
    await until(lambda: live(disk) == set())
    await until(lambda: large.statistics().swept == 1)
    assert kept(disk) == {body.large_id: b"x" * 5000}
    await large.close()
    await again.retention.close()


@run
async def test_a_kept_one_is_not_copied_again():
    disk = MemoryDisk()
    rig = Rig(disk)
    large = await rig.open()
    body = await stored(large, b"x" * 5000)
    disk.fail = lambda step, path: errno.EIO if step == "remove" and path.parent == LIVE else 0
    large.remove([body.large_id])
    await until(lambda: large.statistics().removals_failed == 1)
    await large.close()
    await rig.retention.close()
    disk.fail = lambda *_: 0
    writes = len([op for op in disk.log if op.kind == "make"])
    again = Rig(disk)
    large = await again.open()
    await until(lambda: live(disk) == set())
    assert len([op for op in disk.log if op.kind == "make"]) == writes
    assert again.retention.statistics().bodies == 1
    await large.close()
    await again.retention.close()


@run
async def test_a_copy_counts_only_when_it_reads_back_whole():
    disk = MemoryDisk()
    rig = Rig(disk)
    large = await rig.open()
    body = await stored(large, b"x" * 5000)

    def rot(step: str, path: Path) -> int:
        if step == "flush" and path.parent == BODIES:
            disk.flip(path, 4000, 1)
        return 0

    disk.fail = rot
    large.remove([body.large_id])
    await until(lambda: "reads back other" in str(rig.retention.statistics().blocked_reason))
    assert live(disk) == {large.path(body.large_id).name}
    assert kept(disk) == {}
    await large.close()
    await rig.retention.close()


@run
async def test_bodies_and_files_go_together_by_age_and_by_size():
    disk = MemoryDisk()
    rig = Rig(disk, storage_limit_bytes=12_000, period_ms=60_000)
    large = await rig.open()
    bodies = []
    for number in range(4):
        bodies.append(await stored(large, bytes([number]) * 5000))
        rig.now_ms += 1000
        large.remove([bodies[-1].large_id])
        await until(lambda: live(disk) == set())
    await until(lambda: rig.retention.statistics().removed == 2)
    assert set(kept(disk)) == {bodies[2].large_id, bodies[3].large_id}
    rig.now_ms += 60_500
    bodies.append(await stored(large, b"y"))
    large.remove([bodies[-1].large_id])
    await until(lambda: rig.retention.statistics().removed == 4)
    await until(lambda: set(kept(disk)) == {bodies[-1].large_id})
    await until(lambda: rig.retention.statistics().bodies_bytes == 1)  # counted behind its name
    await large.close()
    await rig.retention.close()


@run
async def test_power_cuts_leave_each_body_with_the_broker_or_whole_with_the_copies():
    disk = MemoryDisk()
    rig = Rig(disk)
    large = await rig.open()
    data = {}
    for number in range(6):
        body = await stored(large, bytes([65 + number]) * 9000)
        data[body.large_id] = bytes([65 + number]) * 9000
    start = len(disk.log)
    large.remove(list(data))
    await until(lambda: live(disk) == set())
    await large.close()
    await rig.retention.close()
    moved = 0
    for image in crash_images(
        disk.log, seed=seed_for("retention bodies"), start=start, torn_max=2, subsets_max=16
    ):
        found = kept(image.disk)
        for large_id, body in data.items():
            if large_id in found:
                assert found[large_id] == body, f"cut {image.cut}, {image.label}"
                moved += 1
            else:
                path = large.path(large_id)
                assert path in image.disk.files, f"lost: cut {image.cut}, {image.label}"
                assert bytes(image.disk.files[path].data) == body
    assert moved
